"""What becomes of each parameter: the table, the page that is written of it, and a server agree."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from engine.text import ChatTemplate
from gateway.api.openai.parameter_page import page
from gateway.api.openai.parameters import (
    CHAT,
    COMPLETIONS,
    DETOKENIZE,
    MESSAGE,
    PART,
    STREAM_OPTIONS,
    STRUCTURED_OUTPUTS,
    TOKENIZE,
    Fate,
    Parameter,
)
from gateway.api.openai.reading import HEADER, Ignored, Reader
from gateway.api.openai.schemas import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    StreamOptions,
    StructuredOutputs,
    TokenizeRequest,
)
from gateway.errors import InvalidRequest
from gateway.services.inference.cache_salt import cache_salt
from gateway.services.inference.models import ServedModel
from tests.gateway.api.conftest import open_client

pytestmark = pytest.mark.anyio

PATHS = {"chat": "/v1/chat/completions", "text": "/v1/completions"}
NAMED = HEADER.decode()
TURN: dict[str, Any] = {"role": "user", "content": "hi"}
# What some need beside them.
BESIDE: dict[str, dict[str, Any]] = {
    "stream_options": {"stream": True},
    "top_logprobs": {"logprobs": True},
    "best_of": {"n": 1},
    # The demo's template knows no tools.
    "tools": {"tool_choice": "none"},
}
# Whose turn it is that has them.
ROLES = {"tool_calls": "assistant", "tool_call_id": "tool"}
# Of these a request has one.
FORMS = {"json", "regex", "choice", "grammar", "json_object"}
# Of a sequence of tables: where each stands, and what a request is that has it.
PLACES = {
    "chat": (CHAT, "{}"),
    "text": (COMPLETIONS, "{}"),
    "stream": (STREAM_OPTIONS, "stream_options.{}"),
    "form": (STRUCTURED_OUTPUTS, "structured_outputs.{}"),
    "message": (MESSAGE, "messages[0].{}"),
    "part": (PART, "messages[0].content[0].{}"),
}
CASES = [(place, each) for place, (table, _) in PLACES.items() for each in table]


def asking(place: str, name: str, value: Any) -> tuple[str, dict[str, Any]]:
    """A path and a body that asks for a parameter."""
    body: dict[str, Any] = {"model": "demo", "max_tokens": 2, "messages": [TURN]}
    if place == "text":
        body = {"model": "demo", "max_tokens": 2, "prompt": "Hi"}
    if place in ("chat", "text"):
        return PATHS[place], body | BESIDE.get(name, {}) | {name: value}
    if place == "stream":
        options = {"include_usage": True, name: value}
        return PATHS["chat"], body | {"stream": True, "stream_options": options}
    if place == "form":
        options = {"json": {}} if name not in FORMS else {}
        return PATHS["chat"], body | {"structured_outputs": options | {name: value}}
    turn = TURN | {"role": ROLES.get(name, "user")} | {name: value}
    if name == "tool_call_id" and value is None:
        turn["role"] = "user"
    if place == "part":
        turn = TURN | {"content": [{"type": "text", "text": "hi", name: value}]}
    return PATHS["chat"], body | {"messages": [turn]}


def named(response: httpx.Response) -> list[str]:
    return [each for each in response.headers.get(NAMED, "").split(", ") if each]


@pytest.fixture
async def lenient(model: ServedModel) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server that takes what nobody knows."""
    async with open_client(model, ignores_unknown=True) as client:
        yield client


@pytest.mark.parametrize(
    ("place", "parameter"), CASES, ids=lambda case: getattr(case, "name", case)
)
async def test_a_server_does_as_the_table_says(
    demo_client: httpx.AsyncClient, place: str, parameter: Parameter
) -> None:
    """Each parameter, asked for, is honoured, taken and named, or refused by its name."""
    path, body = asking(place, parameter.name, parameter.asks)
    response = await demo_client.post(path, json=body)
    where = PLACES[place][1].format(parameter.name)
    plain = where.replace("[0]", "")
    if parameter.fate is Fate.REFUSED:
        assert response.status_code == 400
        assert response.json()["error"]["param"] == where
        return
    assert response.status_code == 200, response.text
    if parameter.fate is Fate.HONOURED:
        assert named(response) == []
    elif parameter.name == "chat_template_kwargs":
        assert named(response) == ["chat_template_kwargs.enable_thinking"]
    else:
        # Nor does the demo's template look at what is given to templates.
        assert named(response) == [plain]


@pytest.mark.parametrize(
    ("place", "parameter"), CASES, ids=lambda case: getattr(case, "name", case)
)
async def test_what_asks_for_nothing_passes(
    demo_client: httpx.AsyncClient, place: str, parameter: Parameter
) -> None:
    """A neutral value of any parameter, null among them, is neither refused nor named."""
    needed = {"model", "messages", "prompt", "role", "content", "type", "text"} | FORMS
    if parameter.name in needed or place == "stream":
        return
    for value in parameter.neutral:
        value = msgspec.to_builtins(value)
        path, body = asking(place, parameter.name, value)
        response = await demo_client.post(path, json=body)
        assert response.status_code == 200, response.text
        assert named(response) == []


