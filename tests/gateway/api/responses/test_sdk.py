"""OpenAI's SDK for Python as a client of responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from engine.text import Tokenizer
from gateway.credentials import Secrets
from gateway.services.fair_pool import FairPool
from gateway.services.inference.models import ServedModel
from gateway.services.responses import StoredResponses
from scheduler.request import FinishReason
from tests.gateway.api.conftest import KEY, MODEL, open_client
from tests.gateway.api.openai.test_tools import CALL, HERMES, THINKING, steps
from tests.gateway.api.responses.kept_here import KeptHere
from tests.gateway.api.responses.serving import serving
from tests.gateway.api.scripted_service import ScriptedService

pytestmark = pytest.mark.anyio

TOOLS: Any = [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]


class Answer(BaseModel):
    sure: bool


@pytest.fixture
def stored() -> Iterator[StoredResponses]:
    pool = FairPool()
    bounds = {"max_tenant_bytes": 1 << 20, "max_tenant_rows": 100}
    yield StoredResponses(KeptHere(), Secrets(b"s" * 32), pool, **bounds)
    pool.close()


def sdk(client: httpx.AsyncClient) -> AsyncOpenAI:
    return AsyncOpenAI(base_url="http://test/v1", api_key=KEY, http_client=client, max_retries=0)


@pytest.fixture
async def demo_sdk(demo: ServedModel, stored: StoredResponses) -> AsyncIterator[AsyncOpenAI]:
    async with open_client(demo, stored=stored) as client:
        yield sdk(client)


async def test_create_stream_retrieve_delete(demo_sdk: AsyncOpenAI) -> None:
    """The final response of a stream is that of `create`, and what is retrieved is what it was."""
    asked: Any = {"model": "demo", "input": "What is Sluice?", "temperature": 0}
    whole = await demo_sdk.responses.create(**asked)
    assert "gateway" in whole.output_text
    async with demo_sdk.responses.stream(**asked) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert final.output_text == whole.output_text
    again = await demo_sdk.responses.retrieve(final.id)
    assert (again.output_text, again.output[0].id) == (final.output_text, final.output[0].id)
    next_ = await demo_sdk.responses.create(
        model="demo", input="Why?", previous_response_id=final.id, max_output_tokens=4
    )
    assert next_.status == "incomplete"
    assert next_.incomplete_details is not None
    assert next_.incomplete_details.reason == "max_output_tokens"
    items = [item async for item in demo_sdk.responses.input_items.list(final.id)]
    assert [item.type for item in items] == ["message"]
    await demo_sdk.responses.delete(final.id)
    with pytest.raises(openai.NotFoundError):
        await demo_sdk.responses.retrieve(final.id)
    with pytest.raises(openai.NotFoundError):
        await demo_sdk.responses.create(model="demo", input="Why?", previous_response_id=final.id)
    with pytest.raises(openai.BadRequestError, match="background"):
        await demo_sdk.responses.cancel(next_.id)


async def test_parse(demo_sdk: AsyncOpenAI) -> None:
    """An answer of a form is an object of the class that asked for it."""
    parsed = await demo_sdk.responses.parse(
        model="demo", input="Are you?", text_format=Answer, temperature=0, max_output_tokens=600
    )
    assert isinstance(parsed.output_parsed, Answer)
    assert parsed.text is not None
    assert parsed.text.format is not None
    assert parsed.text.format.type == "json_schema"


async def test_tools_in_a_loop(
    tokenizer: Tokenizer, scripted: ScriptedService, stored: StoredResponses
) -> None:
    """A call is streamed, its result sent back, and the answer goes on from it."""
    async with serving(tokenizer, scripted, HERMES, stored=stored) as http:
        client = sdk(http)
        scripted.script = steps(tokenizer, "Let me see. " + CALL, [2], FinishReason.STOP)
        async with client.responses.stream(model=MODEL, input="Hi", tools=TOOLS) as stream:
            parts = [
                event.delta
                async for event in stream
                if event.type == "response.function_call_arguments.delta"
            ]
            first = await stream.get_final_response()
        [call] = [item for item in first.output if item.type == "function_call"]
        assert "".join(parts) == call.arguments
        assert call.name == "weather"
        scripted.script = steps(tokenizer, "It is sunny.", [2], FinishReason.STOP)
        last = await client.responses.create(
            model=MODEL,
            previous_response_id=first.id,
            tools=TOOLS,
            input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}],
        )
        assert last.output_text == "It is sunny."
        # Or without a store: what came is sent back as it came.
        given: list[Any] = [{"role": "user", "content": "Hi"}]
        given += [item.to_dict() for item in first.output]
        given += [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
        scripted.script = steps(tokenizer, "It is.", [2], FinishReason.STOP)
        last = await client.responses.create(model=MODEL, input=given, tools=TOOLS, store=False)
        assert last.output_text == "It is."
        prompts = [tokenizer.decode(list(r.prompt_token_ids)) for r in scripted.requests[-2:]]
        assert prompts[0] == prompts[1]


async def test_thinking(
    tokenizer: Tokenizer, scripted: ScriptedService, stored: StoredResponses
) -> None:
    """It is an item of its own, streamed and whole."""
    async with serving(tokenizer, scripted, THINKING, stored=stored) as http:
        scripted.script = steps(tokenizer, "So.\n</think>\n\nYes.", [2], FinishReason.STOP)
        async with sdk(http).responses.stream(model=MODEL, input="Hi") as stream:
            thought = [
                event.delta
                async for event in stream
                if event.type == "response.reasoning_text.delta"
            ]
            final = await stream.get_final_response()
    assert "".join(thought) == "So."
    assert [item.type for item in final.output] == ["reasoning", "message"]
    assert final.output_text == "Yes."
    assert final.usage is not None
    assert final.usage.output_tokens_details.reasoning_tokens > 0
