"""The description's bounds are the enforced ones: at each there is an answer, past it none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.api.openai.described import at_most
from gateway.services.inference.models import ServedModel

pytestmark = pytest.mark.anyio

PATHS = {"ChatRequest": "/v1/chat/completions", "CompletionRequest": "/v1/completions"}
BODIES: dict[str, dict[str, Any]] = {
    "ChatRequest": {"model": "demo", "messages": [{"role": "user", "content": "x"}]},
    "CompletionRequest": {"model": "demo", "prompt": [5]},
}
# What others have to be for a bound to be reached.
BESIDE: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
}
# Bounds that leave no room for the prompt of these bodies, or that another field decides on.
TOGETHER = ("max_tokens", "max_completion_tokens", "min_tokens", "best_of")


async def schemas(client: httpx.AsyncClient) -> dict[str, Any]:
    return (await client.get("/openapi.json")).json()["components"]["schemas"]


def kinds(schema: dict[str, Any], kind: str) -> Iterator[dict[str, Any]]:
    yield from (each for each in schema.get("anyOf", [schema]) if each.get("type") == kind)


def edges(schema: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield values at the bounds of a field, each with one just past it."""
    for number in (*kinds(schema, "number"), *kinds(schema, "integer")):
        step = 1 if number["type"] == "integer" else 1e-3
        if "maximum" in number:
            yield number["maximum"], number["maximum"] + step
            yield number["minimum"], number["minimum"] - step
    for text in kinds(schema, "string"):
        if "maxLength" in text:
            yield "x" * text["maxLength"], "x" * (text["maxLength"] + 1)
        if text.get("minLength"):
            yield "x" * text["minLength"], ""
        if "enum" in text:
            yield from ((value, f"no-{value}") for value in text["enum"])
    for array in kinds(schema, "array"):
        if "maxItems" in array and array["items"].get("type") in ("string", "integer"):
            item = "x" if array["items"]["type"] == "string" else 1
            yield [item] * array["maxItems"], [item] * (array["maxItems"] + 1)
    if "enum" in schema and "type" not in schema:
        yield from ((value, {"past": True}) for value in schema["enum"])


async def answered(client: httpx.AsyncClient, kind: str, name: str, value: Any) -> httpx.Response:
    small = {"max_tokens": 1} if name not in TOGETHER else {}
    body = BODIES[kind] | small | BESIDE.get(name, {}) | {name: value}
    return await client.post(PATHS[kind], json=body)


@pytest.mark.parametrize("kind", sorted(PATHS))
async def test_bounds_are_the_enforced_ones(demo_client: httpx.AsyncClient, kind: str) -> None:
    """Every number, text, list and choice in bounds is taken, and the next one is a 400 by name."""
    described = await schemas(demo_client)
    tried = set()
    for name, schema in described[kind]["properties"].items():
        for at, past in edges(schema):
            tried.add(name)
            if name not in TOGETHER:
                response = await answered(demo_client, kind, name, at)
                assert response.status_code == 200, (name, at, response.text)
            response = await answered(demo_client, kind, name, past)
            assert response.status_code == (404 if name == "model" else 400), (name, past)
            error = response.json()["error"]
            is_too_long = error["code"] == "context_length_exceeded" and name in TOGETHER
            assert is_too_long or error["param"].startswith(name), (name, error)
    assert {"temperature", "top_k", "n", "stop", "seed", "service_tier", "model"} <= tried


async def test_the_longest_answer_is_what_the_context_leaves(
    demo_client: httpx.AsyncClient, demo: ServedModel
) -> None:
    """The most that `max_tokens` may be is taken with the shortest prompt there is."""
    fields = (await schemas(demo_client))["CompletionRequest"]["properties"]
    [integer] = kinds(fields["max_tokens"], "integer")
    assert integer["maximum"] == demo.info.max_model_len - 1
    body = {
        "model": "demo",
        "prompt": [5],
        "stop_token_ids": list(range(64)),
        "logit_bias": {"7": 100},
    }
    response = await demo_client.post(
        "/v1/completions", json=body | {"max_tokens": integer["maximum"]}
    )
    assert response.status_code == 200, response.text


