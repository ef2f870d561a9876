"""Answers held to a schema, a pattern, choices or a grammar, on the real engine."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema
import pytest

pytestmark = pytest.mark.anyio

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "What is Sluice?"}]
POINT = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["near", "far"]},
        "count": {"type": "integer", "minimum": 1, "maximum": 99},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 2},
    },
    "required": ["kind", "count", "tags"],
    "additionalProperties": False,
}


async def post(client: httpx.AsyncClient, path: str, **fields: Any) -> httpx.Response:
    """Ask the demo model, hot enough that nothing but a mask keeps it to a form."""
    what = {"messages": MESSAGES} if path == CHAT else {"prompt": "The scheduler"}
    body = {"model": "demo", "max_tokens": 300, "seed": 11, "temperature": 1.5} | what | fields
    return await client.post(path, json=body)


async def ask(client: httpx.AsyncClient, path: str, **fields: Any) -> list[tuple[str, str]]:
    """Return each choice's text, and why it ended."""
    response = await post(client, path, **fields)
    assert response.status_code == 200, response.text
    choices = response.json()["choices"]
    texts = [choice["message"]["content"] if path == CHAT else choice["text"] for choice in choices]
    return list(zip(texts, (choice["finish_reason"] for choice in choices), strict=True))


def format_of(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema} | more}


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    "asked",
    [
        {"response_format": format_of(POINT)},
        {"response_format": format_of(POINT, strict=True)},
        {"structured_outputs": {"json": POINT}},
        {"structured_outputs": {"json": json.dumps(POINT), "disable_any_whitespace": True}},
        {"guided_json": POINT},
    ],
    ids=["format", "strict", "structured", "compact", "guided"],
)
async def test_every_choice_is_json_of_the_schema(
    demo_client: httpx.AsyncClient, path: str, asked: dict[str, Any]
) -> None:
    """However a schema is asked for, each of several choices validates and ends by itself."""
    for text, reason in await ask(demo_client, path, n=3, **asked):
        assert reason == "stop"
        jsonschema.validate(json.loads(text), POINT)
