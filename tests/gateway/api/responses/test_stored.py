"""Responses that are stored: gone on from, read, deleted, and what is not stored."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from engine.text import Tokenizer
from gateway.credentials import Secrets
from gateway.services.fair_pool import FairPool
from gateway.services.responses import StoredResponses
from scheduler.request import FinishReason
from tests.gateway.api.openai.test_tools import CALL, HERMES, steps
from tests.gateway.api.responses.kept_here import KeptHere
from tests.gateway.api.responses.serving import BODY, PATH, checked, events_of, serving
from tests.gateway.api.scripted_service import ScriptedService

pytestmark = pytest.mark.anyio

STOP = FinishReason.STOP
TOOLS = [{"type": "function", "name": "weather"}]
NOBODYS = "resp_" + "0" * 32

_ITEM: TypeAdapter[Any] = TypeAdapter(ResponseItem)


class Desk:
    """A client, what computes for it and where its responses are."""

    def __init__(
        self, client: httpx.AsyncClient, scripted: ScriptedService, tokenizer: Tokenizer
    ) -> None:
        self.client, self._scripted, self._tokenizer = client, scripted, tokenizer
        self.kept = KeptHere()

    async def ask(self, said: str, **asked: Any) -> dict[str, Any]:
        """Answer so."""
        self._scripted.script = steps(self._tokenizer, said, [3], STOP)
        return checked(await self.client.post(PATH, json=BODY | asked))

    async def stream(self, said: str, **asked: Any) -> list[dict[str, Any]]:
        self._scripted.script = steps(self._tokenizer, said, [3], STOP)
        answer = await self.client.post(PATH, json=BODY | asked | {"stream": True})
        assert answer.status_code == 200, answer.text
        return events_of(answer.text)

    @property
    def prompt(self) -> str:
        """What the last request was."""
        return self._tokenizer.decode(list(self._scripted.requests[-1].prompt_token_ids)).strip()

    @property
    def num_computed(self) -> int:
        return len(self._scripted.requests)


@pytest.fixture
def pool() -> Iterator[FairPool]:
    pool = FairPool()
    yield pool
    pool.close()


@asynccontextmanager
async def opened(
    tokenizer: Tokenizer,
    scripted: ScriptedService,
    pool: FairPool,
    source: str = HERMES,
    **options: Any,
) -> AsyncIterator[Desk]:
    kept = KeptHere()
    stored = StoredResponses(
        kept, Secrets(b"s" * 32), pool, max_tenant_bytes=1 << 20, max_tenant_rows=100
    )
    async with serving(tokenizer, scripted, source, stored=stored, **options) as client:
        desk = Desk(client, scripted, tokenizer)
        desk.kept = kept
        yield desk


@pytest.fixture
async def desk(
    tokenizer: Tokenizer, scripted: ScriptedService, pool: FairPool
) -> AsyncIterator[Desk]:
    async with opened(tokenizer, scripted, pool) as desk:
        yield desk


async def test_what_was_answered_is_read_again(desk: Desk) -> None:
    """The same whole, streamed and retrieved, ids and all, as soon as the end is seen."""
    whole = await desk.ask("Hello there.", metadata={"a": "b"})
    assert whole["store"] is True
    assert checked(await desk.client.get(f"{PATH}/{whole['id']}")) == whole
    end = (await desk.stream(f"See. {CALL}", tools=TOOLS))[-1]["response"]
    assert checked(await desk.client.get(f"{PATH}/{end['id']}")) == end


async def test_a_chain_is_the_whole_conversation(desk: Desk) -> None:
    """Turn after turn with calls and results, streamed or not; instructions are of one alone."""
    first = await desk.ask(CALL, input="Q1", instructions="I", tools=TOOLS)
    [call] = first["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    events = await desk.stream("A2.", input=[result], previous_response_id=first["id"], tools=TOOLS)
    second = events[-1]["response"]
    assert second["previous_response_id"] == first["id"]
    told = f"tool:sunny{call['call_id']};"
    assert desk.prompt == f"T:weather user:Q1;assistant:<tool_call>Par is;{told}"
    third = await desk.ask("A3.", input="Q3", previous_response_id=second["id"], store=False)
    assert desk.prompt.endswith(f"{told}assistant:A2.;user:Q3;")
    assert "system" not in desk.prompt
    # A branch: what came after the first is not in it.
    await desk.ask("B2.", input="R", previous_response_id=second["id"])
    assert desk.prompt.endswith("assistant:A2.;user:R;")
    gone_on = await desk.client.post(PATH, json=BODY | {"previous_response_id": third["id"]})
    assert gone_on.status_code == 404


async def test_each_prompt_begins_with_the_one_before(desk: Desk) -> None:
    """And so the cache of prefixes finds all of it."""
    prompts, previous = [], None
    for number in range(5):
        made = await desk.ask(f"A{number}.", input=f"Q{number}", previous_response_id=previous)
        prompts.append(desk.prompt)
        previous = made["id"]
    assert all(later.startswith(before) for before, later in itertools.pairwise(prompts))


async def test_thoughts_are_told_to_templates_that_look(
    tokenizer: Tokenizer, scripted: ScriptedService, pool: FairPool
) -> None:
    """With the turn that they led to."""
    source = (
        "{% for m in messages %}{{ m.role }}:{{ m.reasoning_content }}|{{ m.content }};{% endfor %}"
        "{% if thinks %}<think></think>{% else %}<think>{% endif %}"
    )
    async with opened(tokenizer, scripted, pool, source) as desk:
        first = await desk.ask("So.\n</think>\n\nYes.")
        assert [item["type"] for item in first["output"]] == ["reasoning", "message"]
        await desk.ask("x", previous_response_id=first["id"])
        assert "assistant:So.|Yes.;" in desk.prompt


async def test_what_is_not_to_be_stored_is_not(
    desk: Desk, tokenizer: Tokenizer, scripted: ScriptedService, pool: FairPool
) -> None:
    """It says so, and nobody finds it; the setting decides where a request does not say."""
    for made in (
        await desk.ask("Hi.", store=False),
        (await desk.stream("Hi.", store=False))[-1]["response"],
    ):
        assert made["store"] is False
        assert (await desk.client.get(f"{PATH}/{made['id']}")).status_code == 404
    assert not desk.kept.rows
    async with opened(tokenizer, scripted, pool, stores_unasked=False) as other:
        assert (await other.ask("Hi."))["store"] is False
        assert (await other.ask("Hi.", store=True))["store"] is True
        assert len(other.kept.rows) == 1


async def test_items_are_listed_by_pages(desk: Desk) -> None:
    """What was sent with it, as OpenAI's types have it, the last first unless told."""
    given = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "d"},
    ]
    made = await desk.ask("Hi.", input=given)
    path = f"{PATH}/{made['id']}/input_items"
    listed = (await desk.client.get(path)).json()
    assert [item["type"] for item in listed["data"]] == [
        item.get("type", "message") for item in reversed(given)
    ]
    for item in listed["data"]:
        _ITEM.validate_python(item, strict=True)
    assert not listed["has_more"]
    found: list[Any] = []
    after: dict[str, Any] = {}
    while True:
        page = (await desk.client.get(path, params={"order": "asc", "limit": 2} | after)).json()
        found += page["data"]
        if not page["has_more"]:
            break
        after = {"after": page["last_id"]}
    assert found == listed["data"][::-1]
    for params, param in (
        ({"limit": "0"}, "limit"),
        ({"limit": "101"}, "limit"),
        ({"order": "up"}, "order"),
        ({"include": "x"}, "include"),
    ):
        refused = await desk.client.get(path, params=params)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert (await desk.client.get(path, params={"after": "msg_0"})).status_code == 404


