"""What a user of LlamaIndex does with tools and schemas, printed as one JSON object."""

from __future__ import annotations

import json
import os
from typing import Any, Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, ConfigDict


class Place(BaseModel):
    """Name a place."""

    # Where a schema leaves room for more, this model fills it.
    model_config = ConfigDict(extra="forbid")
    city: Literal["Rome", "Oslo"]


def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"Hot in {city}."


chat = OpenAILike(
    model="sluice-demo",
    api_base=os.environ["SLUICE_BASE_URL"],
    api_key=os.environ["SLUICE_API_KEY"],
    temperature=0,
    max_tokens=400,
    max_retries=5,
    is_chat_model=True,
    is_function_calling_model=True,
    should_use_structured_outputs=True,
)
tool = FunctionTool.from_defaults(weather, fn_schema=Place)
question = ChatMessage(role="user", content="Weather in Rome?")
first = chat.chat_with_tools([tool], chat_history=[question], tool_required=True)
[call] = chat.get_tool_calls_from_response(first)
*_, last = chat.stream_chat_with_tools([tool], chat_history=[question], tool_required=True)
[streamed] = chat.get_tool_calls_from_response(last)
result: Any = tool.call(**call.tool_kwargs)
told = ChatMessage(
    role="tool", content=str(result), additional_kwargs={"tool_call_id": call.tool_id}
)
second = chat.chat_with_tools([tool], chat_history=[question, first.message, told])
placed: Any = chat.as_structured_llm(Place).chat([question]).raw

print(
    json.dumps(
        {
            "name": call.tool_name,
            "city": call.tool_kwargs["city"],
            "streamed": streamed.tool_kwargs,
            "result": str(result),
            "second": second.message.content,
            "placed": placed.city,
        }
    )
)
