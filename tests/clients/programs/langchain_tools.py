"""What a user of LangChain does with tools and schemas, printed as one JSON object."""

from __future__ import annotations

import json
import os
from typing import Any, Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Place(BaseModel):
    """Name a place."""

    city: Literal["Rome", "Oslo"]


@tool
def weather(city: Literal["Rome", "Oslo"]) -> str:
    """Tell the weather in a city."""
    return f"Hot in {city}."


reached: dict[str, Any] = {
    "model": "sluice-demo",
    "base_url": os.environ["SLUICE_BASE_URL"],
    "api_key": os.environ["SLUICE_API_KEY"],
    "temperature": 0,
    "max_retries": 5,
    "max_tokens": 400,
}
chat = ChatOpenAI(**reached)
forced = chat.bind_tools([weather], tool_choice="weather", strict=True)
question: list[Any] = [HumanMessage("Weather in Rome?")]
first: Any = forced.invoke(question)
[call] = first.tool_calls
chunks: list[Any] = list(
    chat.bind_tools([weather], tool_choice="any", strict=True).stream(question)
)
gathered = chunks[0]
for chunk in chunks[1:]:
    gathered += chunk
result = weather.invoke(call)
assert isinstance(result, ToolMessage)
second = chat.bind_tools([weather]).invoke([*question, first, result])
# The same over responses: whole, streamed, called, told, and of a schema.
made = ChatOpenAI(**reached, use_responses_api=True)
made_first: Any = made.bind_tools([weather], tool_choice="weather", strict=True).invoke(question)
[made_call] = made_first.tool_calls
made_second = made.bind_tools([weather]).invoke([*question, made_first, weather.invoke(made_call)])
made_streamed = "".join(chunk.text for chunk in made.stream("What is Sluice?"))

print(
    json.dumps(
        {
            "name": call["name"],
            "city": call["args"]["city"],
            "num_chunks": len(chunks),
            "streamed": gathered.tool_calls[0]["args"],
            "result": result.content,
            "second": second.content,
            "made_city": made_call["args"]["city"],
            "made_second": made_second.text,
            "made": made.invoke("What is Sluice?").text,
            "made_streamed": made_streamed,
            "made_by_schema": made.with_structured_output(Place, method="json_schema")
            .invoke(question)
            .city,  # type: ignore[union-attr]
            "by_schema": chat.with_structured_output(Place, method="json_schema")
            .invoke(question)
            .city,  # type: ignore[union-attr]
            "by_call": chat.with_structured_output(Place, method="function_calling", strict=True)
            .invoke(question)
            .city,  # type: ignore[union-attr]
        }
    )
)
