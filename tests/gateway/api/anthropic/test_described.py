"""What Anthropic's paths say of themselves: the page, the description, the limits' headers."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from starlette.requests import Request

from gateway.api.anthropic.parameters import BLOCKS, MESSAGES, TOOL
from gateway.api.anthropic.schemas import CountTokensRequest, MessagesRequest
from gateway.api.errors import error_response, standing_headers
from gateway.api.ratelimits import anthropic_ratelimit_headers
from gateway.domain.quota import Stand, Standing
from gateway.errors import MalformedRequest, TenantLimited
from gateway.http.guarded import refusal_bytes

STANDING = Standing(requests=Stand(60, 59, 0.2), tokens=Stand(1000, 7, 90.0))


def test_the_page_has_each_parameter_with_its_fate() -> None:
    """docs/messages.md is as the tables are, line for line."""
    page = Path("docs/messages.md").read_text(encoding="utf-8")
    for each in (*MESSAGES, *TOOL):
        assert f"\n| `{each.name}` | {each.fate} | {each.note} |\n" in page, each.name
    for kind, table in BLOCKS.items():
        for each in table:
            line = f"| `{kind}` | `{each.name}` | {each.fate} | {each.note} |"
            assert line in page, (kind, each.name)


@pytest.mark.anyio
async def test_the_description_names_what_is_decoded(client: httpx.AsyncClient) -> None:
    """Every field that a body may have is described, and no other."""
    document = (await client.get("/openapi.json")).json()
    for kind in (MessagesRequest, CountTokensRequest):
        described = document["components"]["schemas"][kind.__name__]
        assert set(described["properties"]) == set(kind.__struct_encode_fields__)
    answers = document["paths"]["/v1/messages"]["post"]["responses"]
    assert {"401", "404", "429", "529"} <= set(answers)
    assert "503" not in answers


def test_what_the_server_refuses_itself_speaks_the_words_of_its_path() -> None:
    """A path that no route may have is refused below the API, in the shape that it names."""
    for url, shape in ((b"/v1/messages/%2f?x=1", b'"type":"error"'), (b"", b'"param":null')):
        head, _, body = refusal_bytes(MalformedRequest(), url).partition(b"\r\n\r\n")
        assert b"400" in head.splitlines()[0]
        assert shape in body


def test_limits_stand_in_anthropics_words() -> None:
    """The same facts as `x-ratelimit-*`, their resets as times that are never early."""
    assert anthropic_ratelimit_headers(STANDING, now_s=1_700_000_000.5) == {
        "anthropic-ratelimit-requests-limit": "60",
        "anthropic-ratelimit-requests-remaining": "59",
        "anthropic-ratelimit-requests-reset": "2023-11-14T22:13:21Z",
        "anthropic-ratelimit-tokens-limit": "1000",
        "anthropic-ratelimit-tokens-remaining": "7",
        "anthropic-ratelimit-tokens-reset": "2023-11-14T22:14:51Z",
    }
    assert "x-ratelimit-limit-requests" in standing_headers(STANDING, "/v1/completions")


def test_a_limit_refuses_in_the_words_of_its_path() -> None:
    """A 429 has Anthropic's type and limits below `/v1/messages`, and OpenAI's elsewhere."""
    error = TenantLimited("Wait.", retry_after_s=1.2)
    error.standing = STANDING
    for path, name in (
        ("/v1/messages", "anthropic-ratelimit-tokens-remaining"),
        ("/v1/messages/batches/x", "anthropic-ratelimit-tokens-remaining"),
        ("/v1/messagesx", "x-ratelimit-remaining-tokens"),
    ):
        scope = {"type": "http", "path": path, "state": {"request_id": "ab"}}
        response = error_response(error, Request(scope))
        assert (response.status_code, response.headers[name]) == (429, "7")
        assert (b'"request_id":"req_ab"' in response.body) == name.startswith("anthropic")
        assert response.headers["retry-after"] == "2"
