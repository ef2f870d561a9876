"""Service tiers and the scheduler's controls on the running server, by SDK and command line."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.gateway.cli.admin_server import sluice_here
from tests.live_server import Server

ASK: dict[str, Any] = {
    "model": "sluice-demo",
    "messages": [{"role": "user", "content": "What is Sluice?"}],
    "temperature": 0,
}


def sluice(server: Server, *args: str) -> Any:
    """Run the command line against a server and return what its --json prints."""
    done = sluice_here(*args, "--json", SLUICE_DATA_DIR=str(server.data_dir))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def client_of(server: Server, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.api, api_key=key, max_retries=0)


def test_a_key_caps_the_tier_of_its_requests(server: Server) -> None:
    """The SDK asks for a tier and reads which one it got, whole and streamed."""
    issued = sluice(server, "keys", "create", "--tenant", "acme", "--max-tier", "priority")
    best, plain = client_of(server, issued["key"]), client_of(server, server.key)
    for client, asked, served in (
        (best, "auto", "priority"),
        (best, "flex", "flex"),
        (plain, "auto", "default"),
        (plain, "priority", "default"),
    ):
        answer = client.chat.completions.create(**ASK, service_tier=asked)
        assert answer.service_tier == served
        chunks = client.chat.completions.create(**ASK, service_tier=asked, stream=True)
        assert {chunk.service_tier for chunk in chunks} == {served}
    with pytest.raises(openai.BadRequestError) as refused:
        plain.chat.completions.create(**ASK, extra_body={"service_tier": "scale"})
    assert refused.value.param == "service_tier"


def test_policies_change_while_a_stream_runs(server: Server) -> None:
    """Each policy and preset takes over at a step, and the stream's text is what it was alone."""
    client = client_of(server, server.key)
    ask = ASK | {"max_tokens": 200, "extra_body": {"ignore_eos": True}}
    alone = client.chat.completions.create(**ask).choices[0].message.content
    [before] = sluice(server, "scheduler", "show")
    assert (before["model"], before["policy"], before["preset"]) == ("sluice-demo", "vtc", "mixed")
    chunks = iter(client.chat.completions.create(**ask, stream=True))
    first = [next(chunks)]
    for change in (("--policy", "fcfs"), ("--preset", "high-throughput"), ("--policy", "vtc")):
        sluice(server, "scheduler", "set", *change)
    text = "".join(c.choices[0].delta.content or "" for c in [*first, *chunks] if c.choices)
    assert text == alone
    [after] = sluice(server, "scheduler", "show")
    assert (after["policy"], after["preset"]) == ("vtc", "high-throughput")
    sluice(server, "scheduler", "set", "--preset", "mixed")
    assert sluice(server, "scheduler", "show")[0]["config"] == before["config"]


def test_the_state_says_who_was_served(server: Server) -> None:
    """After a tenant's request its band and tenant are listed by name, with what they cost."""
    client_of(server, server.key).chat.completions.create(**ASK)
    [shown] = sluice(server, "scheduler", "show")
    state = shown["state"]
    assert state["counts"]["num_output_tokens"] > 0
    assert state["counts"]["total_blocks"] >= state["counts"]["free_blocks"] > 0
    served = {band["band"]: band["service"] for band in state["bands"]}
    assert served["default"] > 0
    [acme] = [
        tenant
        for band in state["bands"]
        if band["band"] == "default"
        for tenant in band["tenants"]
        if tenant["tenant"] == "acme"
    ]
    assert acme["service"] > 0
    assert acme["running"] == acme["queued"] == 0