def test_the_tables_hold_what_is_decoded() -> None:
    """No field is read that no table has, and none is described that is not read."""
    for table, kind in (
        (CHAT, ChatRequest),
        (COMPLETIONS, CompletionRequest),
        (STREAM_OPTIONS, StreamOptions),
        (STRUCTURED_OUTPUTS, StructuredOutputs),
        (MESSAGE, ChatMessage),
        (TOKENIZE, TokenizeRequest),
        (DETOKENIZE, DetokenizeRequest),
    ):
        names = [each.name for each in table]
        assert sorted(names) == sorted(kind.__struct_fields__)


def test_the_page_is_what_the_table_says() -> None:
    """docs/api.md is as it would be written now."""
    assert Path("docs/api.md").read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("place", ["chat", "text", "stream", "message", "part"])
async def test_unknown_names(
    client: httpx.AsyncClient, lenient: httpx.AsyncClient, place: str
) -> None:
    """Null is taken; a value is refused with its name, or taken and named where that is set."""
    where = PLACES[place][1].format("colour")
    path, body = asking(place, "colour", None)
    taken = await client.post(path, json=body | {"model": "sim"})
    assert (taken.status_code, named(taken)) == (200, [])
    path, body = asking(place, "colour", {"deep": [1]})
    refused = await client.post(path, json=body | {"model": "sim"})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["code"], error["param"].replace("[...]", "[0]")) == ("unknown_parameter", where)
    ignored = await lenient.post(path, json=body | {"model": "sim"})
    assert ignored.status_code == 200, ignored.text
    assert named(ignored) == [where.replace("[0]", "")]


async def test_unknown_names_leave_the_rest_strict(lenient: httpx.AsyncClient) -> None:
    """What is known is checked all the same, and a body that is no object is none."""
    path, body = asking("chat", "colour", 1)
    for bad in ({"n": "x"}, {"messages": "hi"}, {"stream_options": 5}, {"temperature": 9}):
        refused = await lenient.post(path, json=body | {"model": "sim"} | bad)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == next(iter(bad))


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "demo", "unknown": 1, "messages": [',
        b'{"model": "demo", "unknown": 1, "stream": tru}',
        b'{"model": "demo", "unknown": "\xff", "max_tokens": 1}',
        b'{"model": "demo", "unknown": 1, "messages": [{"role": "\xed"}]}',
        b'{"model": "demo", "stream_options": {"unknown": 1, "\xff": 2}}',
        b'{"model": "demo", "unknown": 1, "messages": ' + 2000 * b"[" + 2000 * b"]" + b"}",
    ],
)
@pytest.mark.parametrize("ignores_unknown", [False, True])
def test_what_follows_an_unknown_name_may_be_no_json(body: bytes, ignores_unknown: bool) -> None:
    """A body that turns out unreadable behind a field that nobody knows is a 400, as any other."""
    with pytest.raises(InvalidRequest):
        Reader(ChatRequest, ignores_unknown=ignores_unknown).read(body, Ignored())


async def test_names_of_a_clients_choice_are_no_header_of_its_choice(
    lenient: httpx.AsyncClient,
) -> None:
    """Line ends, other characters, long names and many of them stay out of the answer's head."""
    path, body = asking("chat", "x\r\nset-cookie: a", 1)
    body |= {"model": "sim", "é": 1, "y" * 65: 1} | {f"z{i}": 1 for i in range(5_000)}
    response = await lenient.post(path, json=body)
    assert response.status_code == 200
    assert "set-cookie" not in response.headers
    *names, last = named(response)
    assert last == "..."
    assert len(names) == 32
    assert all(name.startswith("z") for name in names)


@pytest.mark.parametrize(
    "bad",
    [
        {"metadata": {str(i): "" for i in range(17)}},
        {"metadata": {"n" * 65: ""}},
        {"metadata": {"n": "v" * 513}},
        {"cache_salt": ""},
        {"cache_salt": "s" * 257},
        {"reasoning_effort": "e" * 65},
        {"chat_template_kwargs": {str(i): 1 for i in range(17)}},
        {"chat_template_kwargs": {"the budget": 1}},
        {"chat_template_kwargs": {"a": "v" * 257}},
        {"chat_template_kwargs": {"a": 10**300}},
        {"priority": "high"},
    ],
    ids=lambda bad: str(bad)[:40],
)
async def test_what_is_taken_is_bounded(client: httpx.AsyncClient, bad: dict[str, Any]) -> None:
    """What has no effect, and what goes to a template, has OpenAI's bounds or ours."""
    path, body = asking("chat", "model", "sim")
    response = await client.post(path, json=body | bad)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == next(iter(bad))


