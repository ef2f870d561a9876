"""Messages, streams, counts, errors and batches through Anthropic's SDK, held to its types."""

import json
import os
import time
from itertools import islice

import anthropic
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from anthropic.types.messages import MessageBatch, MessageBatchIndividualResponse
from pydantic import BaseModel, TypeAdapter

BASE = os.environ["SLUICE_BASE_URL"].removesuffix("/v1")
KEY = os.environ["SLUICE_API_KEY"]
OURS = {"x_stop_cause", "x_paused_for", "x_paused_because"}
ASK = {
    "model": "sluice-demo",
    "max_tokens": 40,
    "messages": [{"role": "user", "content": "What is Sluice?"}],
}


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
        return {
            "class": type(exc).__name__,
            "status": exc.status_code,
            "type": exc.body["error"]["type"],
            "message": exc.body["error"]["message"],
            "has_id": exc.request_id is not None and exc.request_id == exc.body["request_id"],
        }
    return None


def streamed(client, **ask):
    with client.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    return text, final


client = anthropic.Anthropic(base_url=BASE, api_key=KEY, max_retries=5)
seen = {}

raw = client.messages.with_raw_response.create(**ASK, extra_body={"temperature": 0})
whole = strict(Message, raw.text())
seen["request_id"] = raw.headers["request-id"] == raw.headers["x-request-id"]
seen["whole"], seen["stop"] = whole.content[0].text, whole.stop_reason
seen["output_tokens"] = whole.usage.output_tokens

text, final = streamed(client, **ASK, extra_body={"temperature": 0})
seen["streamed"], seen["final"] = text, final.content[0].text
seen["final_stop"], seen["final_tokens"] = final.stop_reason, final.usage.output_tokens

events = []
with client.messages.with_streaming_response.create(**ASK, stream=True) as response:
    for line in response.iter_lines():
        if line.startswith("data: "):
            events.append(strict(RawMessageStreamEvent, line.removeprefix("data: ")).type)
seen["events"] = [one for at, one in enumerate(events) if at == 0 or events[at - 1] != one]

stop = seen["whole"][10:14]
ended = client.messages.create(**ASK, stop_sequences=[stop], extra_body={"temperature": 0})
seen["stop_sequence"] = ended.stop_reason == "stop_sequence" and ended.stop_sequence == stop

first = " ".join(seen["whole"].split()[:2])
turns = [*ASK["messages"], {"role": "assistant", "content": first}]
rest = client.messages.create(**ASK | {"messages": turns}, extra_body={"temperature": 0})
seen["gone_on"] = (first + rest.content[0].text)[:30] == seen["whole"][:30]

asked = {name: value for name, value in ASK.items() if name != "max_tokens"}
counted = client.messages.with_raw_response.count_tokens(**asked, system="Be brief.")
seen["counted"] = strict(MessageTokensCount, counted.text()).input_tokens
used = client.messages.create(**ASK, system="Be brief.").usage
seen["billed"] = used.input_tokens + used.cache_read_input_tokens

older = anthropic.Anthropic(
    base_url=BASE,
    api_key="",
    max_retries=5,
    default_headers={
        "x-api-key": KEY,
        "authorization": "",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "some-beta-2030-01-01",
    },
)
seen["older"] = bool(older.messages.create(**ASK).content)
nobody = anthropic.Anthropic(base_url=BASE, api_key="sluice_live_nobody", max_retries=5)
seen["nobody"] = failure(lambda: nobody.messages.create(**ASK))
seen["no_model"] = failure(lambda: client.messages.create(**ASK | {"model": "gpt-9"}))
seen["no_batch"] = failure(lambda: client.messages.batches.retrieve("msgbatch_nothing"))
seen["bad"] = failure(lambda: client.messages.create(**ASK, extra_body={"top_k": -7}))

batches = client.messages.batches
requests = [{"custom_id": f"r{n}", "params": ASK} for n in range(3)]
requests[1]["params"] = ASK | {"top_k": -7}
made = strict(MessageBatch, batches.with_raw_response.create(requests=requests).text())
seen["made"] = made.processing_status
until = time.monotonic() + 60
while made.processing_status != "ended" and time.monotonic() < until:
    time.sleep(0.1)
    made = strict(MessageBatch, batches.with_raw_response.retrieve(made.id).text())
results = list(batches.results(made.id))
for result in results:
    strict(MessageBatchIndividualResponse, result.to_json())
seen["results"] = sorted((each.custom_id, each.result.type) for each in results)
more = [batches.create(requests=requests[:1]).id for _ in range(2)]
seen["cancelled"] = batches.cancel(more[0]).processing_status in ("canceling", "ended")
listed = [each.id for each in islice(batches.list(limit=1), 3)]
seen["listed"] = listed == [more[1], more[0], made.id]
seen["deleted"] = batches.delete(made.id).type
print(json.dumps(seen))
