"""What a user of LangChain does, printed as one JSON object."""

from __future__ import annotations

import json
import os
from typing import Any

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI

QUESTION = "What is Sluice?"
reached: dict[str, Any] = {
    "model": "sluice-demo",
    "base_url": os.environ["SLUICE_BASE_URL"],
    "api_key": os.environ["SLUICE_API_KEY"],
    "temperature": 0,
    "max_retries": 5,
}
chat = ChatOpenAI(**reached)
chain = ChatPromptTemplate.from_messages([("user", "{question}")]) | chat | StrOutputParser()


def raised(call: Any) -> str | None:
    try:
        call()
    except Exception as exc:
        return type(exc).__name__
    return None


first = chat.invoke([HumanMessage(QUESTION)])
chunks = list(chat.stream(QUESTION, stream_usage=True))
gathered = chunks[0]
for chunk in chunks[1:]:
    gathered += chunk
history = [SystemMessage("Be brief."), HumanMessage(QUESTION), first]
second = chat.invoke([*history, HumanMessage("Do I need a GPU?")])

print(
    json.dumps(
        {
            "first": first.content,
            "usage": first.usage_metadata,
            "finish": first.response_metadata["finish_reason"],
            "num_chunks": len(chunks),
            "streamed": gathered.content,
            "streamed_usage": gathered.usage_metadata,
            "second": second.content,
            "second_usage": second.usage_metadata,
            "chained": chain.batch([{"question": QUESTION}, {"question": "Do I need a GPU?"}]),
            "text": OpenAI(**reached, max_tokens=8).invoke("Sluice is"),
            "too_long": raised(lambda: chat.invoke("word " * 20_000)),
            "too_much": raised(lambda: chat.invoke(QUESTION, max_tokens=1_000_000)),
            "nobody": raised(
                lambda: ChatOpenAI(**{**reached, "api_key": "sk-nobody"}).invoke(QUESTION)
            ),
        }
    )
)
