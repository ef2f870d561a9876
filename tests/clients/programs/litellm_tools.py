"""What a user of LiteLLM's library does with tools and schemas, printed as one JSON object."""

from __future__ import annotations

import json
import os
from typing import Any, Literal

import litellm
from pydantic import BaseModel, ConfigDict


class Place(BaseModel):
    """Name a place."""

    # Where a schema leaves room for more, this model fills it.
    model_config = ConfigDict(extra="forbid")
    city: Literal["Rome", "Oslo"]


litellm.num_retries = 0
reached: dict[str, Any] = {
    "model": "openai/sluice-demo",
    "api_base": os.environ["SLUICE_BASE_URL"],
    "api_key": os.environ["SLUICE_API_KEY"],
    "temperature": 0,
    "max_tokens": 400,
}
schema = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
tools = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
turns: list[Any] = [{"role": "user", "content": "Weather in Rome?"}]
asked = {"messages": turns, "tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
first = litellm.completion(**reached, **asked).choices[0]
[call] = first.message.tool_calls
chunks = list(litellm.completion(**reached, **asked, stream=True))
rebuilt = litellm.stream_chunk_builder(chunks, messages=turns).choices[0]
# The message goes back as LiteLLM gives it, with fields that are LiteLLM's alone.
told = [
    *turns,
    first.message.model_dump(),
    {"role": "tool", "tool_call_id": call.id, "content": "Hot."},
]
second = litellm.completion(**reached, messages=told, tools=tools)
placed = litellm.completion(**reached, messages=turns, response_format=Place)
# The same server by its Messages API.
message = litellm.completion(
    **{
        **reached,
        "model": "anthropic/sluice-demo",
        "api_base": os.environ["SLUICE_BASE_URL"].removesuffix("/v1"),
    },
    **asked,
).choices[0]

print(
    json.dumps(
        {
            "name": call.function.name,
            "city": json.loads(call.function.arguments)["city"],
            "finish": first.finish_reason,
            "streamed": [
                rebuilt.message.tool_calls[0].function.arguments == call.function.arguments,
                rebuilt.finish_reason,
            ],
            "second": second.choices[0].message.content,
            "placed": Place.model_validate_json(placed.choices[0].message.content).city,
            "by_messages": [message.message.tool_calls[0].function.name, message.finish_reason],
        }
    )
)
