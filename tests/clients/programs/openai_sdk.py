"""What a user of OpenAI's Python SDK does, printed as one JSON object."""

from __future__ import annotations

import json
import os
from typing import Any

import openai

QUESTION: Any = [{"role": "user", "content": "What is Sluice?"}]
client = openai.OpenAI(
    base_url=os.environ["SLUICE_BASE_URL"], api_key=os.environ["SLUICE_API_KEY"], max_retries=5
)
model = client.models.list().data[0].id


def ask(**more: Any) -> Any:
    return client.chat.completions.create(model=model, messages=QUESTION, temperature=0, **more)


def raised(call: Any) -> dict[str, Any]:
    """Name the SDK's own exception, with what it read of our error."""
    try:
        call()
    except openai.APIStatusError as exc:
        return {"class": type(exc).__name__, "code": exc.code, "param": exc.param}
    return {"class": None}


whole = ask()
chunks = list(ask(stream=True, stream_options={"include_usage": True}))
scored = ask(logprobs=True, top_logprobs=2, max_tokens=3)
text = client.completions.create(model=model, prompt="Sluice is", max_tokens=8, temperature=0)
asked: Any = {"model": model, "input": "What is Sluice?", "temperature": 0}
made = client.responses.create(**asked)
with client.responses.stream(**asked) as stream:
    kinds = [event.type for event in stream]
    final = stream.get_final_response()
then = client.responses.create(**asked, previous_response_id=final.id)
kept = client.responses.retrieve(final.id)
client.responses.delete(final.id)
stranger = client.with_options(api_key="sk-nobody")

print(
    json.dumps(
        {
            "model": model,
            "whole": whole.choices[0].message.content,
            "usage": whole.usage.to_dict(),
            "streamed": "".join(c.choices[0].delta.content or "" for c in chunks if c.choices),
            "streamed_usage": chunks[-1].usage.to_dict(),
            "finish": whole.choices[0].finish_reason,
            "logprobs": [len(one.top_logprobs) for one in scored.choices[0].logprobs.content],
            "text": text.choices[0].text,
            "made": made.output_text,
            "made_streamed": final.output_text,
            "made_kept": kept.output_text,
            "made_events": [kinds[0], kinds[-1]],
            "made_then": [then.previous_response_id == final.id, then.usage.input_tokens],
            "made_usage": final.usage.to_dict(),
            "made_gone": raised(lambda: client.responses.retrieve(final.id)),
            "nobody": raised(lambda: stranger.models.list()),
            "no_model": raised(
                lambda: client.chat.completions.create(model="gpt-none", messages=QUESTION)
            ),
            "too_long": raised(lambda: ask(max_tokens=1_000_000)),
            "bad": raised(lambda: ask(n=99)),
        }
    )
)