async def test_a_deleted_one_is_gone(desk: Desk) -> None:
    """It says so once, and then there is none; one that went on from it is left."""
    first = await desk.ask("A.")
    second = await desk.ask("B.", previous_response_id=first["id"])
    deleted = await desk.client.delete(f"{PATH}/{first['id']}")
    assert deleted.json() == {"id": first["id"], "object": "response", "deleted": True}
    assert (await desk.client.delete(f"{PATH}/{first['id']}")).status_code == 404
    assert (await desk.client.get(f"{PATH}/{second['id']}")).status_code == 200
    refused = await desk.client.post(PATH, json=BODY | {"previous_response_id": second["id"]})
    assert refused.status_code == 404
    assert refused.json()["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize("name", [NOBODYS, "resp_x", "x", "chatcmpl-1"])
async def test_what_is_not_there_is_not_found(desk: Desk, name: str) -> None:
    """Whatever it is called, and before anything is computed."""
    for method, path in (
        ("GET", f"{PATH}/{name}"),
        ("DELETE", f"{PATH}/{name}"),
        ("POST", f"{PATH}/{name}/cancel"),
        ("GET", f"{PATH}/{name}/input_items"),
    ):
        refused = await desk.client.request(method, path)
        assert refused.status_code == 404, path
        assert refused.json()["error"]["code"] == "response_not_found"
    refused = await desk.client.post(PATH, json=BODY | {"previous_response_id": name})
    assert refused.status_code == 404
    error = refused.json()["error"]
    assert error["param"] == "previous_response_id"
    assert error["code"] == "previous_response_not_found"
    assert not desk.num_computed


async def test_none_can_be_cancelled_or_streamed_again(desk: Desk) -> None:
    """There are none in the background, and it says so."""
    made = await desk.ask("A.")
    cancelled = await desk.client.post(f"{PATH}/{made['id']}/cancel")
    assert cancelled.json()["error"]["code"] == "response_not_cancellable"
    again = await desk.client.get(f"{PATH}/{made['id']}", params={"stream": "true"})
    assert (again.status_code, again.json()["error"]["param"]) == (400, "stream")


async def test_without_its_database_answers_go_on_and_say_so(desk: Desk) -> None:
    """Who asks for storing in so many words is refused once it is known, before any work."""
    first = await desk.ask("A.")
    desk.kept.is_away = True
    assert (await desk.ask("B."))["store"] is False
    assert (await desk.stream("B."))[-1]["response"]["store"] is False
    num_computed = desk.num_computed
    for asked in ({"store": True}, {"previous_response_id": first["id"]}):
        refused = await desk.client.post(PATH, json=BODY | asked)
        assert refused.status_code == 503, refused.text
    assert desk.num_computed == num_computed


async def test_the_end_waits_for_the_store_and_the_text_does_not(
    desk: Desk, tokenizer: Tokenizer
) -> None:
    """All of the text was sent before the response was stored."""
    seen: list[int] = []
    save = desk.kept.save

    async def noted(response: Any) -> bool:
        seen.append(len(frames))
        return await save(response)

    desk.kept.save = noted  # type: ignore[method-assign]
    frames: list[str] = []
    app = desk.client._transport.app  # type: ignore[attr-defined]
    body = b'{"model":"sim","input":"Hi","stream":true}'
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        frames.append(message.get("body", b"").decode())

    desk._scripted.script = steps(tokenizer, "Hello there.", [100], STOP)
    headers = [(b"authorization", b"Bearer test-key")]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("test", 80),
        "scheme": "http",
    }
    await app(scope, receive, send)
    [at] = seen
    assert "response.output_text.done" in "".join(frames[:at])
    assert "response.completed" not in "".join(frames[:at])
    assert "response.completed" in "".join(frames[at:])


