"""Tools, their results and schemas through Anthropic's SDK, held to its types."""

import json
import os
import time
from typing import Literal

import anthropic
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from anthropic.types.messages import MessageBatchIndividualResponse
from pydantic import BaseModel, TypeAdapter

# Beside Anthropic's: docs/messages.md names them.
OURS = {"x_stop_cause", "x_input_text"}


class Weather(BaseModel):
    city: Literal["Rome", "Oslo"]


SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [{"name": name, "description": "", "input_schema": SCHEMA} for name in ("weather", "time")]
ASK = {
    "model": "sluice-demo",
    "max_tokens": 400,
    "messages": [{"role": "user", "content": "Weather in Rome?"}],
}
EXACT = {"extra_body": {"temperature": 0}}
FORCED = {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "weather"}}


def strict(kind, data):
    """Validate JSON against the SDK's own types, which by themselves take anything."""
    checked = TypeAdapter(kind).validate_json(data, strict=True)
    for extra in extras(checked):
        assert extra in OURS, extra
    return checked


def extras(value):
    if isinstance(value, BaseModel):
        yield from value.model_extra or ()
        value = list(vars(value).values())
    if isinstance(value, list):
        for each in value:
            yield from extras(each)


def failure(call):
    try:
        call()
    except anthropic.APIStatusError as exc:
        return [exc.status_code, exc.body["error"]["message"]]
    return None


base = os.environ["SLUICE_BASE_URL"].removesuffix("/v1")
client = anthropic.Anthropic(base_url=base, api_key=os.environ["SLUICE_API_KEY"], max_retries=5)
seen = {}

raw = client.messages.with_raw_response.create(**ASK, **FORCED, **EXACT)
first = strict(Message, raw.text())
[call] = first.content
seen["call"] = [call.type, call.name, call.input["city"] in ("Rome", "Oslo")]
seen["stop"] = first.stop_reason

events = []
with client.messages.with_streaming_response.create(
    **ASK, **FORCED, **EXACT, stream=True
) as response:
    for line in response.iter_lines():
        if line.startswith("data: "):
            events.append(strict(RawMessageStreamEvent, line.removeprefix("data: ")).type)
seen["events"] = [one for at, one in enumerate(events) if at == 0 or events[at - 1] != one]

with client.messages.stream(**ASK, **FORCED, **EXACT) as stream:
    final = stream.get_final_message()
seen["streamed"] = [final.content[0].input == call.input, final.stop_reason]

choice = {"type": "any", "disable_parallel_tool_use": True}
any_call = client.messages.create(**ASK, tools=TOOLS, tool_choice=choice, **EXACT)
seen["any"] = [len(any_call.content), any_call.stop_reason]

result = {"type": "tool_result", "tool_use_id": call.id, "content": "Hot."}
thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
turns = [
    *ASK["messages"],
    first.to_param(),
    {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]},
    {"role": "assistant", "content": [thought, {"type": "text", "text": "Well."}]},
    {"role": "user", "content": "Go on."},
]
told = ASK | {"messages": turns, "max_tokens": 30}
second = client.messages.create(**told, tools=TOOLS, **EXACT)
seen["second"] = second.content[0].type
asked = {name: value for name, value in told.items() if name != "max_tokens"}
counted = client.messages.with_raw_response.count_tokens(**asked, tools=TOOLS)
used = second.usage.input_tokens + second.usage.cache_read_input_tokens
seen["counted"] = strict(MessageTokensCount, counted.text()).input_tokens == used

parsed = client.messages.parse(**ASK, output_format=Weather, **EXACT)
seen["parsed"] = parsed.parsed_output.city
thinking = client.messages.with_raw_response.create(
    **ASK | {"max_tokens": 2000}, thinking={"type": "enabled", "budget_tokens": 1024}
)
seen["thinking"] = [thinking.headers.get("x-sluice-ignored"), thinking.parse().type]
search = {"type": "web_search_20250305", "name": "web_search"}
seen["server_tool"] = failure(lambda: client.messages.create(**ASK, tools=[search]))
cut = client.messages.with_raw_response.create(**ASK | {"max_tokens": 60}, **FORCED, **EXACT)
cut = strict(Message, cut.text())
seen["cut"] = [cut.stop_reason, cut.content[0].type]

# What the SDK keeps apart as beta goes to the same path.
beta = client.beta.messages.create(**ASK, **FORCED, **EXACT, betas=["some-beta-2030-01-01"])
seen["beta"] = [beta.content[0].name, beta.stop_reason]

batches = client.messages.batches
params = ASK | FORCED
made = batches.create(requests=[{"custom_id": "r", "params": params}])
until = time.monotonic() + 60
while made.processing_status != "ended" and time.monotonic() < until:
    time.sleep(0.1)
    made = batches.retrieve(made.id)
[item] = batches.results(made.id)
strict(MessageBatchIndividualResponse, item.to_json())
seen["item"] = [item.result.type, item.result.message.content[0].type]
print(json.dumps(seen))
