"""Tokens over HTTP, in vLLM's shapes: what a tokenizer would say, and who may ask."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import httpx
import jinja2
import pytest

from engine.demo import MODEL_DIR
from engine.text import ChatTemplate, Tokenizer
from gateway.services.answers import answer_format
from gateway.services.inference.models import ServedModel
from gateway.services.read_rate import ReadRate
from tests.gateway.api.conftest import CONTEXT, OneTenant, open_client

pytestmark = pytest.mark.anyio

CHAT = [{"role": "user", "content": "What is Sluice?"}]


async def tokenized(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await client.post("/tokenize", json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def refused(client: httpx.AsyncClient, path: str, body: Any) -> tuple[int, str | None]:
    response = await client.post(path, json=body)
    return response.status_code, response.json()["error"]["param"]


async def test_a_text_as_tokens(client: httpx.AsyncClient, tokenizer: Tokenizer) -> None:
    """Count, context and tokens; special ones unless told otherwise; names where asked for."""
    bare = list(tokenizer.encode("Hi there é", add_special_tokens=False))
    answer = await tokenized(client, prompt="Hi there é", add_special_tokens=False)
    assert answer == {
        "count": len(bare),
        "max_model_len": CONTEXT,
        "tokens": bare,
        "token_strs": None,
    }
    named = await tokenized(client, model="sim", prompt="Hi there é", return_token_strs=True)
    assert named["tokens"] == list(tokenizer.encode("Hi there é"))
    assert len(named["token_strs"]) == named["count"] == len(bare) + 1
    assert named["token_strs"][0] == "<|bos|>"
    assert (await tokenized(client, prompt="", add_special_tokens=False))["tokens"] == []


async def test_a_chat_as_tokens(client: httpx.AsyncClient, tokenizer: Tokenizer) -> None:
    """The template's text, with or without the next turn's opening, or within the last one."""
    template = ChatTemplate.from_dir(MODEL_DIR)
    assert template is not None
    turns = [*CHAT, {"role": "assistant", "content": "It is a "}]

    def of(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    plain = await tokenized(client, messages=CHAT)
    assert plain["tokens"] == of(template.render(CHAT))
    without = await tokenized(client, messages=CHAT, add_generation_prompt=False)
    assert without["tokens"] == of(template.render(CHAT, add_generation_prompt=False))
    going_on = await tokenized(client, messages=turns, continue_final_message=True)
    assert going_on["tokens"] == of(template.render(CHAT) + "It is a ")
    twice = await tokenized(client, messages=CHAT, add_special_tokens=True)
    assert twice["tokens"] == [plain["tokens"][0], *plain["tokens"]]


async def test_tools_are_tokenised_with_a_chat(model: ServedModel) -> None:
    """A chat with tools has the tokens that it is billed for, and a model without none."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    body = {"model": "sim", "messages": CHAT, "tools": tools}
    calling = replace(model, answer_format=answer_format(model.chat_template))
    async with open_client(calling) as client:
        answer = await tokenized(client, **body)
        billed = await client.post("/v1/chat/completions", json=body | {"max_tokens": 1})
        assert answer["count"] == billed.json()["usage"]["prompt_tokens"]
        assert await refused(client, "/tokenize", {"prompt": "a", "tools": tools}) == (400, "tools")
    async with open_client(model) as client:
        assert await refused(client, "/tokenize", body) == (400, "tools")


async def test_a_text_may_be_longer_than_the_context(client: httpx.AsyncClient) -> None:
    """How long a text is can be asked of any; the answer is as one that is short."""
    answer = await tokenized(client, prompt="word " * 20_000, return_token_strs=True)
    assert answer["count"] > 20_000 > answer["max_model_len"]
    assert len(answer["tokens"]) == len(answer["token_strs"]) == answer["count"]


