"""What a user of Instructor does, printed as one JSON object."""

from __future__ import annotations

import json
import os
from typing import Any, Literal

import instructor
import openai
from pydantic import BaseModel, ConfigDict


class Place(BaseModel):
    """Name a place."""

    # Where a schema leaves room for more, this model fills it.
    model_config = ConfigDict(extra="forbid")
    city: Literal["Rome", "Oslo"]


server = openai.OpenAI(
    base_url=os.environ["SLUICE_BASE_URL"], api_key=os.environ["SLUICE_API_KEY"], max_retries=5
)
asked: dict[str, Any] = {
    "model": "sluice-demo",
    "messages": [{"role": "user", "content": "Weather in Rome?"}],
    "response_model": Place,
    "max_tokens": 400,
    "temperature": 0,
    "max_retries": 0,
}
by_tools = instructor.from_openai(server, mode=instructor.Mode.TOOLS)
by_schema = instructor.from_openai(server, mode=instructor.Mode.JSON_SCHEMA)
place, completion = by_tools.chat.completions.create_with_completion(**asked)
partial: list[Any] = list(by_tools.chat.completions.create_partial(**asked))
schemas: list[Any] = list(by_schema.chat.completions.create_partial(**asked))
# The model called a tool; what it got goes back, and a second answer has a form too.
call = completion.choices[0].message
told = [
    *asked["messages"],
    call.to_dict(),
    {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "Hot."},
]
again = by_tools.chat.completions.create(**{**asked, "messages": told})
plain = by_tools.chat.completions.create(
    **{**asked, "messages": [{"role": "user", "content": "What is Sluice?"}]}
    | {"response_model": None}
)

print(
    json.dumps(
        {
            "by_tools": place.city,
            "called": call.tool_calls[0].function.name,
            "partial": [len(partial), partial[-1].city],
            "by_schema": by_schema.chat.completions.create(**asked).city,
            "schema_partial": schemas[-1].city,
            "again": again.city,
            "plain": plain.choices[0].message.content,
        }
    )
)
