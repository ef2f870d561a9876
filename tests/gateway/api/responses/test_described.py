"""What is written of `/v1/responses`: its page, and `/openapi.json`."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from gateway.api.openai.parameters import Fate, Parameter
from gateway.api.openai.reading import HEADER
from gateway.api.responses.parameters import RESPONSES
from gateway.api.responses.schemas import ResponsesRequest

# What some are named by, or need beside them.
NAMED = {"reasoning": "reasoning.effort", "stream_options": "stream_options.include_obfuscation"}
BESIDE = {
    "stream_options": {"stream": True},
    "tools": {"tool_choice": "none"},
    "top_logprobs": {"include": ["message.output_text.logprobs"]},
}
# Of a server that stores none.
STORING = {"store", "previous_response_id"}


def test_the_page_has_each_parameter_with_its_fate() -> None:
    """docs/responses.md is as the table is, line for line."""
    page = Path("docs/responses.md").read_text(encoding="utf-8")
    for each in RESPONSES:
        assert f"| `{each.name}` | {each.fate} | {each.note} |" in page, each.name
    assert {each.name for each in RESPONSES} == set(ResponsesRequest.__struct_encode_fields__)


@pytest.mark.anyio
async def test_the_description_names_what_is_decoded(client: httpx.AsyncClient) -> None:
    """Every field that a body may have is described, and no other."""
    document = (await client.get("/openapi.json")).json()
    described = document["components"]["schemas"]["ResponsesRequest"]
    assert set(described["properties"]) == set(ResponsesRequest.__struct_encode_fields__)


@pytest.mark.anyio
@pytest.mark.parametrize("parameter", RESPONSES, ids=lambda each: each.name)
async def test_a_server_does_as_the_table_says(
    demo_client: httpx.AsyncClient, parameter: Parameter
) -> None:
    """Each parameter is honoured, taken and named, or refused by its name; null asks nothing."""
    name, path = parameter.name, "/v1/responses"
    body = {"model": "demo", "input": "Hi", "max_output_tokens": 2}
    if name not in ("model", "input"):
        for neutral in parameter.neutral:
            passed = await demo_client.post(path, json=body | {name: neutral})
            assert passed.status_code == 200, passed.text
            assert HEADER.decode() not in passed.headers
    asked = body | BESIDE.get(name, {}) | {name: parameter.asks}
    if name == "model":
        asked["model"] = "demo"
    answer = await demo_client.post(path, json=asked)
    is_refused = parameter.fate is Fate.REFUSED or (name in STORING and parameter.asks)
    assert answer.status_code == (400 if is_refused else 200), answer.text
    if is_refused:
        assert answer.json()["error"]["param"] == name
    elif parameter.fate is Fate.HONOURED:
        assert HEADER.decode() not in answer.headers
    else:
        # The demo's template looks at nothing that is given to templates.
        assert answer.headers[HEADER.decode()] == NAMED.get(name, name)
