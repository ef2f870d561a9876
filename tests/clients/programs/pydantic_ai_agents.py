"""What a user of Pydantic AI does, printed as one JSON object.

`SLUICE_API` is `chat` or `responses`.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class Place(BaseModel):
    """Name a place."""

    city: Literal["Rome", "Oslo"]


provider = OpenAIProvider(
    base_url=os.environ["SLUICE_BASE_URL"], api_key=os.environ["SLUICE_API_KEY"]
)
apis: Any = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}
model = apis[os.environ["SLUICE_API"]]("sluice-demo", provider=provider)
settings: Any = {"temperature": 0, "max_tokens": 400, "parallel_tool_calls": False}
ASKED = "What is Sluice?"


async def main() -> dict[str, Any]:
    plain: Any = Agent(model, model_settings=settings)
    whole = await plain.run(ASKED)
    async with plain.run_stream(ASKED) as result:
        streamed = [text async for text in result.stream_text(delta=True)]
    # Its own tool for outputs, which is forced.
    by_tool: Any = Agent(model, output_type=ToolOutput(Place), model_settings=settings)
    called = await by_tool.run("Weather in Rome?")
    async with by_tool.run_stream("Weather in Rome?") as result:
        streamed_call = await result.get_output()
    by_schema: Any = Agent(model, output_type=NativeOutput(Place), model_settings=settings)
    placed = await by_schema.run("Weather in Rome?")
    # A history with a call and its result, and the tool at hand.
    telling: Any = Agent(model, model_settings=settings)

    @telling.tool_plain
    def weather(city: str) -> str:
        return f"Hot in {city}."

    history = [
        ModelRequest(parts=[UserPromptPart("Weather in Rome?")]),
        ModelResponse(parts=[ToolCallPart("weather", {"city": "Rome"}, "call_1")]),
        ModelRequest(parts=[ToolReturnPart("weather", "Hot.", "call_1")]),
    ]
    told = await telling.run("And in Oslo?", message_history=history)
    return {
        "whole": whole.output,
        "streamed": "".join(streamed),
        "output_tokens": whole.usage.output_tokens,
        "called": called.output.city,
        "streamed_call": streamed_call.city,
        "placed": placed.output.city,
        "told": told.output,
    }


print(json.dumps(asyncio.run(main())))