async def test_messages_and_metadata_have_their_bounds(demo_client: httpx.AsyncClient) -> None:
    """So many messages, pairs, names, biases and keywords of templates, and not one more."""
    described = await schemas(demo_client)
    fields = described["ChatRequest"]["properties"]
    [metadata] = kinds(fields["metadata"], "object")
    [biases] = kinds(fields["logit_bias"], "object")
    [kwargs] = kinds(fields["chat_template_kwargs"], "object")
    [name] = kinds(described["ChatMessage"]["properties"]["name"], "string")
    turn = {"role": "user", "content": ""}

    def named(count: int, value: Any = "x") -> dict[str, Any]:
        return {f"n{i}": value for i in range(count)}

    pairs, value_chars = metadata["maxProperties"], metadata["additionalProperties"]["maxLength"]
    name_chars = metadata["propertyNames"]["maxLength"]
    biggest = biases["additionalProperties"]["maximum"]
    for at, past in (
        ({"metadata": named(pairs)}, {"metadata": named(pairs + 1)}),
        ({"metadata": {"a": "x" * value_chars}}, {"metadata": {"a": "x" * (value_chars + 1)}}),
        ({"metadata": {"x" * name_chars: ""}}, {"metadata": {"x" * (name_chars + 1): ""}}),
        (
            {"logit_bias": {str(i): 0 for i in range(biases["maxProperties"])}},
            {"logit_bias": {str(i): 0 for i in range(biases["maxProperties"] + 1)}},
        ),
        ({"logit_bias": {"5": biggest}}, {"logit_bias": {"5": biggest + 1}}),
        (
            {"chat_template_kwargs": named(kwargs["maxProperties"])},
            {"chat_template_kwargs": named(kwargs["maxProperties"] + 1)},
        ),
        (
            {"messages": [turn | {"name": "x" * name["maxLength"]}]},
            {"messages": [turn | {"name": "x" * (name["maxLength"] + 1)}]},
        ),
        ({"messages": [turn]}, {"messages": [turn] * (fields["messages"]["maxItems"] + 1)}),
        ({"messages": [turn]}, {"messages": []}),
    ):
        body = {"model": "demo", "messages": [turn], "max_tokens": 1}
        taken = await demo_client.post(PATHS["ChatRequest"], json=body | at)
        refused = await demo_client.post(PATHS["ChatRequest"], json=body | past)
        assert (taken.status_code, refused.status_code) == (200, 400), (at, taken.text)


async def test_answers_are_described_by_status(client: httpx.AsyncClient) -> None:
    """Each operation lists its refusals, each in the one shape, and how streams are typed."""
    document = (await client.get("/openapi.json")).json()
    chat = document["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert {"200", "400", "401", "403", "404", "409", "413", "422", "429", "503"} <= chat.keys()
    assert chat["200"]["content"].keys() == {"application/json", "text/event-stream"}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert "200" in operation["responses"], path
            if "security" in operation:
                assert {"401", "429"} <= operation["responses"].keys(), path


@pytest.mark.parametrize("number", [0, 7, 9, 10, 99, 519, 1000, 151_935])
def test_a_pattern_of_token_ids(number: int) -> None:
    """It has the numbers up to the last token, zeros before them or not, and no others."""
    pattern = re.compile(at_most(number, 9))
    near = range(max(0, number - 1200), number + 1200)
    for value in {*near, *range(0, 10 * number, 997), 10**8, 10**9}:
        assert (pattern.search(str(value)) is not None) == (value <= number), value
    assert pattern.search(f"{number:09}")
    assert not pattern.search(f"{number:010}")
    assert not pattern.search("")
