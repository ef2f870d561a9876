"""What a user of LiteLLM's library does, printed as one JSON object."""

from __future__ import annotations

import json
import os
from typing import Any

import litellm

litellm.num_retries = 0
reached: dict[str, Any] = {
    "model": "openai/sluice-demo",
    "api_base": os.environ["SLUICE_BASE_URL"],
    "api_key": os.environ["SLUICE_API_KEY"],
    "temperature": 0,
}
turns: list[Any] = [{"role": "user", "content": "What is Sluice?"}]


def raised(**changed: Any) -> str | None:
    try:
        litellm.completion(**{**reached, "messages": turns, **changed})
    except Exception as exc:
        return type(exc).__name__
    return None


first = litellm.completion(**reached, messages=turns)
chunks = list(
    litellm.completion(
        **reached, messages=turns, stream=True, stream_options={"include_usage": True}
    )
)
rebuilt = litellm.stream_chunk_builder(chunks, messages=turns)
# The message goes back as LiteLLM gives it, with fields that are LiteLLM's alone.
turns += [first.choices[0].message.model_dump(), {"role": "user", "content": "Do I need a GPU?"}]
second = litellm.completion(**reached, messages=turns)
# The same over responses.
made: Any = litellm.responses(**reached, input="What is Sluice?")
made_streamed = "".join(
    event.delta
    for event in litellm.responses(**reached, input="What is Sluice?", stream=True)
    if event.type == "response.output_text.delta"
)

print(
    json.dumps(
        {
            "first": first.choices[0].message.content,
            "usage": first.usage.model_dump(),
            "streamed": rebuilt.choices[0].message.content,
            "streamed_usage": rebuilt.usage.model_dump(),
            "sent_back": sorted(turns[1]),
            "second": second.choices[0].message.content,
            "second_usage": second.usage.model_dump(),
            "made": made.output_text,
            "made_streamed": made_streamed,
            "too_long": raised(max_tokens=1_000_000),
            "long_prompt": raised(messages=[{"role": "user", "content": "word " * 20_000}]),
            "no_model": raised(model="openai/gpt-none"),
            "nobody": raised(api_key="sk-nobody"),
            "bad": raised(n=99),
        }
    )
)
