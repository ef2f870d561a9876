"""What a user of OpenAI's SDK does with tools and schemas, printed as one JSON object.

Every answer and every chunk is held to the SDK's own types, which by themselves take anything.
"""

from __future__ import annotations

import json
import os
from typing import Any, Literal

import openai
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel, ConfigDict

# Beside OpenAI's: docs/api.md names them.
OURS = {"x_stop_cause", "reasoning_content", "reasoning"}


class Weather(BaseModel):
    """Tell the weather in a city."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Rome", "Oslo"]


client = openai.OpenAI(
    base_url=os.environ["SLUICE_BASE_URL"], api_key=os.environ["SLUICE_API_KEY"], max_retries=5
)
tool = openai.pydantic_function_tool(Weather, name="weather")
named = {"type": "function", "function": {"name": "weather"}}
turns: list[Any] = [{"role": "user", "content": "Weather in Rome?"}]
reached: dict[str, Any] = {"model": "sluice-demo", "temperature": 0, "max_tokens": 400}


def extras(value: Any) -> set[str]:
    """Name the fields that the SDK's types do not have."""
    found: set[str] = set()
    if isinstance(value, BaseModel):
        found |= set(value.model_extra or ())
        value = list(vars(value).values())
    if isinstance(value, list):
        for each in value:
            found |= extras(each)
    return found


def strict(kind: Any, data: str) -> Any:
    checked = kind.model_validate(json.loads(data), strict=True)
    assert extras(checked) <= OURS, extras(checked)
    return checked


def ask(**more: Any) -> Any:
    asked = {**reached, "messages": turns, **more}
    raw = client.chat.completions.with_raw_response.create(**asked)
    return strict(ChatCompletion, raw.text).choices[0]


def streamed(**more: Any) -> tuple[str, str]:
    """Put a streamed call together, each chunk held to its type; return its end too."""
    asked = {**reached, "messages": turns, "stream": True, **more}
    arguments, reason = "", ""
    with client.chat.completions.with_streaming_response.create(**asked) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            for choice in strict(ChatCompletionChunk, line.removeprefix("data: ")).choices:
                reason = choice.finish_reason or reason
                for call in choice.delta.tool_calls or []:
                    arguments += call.function.arguments
    return arguments, reason


first = ask(tools=[tool], tool_choice="required", parallel_tool_calls=False)
[call] = first.message.tool_calls
by_name = ask(tools=[tool], tool_choice=named)
arguments, reason = streamed(tools=[tool], tool_choice="required", parallel_tool_calls=False)
with client.chat.completions.stream(
    **reached, messages=turns, tools=[tool], tool_choice=named
) as stream:
    [gathered] = stream.get_final_completion().choices[0].message.tool_calls
turns += [
    first.message.to_dict(),
    {"role": "tool", "tool_call_id": call.id, "content": "Hot."},
]
second = ask(tools=[tool])
without = ask()
parsed = client.chat.completions.parse(
    **reached, messages=turns[:1], response_format=Weather
).choices[0]
with_tools = client.chat.completions.parse(
    **reached, messages=turns[:1], tools=[tool], tool_choice="required", parallel_tool_calls=False
).choices[0]
any_object = ask(messages=turns[:1], response_format={"type": "json_object"}, max_tokens=900)

# The same over responses: a call, its result behind it, and a model of one's own.
function = {"type": "function", "name": "weather", **tool["function"], "strict": True}
reached = {"model": "sluice-demo", "temperature": 0, "max_output_tokens": 400}
made = client.responses.create(
    **reached, input="Weather in Rome?", tools=[function], tool_choice="required"
)
[made_call] = [item for item in made.output if item.type == "function_call"]
result = {"type": "function_call_output", "call_id": made_call.call_id, "output": "Hot."}
made_told = client.responses.create(**reached, input=[result], previous_response_id=made.id)
made_parsed = client.responses.parse(**reached, input="Weather in Rome?", text_format=Weather)

print(
    json.dumps(
        {
            "made_call": Weather.model_validate_json(made_call.arguments).city,
            "made_told": made_told.output_text,
            "made_parsed": made_parsed.output_parsed.city,
            "name": call.function.name,
            "city": json.loads(call.function.arguments)["city"],
            "finish": first.finish_reason,
            "content": first.message.content,
            "by_name": [by_name.message.tool_calls[0].function.name, by_name.finish_reason],
            "streamed": [arguments == call.function.arguments, reason],
            "gathered": gathered.function.parsed_arguments.city,
            "second": second.message.content,
            "without": without.message.content,
            "parsed": parsed.message.parsed.city,
            "parsed_call": with_tools.message.tool_calls[0].function.parsed_arguments.city,
            "any_object": any_object.finish_reason,
        }
    )
)
