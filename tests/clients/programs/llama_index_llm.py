"""What a user of LlamaIndex does, printed as one JSON object."""

from __future__ import annotations

import json
import os
from typing import Any

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike, OpenAILikeResponses

QUESTION = "What is Sluice?"
reached: dict[str, Any] = {
    "model": "sluice-demo",
    "api_base": os.environ["SLUICE_BASE_URL"],
    "api_key": os.environ["SLUICE_API_KEY"],
    "temperature": 0,
    "max_retries": 5,
}
chat = OpenAILike(**reached, is_chat_model=True)
text = OpenAILike(**reached, is_chat_model=False, max_tokens=8)


def raised(call: Any) -> str | None:
    try:
        call()
    except Exception as exc:
        return type(exc).__name__
    return None


turns = [ChatMessage(role="user", content=QUESTION)]
first = chat.chat(turns)
pieces = [piece.delta or "" for piece in chat.stream_chat(turns)]
made = OpenAILikeResponses(**reached)
made_pieces = [piece.delta or "" for piece in made.stream_chat(turns)]
turns += [first.message, ChatMessage(role="user", content="Do I need a GPU?")]
second = chat.chat(turns)
stranger = OpenAILike(**{**reached, "api_key": "sk-nobody"}, is_chat_model=True)

print(
    json.dumps(
        {
            "first": first.message.content,
            "usage": first.raw.usage.to_dict(),
            "num_pieces": len(pieces),
            "streamed": "".join(pieces),
            "made": made.chat(turns[:1]).message.content,
            "made_streamed": "".join(made_pieces),
            "second": second.message.content,
            "second_usage": second.raw.usage.to_dict(),
            "completed": chat.complete(QUESTION).text,
            "text": text.complete("Sluice is").text,
            "text_streamed": "".join(p.delta or "" for p in text.stream_complete("Sluice is")),
            "too_long": raised(lambda: chat.chat(turns, max_tokens=1_000_000)),
            "nobody": raised(lambda: stranger.chat(turns)),
        }
    )
)
