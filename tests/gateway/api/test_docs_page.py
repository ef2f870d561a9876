"""The page that shows the API to somebody who reads."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from html import escape
from typing import Any

import httpx
import pytest

from gateway.api.docs_page import page

pytestmark = pytest.mark.anyio


async def test_it_shows_all_that_the_document_says(client: httpx.AsyncClient) -> None:
    """Every operation, every type and every field of a request; and no link on it leads nowhere."""
    document = (await client.get("/openapi.json")).json()
    shown = (await client.get("/docs", headers={"authorization": ""})).text
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert re.search(rf">{method.upper()} <code>{re.escape(path)}</code></h2>", shown)
            said = re.sub("`([^`]+)`", r"<code>\1</code>", escape(operation["summary"]))
            assert f"<p>{said}</p>" in shown
            for status in operation["responses"]:
                assert f"<code>{status}</code>" in shown
    assert "`" not in shown
    fields = document["components"]["schemas"]["ChatRequest"]["properties"]
    assert fields
    assert all(f"<td><code>{name}</code></td>" in shown for name in fields)
    # Two types of one name would be told apart by their modules.
    assert not any("." in name for name in document["components"]["schemas"])
    links = set(re.findall(r'href="#([^"]+)"', shown))
    anchors = re.findall(r' id="([^"]+)"', shown)
    assert links <= set(anchors)
    assert len(anchors) == len(set(anchors))


async def test_it_loads_nothing_and_runs_nothing(client: httpx.AsyncClient) -> None:
    """Its policy allows its own style, by hash, and nothing else; it needs nothing else."""
    answer = await client.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    [style] = re.findall(r"<style>(.*?)</style>", answer.text, re.DOTALL)
    digest = b64encode(sha256(style.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    assert not re.search(r"<script|<link|<img|<iframe|style=|\bon\w+=|https?://", answer.text)


def test_what_a_schema_says_is_text() -> None:
    """Names and descriptions come from types and models' names: none of them becomes markup."""
    evil = '"><script>alert(1)</script>'
    schema: dict[str, Any] = {
        "description": evil,
        "properties": {evil: {"enum": [evil], "pattern": evil, "description": evil}},
    }
    operation = {
        "summary": evil,
        "parameters": [{"name": evil, "in": "query", "required": True, "schema": schema}],
        "requestBody": {"content": {evil: {"schema": {"$ref": f"#/components/schemas/{evil}"}}}},
        "responses": {"200": {"description": evil, "content": {evil: {"schema": schema}}}},
    }
    document = {
        "info": {"title": evil, "version": evil},
        "paths": {f"/{evil}": {"get": operation}},
        "components": {"schemas": {evil: schema}},
    }
    assert "<script" not in page(document)