async def test_one_that_is_left_is_not_stored(
    desk: Desk, tokenizer: Tokenizer, scripted: ScriptedService
) -> None:
    """A client that goes, or a fault: there is no end that anybody has seen."""
    hello = tuple(tokenizer.encode("Hello", add_special_tokens=False))
    scripted.script = [(hello, None), ((), FinishReason.CANCELLED)]
    # The transport misses the end of what nobody reads any more.
    with contextlib.suppress(AssertionError):
        await desk.client.post(PATH, json=BODY | {"stream": True})
    scripted.script = [(hello, None), ((), FinishReason.ERROR)]
    events = events_of((await desk.client.post(PATH, json=BODY | {"stream": True})).text)
    assert events[-1]["type"] == "response.failed"
    assert not desk.kept.rows


async def test_one_that_was_cut_is_stored_as_it_is(
    desk: Desk, tokenizer: Tokenizer, scripted: ScriptedService
) -> None:
    """It is incomplete, and can be gone on from."""
    scripted.script = steps(tokenizer, "Hello the", [3], FinishReason.LENGTH)
    made = checked(await desk.client.post(PATH, json=BODY))
    assert made["status"] == "incomplete"
    assert made["incomplete_details"] == {"reason": "max_output_tokens"}
    assert checked(await desk.client.get(f"{PATH}/{made['id']}")) == made
    await desk.ask("A.", previous_response_id=made["id"], input="Go on")
    assert "assistant:Hello the;user:Go on;" in desk.prompt


async def test_a_name_that_is_spelled_with_escapes_is_the_same_name(desk: Desk) -> None:
    """What a response goes on from is never passed over."""
    first = await desk.ask("A.", input="Q1")
    body = json.dumps(BODY | {"previous_response_id": first["id"]}).replace("_id", "\\u005fid")
    assert "previous_response_id" not in body
    answer = await desk.client.post(PATH, content=body)
    assert answer.status_code == 200, answer.text
    assert desk.prompt == "user:Q1;assistant:A.;user:Hi;"


async def test_what_is_long_does_not_hold_the_loop(
    desk: Desk, shaped_on_threads: list[Any]
) -> None:
    """A long body is looked through on a thread, and so is a short one behind a long chain."""
    first = await desk.ask("A.", input="word " * 300)
    seen = len(shaped_on_threads)
    long = [{"role": "user", "content": "x", "id": "y" * 70_000}]
    await desk.ask("B.", input=long, previous_response_id=first["id"])
    # Its id is found there, and it is understood there.
    assert len(shaped_on_threads) >= seen + 2
