"""From a tenant's key to streamed tokens, with OpenAI's SDK against the real thing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.live_server import Server, run_sluice, sluice_env, start_server
from tests.made_stores import MadeStores


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.api, api_key=server.key, max_retries=0)


def sluice(server: Server, *args: str) -> Any:
    """Run the command line against a server and return what its --json prints."""
    env = sluice_env(SLUICE_DATA_DIR=str(server.data_dir))
    done = run_sluice(*args, "--json", env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_banner_says_where_and_who(server: Server) -> None:
    """The first start prints addresses, the admin token and a key for each demo tenant."""
    assert set(server.banner) == {
        *("api", "admin", "model", "models", "max_model_len", "sampling_defaults"),
        *("admin_link", "admin_token", "keys"),
    }
    assert server.banner["model"] == "sluice-demo"
    assert [entry["tenant"] for entry in server.banner["keys"]] == ["acme", "globex"]
    assert all(entry["key"].startswith("sluice_live_") for entry in server.banner["keys"])


def test_sdk_streams_what_it_gets_whole(client: openai.OpenAI) -> None:
    """The SDK's stream and its plain call give the same text and the same usage."""
    ask: dict[str, Any] = {
        "model": "sluice-demo",
        "messages": [{"role": "user", "content": "What is Sluice?"}],
        "temperature": 0,
    }
    plain = client.chat.completions.create(**ask)
    chunks = list(
        client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == plain.choices[0].message.content
    assert "gateway" in text.lower()
    assert plain.choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert plain.usage is not None
    assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens


@pytest.mark.parametrize("max_tokens", [1024, 2048, 4000])
def test_what_clients_ask_for_by_default_fits_the_demo_model(
    client: openai.OpenAI, server: Server, max_tokens: int
) -> None:
    """Thousands of new tokens may be asked for: the demo model is served with 4,096 positions."""
    assert server.banner["max_model_len"] == 4096
    answer = client.chat.completions.create(
        model="sluice-demo",
        messages=[{"role": "user", "content": "What is Sluice?"}],
        max_tokens=max_tokens,
        temperature=0,
    )
    assert answer.choices[0].finish_reason == "stop"
    assert "multi-tenant" in (answer.choices[0].message.content or "")


def test_sdk_completes_text_and_tokens(client: openai.OpenAI) -> None:
    """Text completions take strings and token ids."""
    answer = client.completions.create(model="sluice-demo", prompt=["a", "b"], max_tokens=4)
    assert len(answer.choices) == 2
    answer = client.completions.create(model="sluice-demo", prompt=[400, 401], max_tokens=4)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 2


def test_seeded_sampling_repeats(client: openai.OpenAI) -> None:
    """A seed gives the same sampled text again; without one, texts differ."""

    def say(**extra: Any) -> str | None:
        answer = client.chat.completions.create(
            model="sluice-demo",
            messages=[{"role": "user", "content": "tell me"}],
            temperature=2,
            max_tokens=32,
            **extra,
        )
        return answer.choices[0].message.content

    assert say(seed=5) == say(seed=5)
    assert len({say() for _ in range(4)}) > 1


def test_sdk_lists_models(client: openai.OpenAI) -> None:
    """The SDK lists the demo model and retrieves its card."""
    assert [model.id for model in client.models.list()] == ["sluice-demo"]
    assert client.models.retrieve("sluice-demo").owned_by == "sluice"


def test_sdk_raises_its_own_errors(client: openai.OpenAI, server: Server) -> None:
    """Errors arrive as the SDK's exceptions, with the code and the field."""
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "x"}])
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="sluice-demo", prompt="x", max_tokens=5000)
    assert long.value.code == "context_length_exceeded"
    stranger = openai.OpenAI(base_url=server.api, api_key="sluice_live_x", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as refused:
        stranger.models.list()
    assert refused.value.code == "invalid_api_key"


def test_key_lives_and_dies_by_the_command_line(server: Server) -> None:
    """A key made for a new tenant works at once, and is refused at once after its revocation."""
    sluice(server, "tenants", "create", "initech", "--weight", "2")
    assert "initech" in [tenant["name"] for tenant in sluice(server, "tenants", "list")]
    issued = sluice(server, "keys", "create", "--tenant", "initech")
    client = openai.OpenAI(base_url=server.api, api_key=issued["key"], max_retries=0)
    assert client.models.list().data
    listed = sluice(server, "keys", "list", "--tenant", "initech")
    assert issued["key"] not in json.dumps(listed)
    sluice(server, "keys", "revoke", listed[0]["id"])
    with pytest.raises(openai.AuthenticationError):
        client.models.list()


def test_second_start_keeps_keys_and_shows_no_secret(made_data_dir: Path) -> None:
    """Keys outlive the process, and only the first start prints secrets."""
    first = start_server(made_data_dir, "--engine", "simulated")
    key = first.key
    assert first.stop() == 0
    second = start_server(made_data_dir, "--engine", "simulated")
    try:
        said = {"api", "admin", "model", "models", "max_model_len", "sampling_defaults"}
        assert set(second.banner) == said
        client = openai.OpenAI(base_url=second.api, api_key=key, max_retries=0)
        answer = client.completions.create(model="sluice-demo", prompt="x", max_tokens=5)
        assert answer.choices[0].text
    finally:
        assert second.stop() == 0


def test_headless_install_sets_its_own_secrets(data_dir: Path, made_stores: MadeStores) -> None:
    """`SLUICE_INIT_*` choose the tenants, their keys and the admin token."""
    data_dir.mkdir(mode=0o711)
    for name in ("a", "b"):
        made_stores.copy(data_dir / name)
    first = start_server(data_dir / "a", "--engine", "simulated")
    assert first.stop() == 0
    keys = [entry["key"] for entry in first.banner["keys"]]
    second = start_server(
        data_dir / "b",
        "--engine",
        "simulated",
        SLUICE_INIT_TENANTS="one,two",
        SLUICE_INIT_KEYS=",".join(keys),
        SLUICE_INIT_ADMIN_TOKEN=first.banner["admin_token"],
    )
    try:
        assert second.banner["admin_token"] == first.banner["admin_token"]
        assert second.banner["keys"] == [
            {"tenant": "one", "key": keys[0]},
            {"tenant": "two", "key": keys[1]},
        ]
        client = openai.OpenAI(base_url=second.api, api_key=keys[1], max_retries=0)
        assert client.models.list().data
    finally:
        assert second.stop() == 0
