"""Hold every answer and event of OpenAI's paths to the SDK's own types, which take anything.

Printed is one JSON object: how many documents each type was held to, and which fields beside
OpenAI's each had.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from typing import Any

import openai
from openai.pagination import SyncCursorPage, SyncPage
from openai.types import (
    Batch,
    Completion,
    FileDeleted,
    FileObject,
    Model,
)
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

client = openai.OpenAI(
    base_url=os.environ["SLUICE_BASE_URL"], api_key=os.environ["SLUICE_API_KEY"], max_retries=5
)
chats, texts = client.chat.completions, client.completions
turns: list[Any] = [{"role": "user", "content": "What is Sluice?"}]
schema = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
num_held: dict[str, int] = defaultdict(int)
extra: dict[str, set[str]] = defaultdict(set)


def hold(kind: Any, data: str, name: str) -> Any:
    checked = kind.model_validate_json(data, strict=True)
    num_held[name] += 1
    extra[name] |= extras(checked)
    return checked


def extras(value: Any) -> set[str]:
    found: set[str] = set()
    if isinstance(value, BaseModel):
        found |= set(value.model_extra or ())
        value = list(vars(value).values())
    if isinstance(value, list):
        for each in value:
            found |= extras(each)
    return found


def whole(kind: Any, name: str, call: Any, **asked: Any) -> Any:
    return hold(kind, call.with_raw_response.create(**asked).text, name)


def events(kind: Any, name: str, call: Any, **asked: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": asked.pop("running", False)}
    with call.with_streaming_response.create(
        **asked, stream=True, stream_options=options
    ) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                data = line.removeprefix("data: ")
                if kind is Completion:
                    # Null until the end, as OpenAI's own are, which their type does not know.
                    data = data.replace('"finish_reason":null', '"finish_reason":"stop"')
                hold(kind, data, name)


chat: dict[str, Any] = {"model": "sluice-demo", "messages": turns, "max_tokens": 24}
scored = {"logprobs": True, "top_logprobs": 3}
forced = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
for more in (
    {},
    {"n": 2, "stop": ["gateway"]},
    scored,
    forced | {"max_tokens": 300, "temperature": 0},
    forced | scored | {"max_tokens": 90},
    {"response_format": form, "max_tokens": 300, "temperature": 0},
    {"tools": tools, "service_tier": "flex"},
):
    asked = chat | more
    whole(ChatCompletion, "chat", chats, **asked)
    events(ChatCompletionChunk, "chunk", chats, **asked)
events(ChatCompletionChunk, "chunk", chats, **chat, running=True)

text: dict[str, Any] = {"model": "sluice-demo", "prompt": ["Sluice is", "It"], "max_tokens": 8}
for more in ({}, {"n": 2, "best_of": 2, "logprobs": 3}, {"echo": True, "stop": "."}):
    whole(Completion, "text", texts, **text, **more)
    if "best_of" not in more:
        events(Completion, "text", texts, **text, **more)

event: Any = TypeAdapter(ResponseStreamEvent)
asked_for: Any = {"model": "sluice-demo", "input": "What is Sluice?", "max_output_tokens": 24}
function = {"type": "function", "name": "weather", "parameters": schema, "strict": True}
calls = {"tools": [function], "tool_choice": "required", "parallel_tool_calls": False}
exact = {"max_output_tokens": 300, "temperature": 0}
for more in (
    {},
    {"include": ["message.output_text.logprobs"], "top_logprobs": 3},
    calls | exact,
    {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}} | exact,
):
    asked = asked_for | more
    whole(Response, "response", client.responses, **asked)
    with client.responses.with_streaming_response.create(**asked, stream=True) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                checked = event.validate_json(line.removeprefix("data: "), strict=True)
                num_held["event"] += 1
                extra["event"] |= extras(checked)

raw = client.models.with_raw_response.list()
hold(SyncPage[Model], raw.text, "models")
hold(Model, client.models.with_raw_response.retrieve("sluice-demo").text, "model")

line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": chat}
given = ("lines.jsonl", (json.dumps(line) + "\n").encode())
files = client.files.with_raw_response
uploaded = hold(FileObject, files.create(file=given, purpose="batch").text, "file")
hold(FileObject, files.retrieve(uploaded.id).text, "file")
hold(SyncCursorPage[FileObject], files.list().text, "files")
batches = client.batches.with_raw_response
batch = hold(
    Batch,
    batches.create(
        input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h"
    ).text,
    "batch",
)
until = time.monotonic() + 60
while batch.status != "completed" and time.monotonic() < until:
    time.sleep(0.1)
    batch = hold(Batch, batches.retrieve(batch.id).text, "batch")
hold(SyncCursorPage[Batch], batches.list().text, "batches")
output = client.files.content(batch.output_file_id).text
answered = json.loads(output.splitlines()[0])["response"]["body"]
hold(ChatCompletion, json.dumps(answered), "chat")
hold(FileDeleted, files.delete(uploaded.id).text, "deleted")

print(json.dumps({"held": num_held, "extra": {name: sorted(some) for name, some in extra.items()}}))
