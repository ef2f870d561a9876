"""What a user of OpenAI's Agents SDK does, printed as one JSON object.

`SLUICE_API` is `responses`, which is its own choice, or `chat`.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any, Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent
from pydantic import BaseModel


class Place(BaseModel):
    """Name a place."""

    city: Literal["Rome", "Oslo"]


set_tracing_disabled(True)
client = AsyncOpenAI(
    base_url=os.environ["SLUICE_BASE_URL"], api_key=os.environ["SLUICE_API_KEY"], max_retries=5
)
apis = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}
model = apis[os.environ["SLUICE_API"]]("sluice-demo", openai_client=client)
exact = ModelSettings(temperature=0, max_tokens=400)
forced = ModelSettings(
    temperature=0, max_tokens=400, tool_choice="required", parallel_tool_calls=False
)
called: list[str] = []


@function_tool
def weather(city: Literal["Rome", "Oslo"]) -> str:
    """Tell the weather in a city."""
    called.append(city)
    return f"Hot in {city}."


def agent(**more: Any) -> Any:
    return Agent(name="one", model=model, **{"model_settings": exact} | more)


async def main() -> dict[str, Any]:
    plain = await Runner.run(agent(), "What is Sluice?")
    running = Runner.run_streamed(agent(), "What is Sluice?")
    pieces = [
        event.data.delta
        async for event in running.stream_events()
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent)
    ]
    # The loop calls the function, sends its result back and is answered in words.
    tools = agent(tools=[weather], model_settings=forced)
    told = await Runner.run(tools, "Weather in Rome?")
    streaming = Runner.run_streamed(tools, "Weather in Rome?")
    kinds = [
        event.item.type
        async for event in streaming.stream_events()
        if event.type == "run_item_stream_event"
    ]
    placed = await Runner.run(agent(output_type=Place), "Weather in Rome?")
    return {
        "plain": plain.final_output,
        "streamed": "".join(pieces),
        "told": told.final_output,
        "called": called,
        "kinds": kinds,
        "placed": placed.final_output.city,
    }


print(json.dumps(asyncio.run(main())))
