"""Answers held to a schema, a pattern, choices or a grammar, on the real engine."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from typing import Any

import httpx
import jsonschema
import pytest

from tests.gateway.api.openai.random_schemas import draw_schemas

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
        {"structured_outputs": {"json": POINT, "colour": None}},
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


@pytest.mark.parametrize(
    ("asked", "pattern"),
    [
        ({"structured_outputs": {"regex": "[a-f]{4}-[0-9]{2}"}}, "[a-f]{4}-[0-9]{2}"),
        ({"guided_regex": "(ab){2,5}"}, "(ab){2,5}"),
        ({"structured_outputs": {"choice": ["red", "green"]}}, "red|green"),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"structured_outputs": {"grammar": 'start: "a" B\nB: /[xyz]+/'}}, "a[xyz]+"),
        ({"guided_grammar": 'start: "a" | "b"'}, "a|b"),
        ({"response_format": {"type": "text"}, "guided_choice": ["yes"]}, "yes"),
    ],
    ids=["regex", "guided-regex", "choice", "guided-choice", "grammar", "guided-grammar", "text"],
)
async def test_patterns_choices_and_grammars_hold(
    demo_client: httpx.AsyncClient, asked: dict[str, Any], pattern: str
) -> None:
    """A hot model writes nothing but what the pattern, the choices or the grammar let it."""
    for text, reason in await ask(demo_client, TEXT, n=3, **asked):
        assert reason == "stop" or asked.get("structured_outputs", {}).get("grammar")
        assert re.fullmatch(pattern, text)


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("asked", "param", "named"),
    [
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex", ""),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs.regex", ""),
        ({"structured_outputs": {}}, "structured_outputs", ""),
        ({"structured_outputs": {"json": {}, "colour": 1}}, "structured_outputs.colour", ""),
        ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag", ""),
        ({"response_format": {"type": "yaml"}}, "response_format.type", ""),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", ""),
        (
            {"response_format": format_of(POINT) | {"type": "json_object"}},
            "response_format.json_schema",
            "",
        ),
        ({"response_format": {"type": "json_object", "schema": {}}}, None, "schema"),
        (
            {"response_format": format_of({"type": "array", "uniqueItems": True})},
            "response_format",
            "uniqueItems",
        ),
        ({"guided_json": '{"$ref": "#"}'}, "guided_json", "$ref"),
        ({"guided_json": "{"}, "guided_json", "JSON"),
        ({"guided_regex": "(?!a)b"}, "guided_regex", "look"),
        ({"guided_choice": []}, "guided_choice", ""),
        ({"guided_choice": ["a"], "ignore_eos": True}, "ignore_eos", ""),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_what_cannot_be_held_to_is_refused(
    demo_client: httpx.AsyncClient, path: str, asked: dict[str, Any], param: str | None, named: str
) -> None:
    """Two forms, none, one that is not known and one that cannot be are a 400 that says which."""
    response = await post(demo_client, path, **asked)
    assert response.status_code == 400
    error = response.json()["error"]
    assert param is None or error["param"] == param
    assert named in error["message"] + str(error["param"])


async def test_an_engine_without_masks_refuses(client: httpx.AsyncClient) -> None:
    """The simulated engine draws blindly, so it takes no constraint."""
    response = await post(client, CHAT, model="sim", guided_choice=["yes"])
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "guided_choice"


async def test_a_cut_answer_ends_with_length(demo_client: httpx.AsyncClient) -> None:
    """What does not fit `max_tokens` is the beginning of the form, told as cut and not repaired."""
    [(text, reason)] = await ask(demo_client, CHAT, guided_json=POINT, max_tokens=3)
    assert reason == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)


async def test_a_stream_is_the_plain_answer(demo_client: httpx.AsyncClient) -> None:
    """Streamed, with log-probabilities and a stop string, a constrained answer is the same."""
    asked = {"guided_json": POINT, "logprobs": True, "top_logprobs": 2, "stop": ["zzz"]}
    plain = (await post(demo_client, CHAT, **asked)).json()["choices"][0]
    response = await post(demo_client, CHAT, stream=True, **asked)
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    parts = [json.loads(event)["choices"][0] for event in events[:-1]]
    text = "".join(part["delta"].get("content", "") for part in parts)
    assert text == plain["message"]["content"]
    scored = [entry for part in parts for entry in (part["logprobs"] or {}).get("content", [])]
    assert scored == plain["logprobs"]["content"]
    jsonschema.validate(json.loads(text), POINT)


async def test_a_form_that_cannot_be_met_ends_its_request_alone(
    demo_client: httpx.AsyncClient,
) -> None:
    """Where `min_tokens` forbids the only end that is left it is a 400, and a neighbour goes on."""
    unmet, other = await asyncio.gather(
        post(demo_client, TEXT, guided_choice=["yes"], min_tokens=50),
        post(demo_client, TEXT, guided_json=POINT),
    )
    assert (unmet.status_code, unmet.json()["error"]["code"]) == (400, "constraint_unmet")
    jsonschema.validate(json.loads(other.json()["choices"][0]["text"]), POINT)


async def test_json_of_random_schemas_validates(demo_client: httpx.AsyncClient) -> None:
    """Of any schema an answer that ends by itself validates, or the schema was refused."""
    schemas, fates = draw_schemas(30), Counter[str]()
    for seed, schema in enumerate(schemas):
        fields = {"guided_json": schema, "seed": seed, "max_tokens": 500, "temperature": 0.7}
        response = await post(demo_client, TEXT, **fields)
        if response.status_code == 400:
            # By the keyword, or as there is no value.
            assert re.search('"uniqueItems"|no value', response.json()["error"]["message"])
            fates["refused"] += 1
            continue
        [choice] = response.json()["choices"]
        fates[choice["finish_reason"]] += 1
        if choice["finish_reason"] == "stop":
            validator = jsonschema.Draft202012Validator(schema)
            validator.validate(json.loads(choice["text"]))
    assert fates["stop"] >= 0.8 * (len(schemas) - fates["refused"]), fates
    assert fates["refused"] < 0.5 * len(schemas)