async def test_at_its_bounds_metadata_is_taken(client: httpx.AsyncClient) -> None:
    """16 pairs of 64 and 512 characters pass."""
    pairs = {f"{i:064}": "v" * 512 for i in range(16)}
    path, body = asking("chat", "metadata", pairs)
    response = await client.post(path, json=body | {"model": "sim"})
    assert (response.status_code, named(response)) == (200, ["metadata"])


async def test_a_template_is_given_what_it_looks_at(model: ServedModel) -> None:
    """Names, the effort and a caller's variables reach a template; nothing replaces its own."""
    template = ChatTemplate(
        "{{ effort_mark }}{% for m in messages %}{{ m.name or '-' }}{{ m.content }}{% endfor %}"
        "{{ reasoning_effort }}{{ bos_token }}{{ enable_thinking }}",
        variables={"bos_token": "BOS"},
    )
    text = template.render(
        [TURN | {"name": "bob"}, TURN],
        variables={"reasoning_effort": "low", "bos_token": "X", "enable_thinking": False},
    )
    assert text == "bobhi-hilowBOSFalse"
    assert {"name", "reasoning_effort", "enable_thinking"} <= template.names
    assert "colour" not in template.names
    object.__setattr__(model, "chat_template", template)
    asked: dict[str, Any] = {
        "reasoning_effort": "low",
        "chat_template_kwargs": {"enable_thinking": True, "messages": "none", "colour": 1},
        "messages": [TURN | {"name": "bob"}],
    }
    async with open_client(model) as client:
        path, body = asking("chat", "model", "sim")
        response = await client.post(path, json=body | asked)
    assert named(response) == ["chat_template_kwargs.colour", "chat_template_kwargs.messages"]


async def test_priority_only_lowers(client: httpx.AsyncClient) -> None:
    """vLLM's later is flex; its sooner is the key's tier, and named."""
    for priority, tier, names in (
        (3, "flex", []),
        (0, "default", []),
        (-3, "default", ["priority"]),
    ):
        path, body = asking("chat", "priority", priority)
        response = await client.post(path, json=body | {"model": "sim"})
        assert (response.json()["service_tier"], named(response)) == (tier, names)


async def test_cache_salt_narrows_sharing(client: httpx.AsyncClient) -> None:
    """A prompt is found in the cache by those of the same word alone."""
    body = {"model": "sim", "prompt": "word " * 40, "max_tokens": 2}
    cached = []
    for salt in ({}, {"cache_salt": "a"}, {"cache_salt": "a"}, {"cache_salt": "b"}, {}):
        usage = (await client.post(PATHS["text"], json=body | salt)).json()["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"] > 0)
    assert cached == [False, False, True, False, True]


def test_no_word_of_a_tenants_leads_to_anothers_salt() -> None:
    """Words are framed: none makes of one tenant's salt another's, or that without one."""
    salts = {
        cache_salt(b"k" * 32, model="m", tenant_id=tenant, narrowed_by=word)
        for tenant in ("a", "ab", "b")
        for word in (None, "", "b", "bb")
    }
    assert len(salts) == 12


async def test_an_assistant_may_have_said_nothing(client: httpx.AsyncClient) -> None:
    """Null is an empty turn of an assistant's; of anybody else it is refused."""
    path, body = asking("chat", "model", "sim")
    said = [TURN, {"role": "assistant", "content": None}, TURN]
    assert (await client.post(path, json=body | {"messages": said})).status_code == 200


async def test_a_prompt_alone_is_echoed_and_billed(demo_client: httpx.AsyncClient) -> None:
    """`max_tokens: 0` with `echo` gives the prompt and its log-probabilities, and no token more."""
    body = {"model": "demo", "prompt": "Hello world", "max_tokens": 0}
    asked = body | {"echo": True, "logprobs": 1}
    answer = (await demo_client.post(PATHS["text"], json=asked)).json()
    [choice] = answer["choices"]
    assert choice["text"] == "Hello world"
    assert choice["finish_reason"] == "length"
    num_tokens = answer["usage"]["prompt_tokens"]
    assert answer["usage"]["completion_tokens"] == 0
    assert len(choice["logprobs"]["token_logprobs"]) == num_tokens
    plain = (await demo_client.post(PATHS["text"], json=body | {"echo": True})).json()
    assert plain["choices"][0]["text"] == "Hello world"
    assert (await demo_client.post(PATHS["text"], json=body)).status_code == 400


async def test_a_prompt_alone_that_fills_the_context_is_too_long(
    demo_client: httpx.AsyncClient,
) -> None:
    """One token less is computed; the message tells of the prompt and of no completion."""
    body = {"model": "demo", "max_tokens": 0, "echo": True}
    fits = await demo_client.post(PATHS["text"], json=body | {"prompt": [5] * 1023})
    assert fits.status_code == 200
    refused = await demo_client.post(PATHS["text"], json=body | {"prompt": [5] * 1024})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "your prompt has 1024 tokens" in error["message"]
    assert "completion" not in error["message"]