@pytest.mark.parametrize("text", ["", "Hi <|bos|>é 🦀<|eos|>", '"\\ \n' * 40_000])
async def test_there_and_back(client: httpx.AsyncClient, text: str) -> None:
    """Tokens of a text are that text again, special tokens spelled out."""
    tokens = (await tokenized(client, prompt=text, add_special_tokens=False))["tokens"]
    response = await client.post("/detokenize", json={"tokens": tokens})
    assert response.json() == {"prompt": text}


@pytest.mark.parametrize("token_id", [-1, 1 << 31, 1 << 80, True, "5", 0.5, None, []], ids=str)
async def test_hostile_token_ids(client: httpx.AsyncClient, token_id: Any) -> None:
    """What is no token of the model is refused by its place."""
    status, named = await refused(client, "/detokenize", {"tokens": [5, token_id]})
    assert (status, named) == (400, "tokens[1]")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": CHAT}, "prompt"),
        ({"prompt": "a", "continue_final_message": True}, "continue_final_message"),
        (
            {"messages": CHAT, "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"prompt": "é" * (130 << 10)}, "prompt"),
        ({"messages": [{"role": "user", "content": "a" * (257 << 10)}]}, "messages"),
        ({"messages": CHAT, "tools": [{}]}, "tools[0].type"),
        ({"prompt": "a", "colour": 1}, "colour"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_cannot_be_tokenised(
    client: httpx.AsyncClient, body: dict[str, Any], param: str
) -> None:
    """A body that asks for nothing, for both, or for what is not done is a 400 by name."""
    response = await client.post("/tokenize", content=json.dumps(body))
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_an_evaluation_finds_its_tokenizer(
    client: httpx.AsyncClient, tokenizer: Tokenizer
) -> None:
    """What is told of the tokenizer renders a chat without knowing any of its tokens."""
    info = (await client.get("/tokenizer_info")).json()
    assert (info["bos_token"], info["eos_token"]) == ("<|bos|>", "<|eos|>")
    assert info["vocab_size"] == tokenizer.vocab_size
    strict = jinja2.Environment(undefined=jinja2.StrictUndefined)
    text = strict.from_string(info["chat_template"]).render(
        messages=CHAT, add_generation_prompt=True
    )
    tokens = (await tokenized(client, messages=CHAT))["tokens"]
    assert list(tokenizer.encode(text.strip(), add_special_tokens=False)) == tokens


async def test_long_texts_go_to_threads(
    client: httpx.AsyncClient, shaped_on_threads: list[UUID]
) -> None:
    """What is short is done where it stands; the rest has its tenant's turn on a thread."""
    await tokenized(client, prompt="Hi")
    assert shaped_on_threads == []
    await tokenized(client, prompt="Hi " * 1000)
    await client.post("/detokenize", json={"tokens": [5] * 1000})
    assert shaped_on_threads == [UUID(int=2)] * 2


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_a_key_is_held_to_its_models(
    model: ServedModel, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """A key of other models learns nothing of this one, nor by leaving its name out."""
    authenticate = OneTenant.authenticate

    async def of_others(self: OneTenant, token: str, timeline: object) -> Any:
        return replace(await authenticate(self, token), models=frozenset({"other"}))

    monkeypatch.setattr(OneTenant, "authenticate", of_others)
    body = {"prompt": "Hi"} if path == "/tokenize" else {"tokens": [5]}
    async with open_client(model) as client:
        for named in (body, body | {"model": "sim"}):
            response = await client.post(path, json=named)
            assert response.json()["error"]["code"] == "model_not_allowed"
        assert (await client.get("/tokenizer_info")).status_code == 403
        assert (await client.post(path, json=body | {"model": "none"})).status_code == 404


async def test_reading_too_often_is_refused(model: ServedModel) -> None:
    """Tokens are counted as reads are: a short text a small part of one, a long one many."""
    reads = ReadRate(1, hold_s=0.0)
    async with open_client(model, reads=reads) as client:
        for _ in range(15):
            await tokenized(client, prompt="Hi")
        response = await client.post("/tokenize", json={"prompt": "Hi " * 20_000})
        assert response.status_code == 429
        assert response.json()["error"]["code"] == "too_many_reads"
