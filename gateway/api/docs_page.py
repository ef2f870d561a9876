"""`/docs`: the API for somebody who reads, made of `/openapi.json` and complete without a script.

It is written once, as the server starts, and loads nothing from anywhere: its one style is named by
its hash in the content security policy, so it works behind the strictest of proxies. Nothing of a
request goes into it.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from hashlib import sha256
from html import escape
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.access import public

PATH: Final = "/docs"
_STYLE: Final = """
:root{color-scheme:light dark;--line:#8884;--dim:light-dark(#666,#a0a0a0)}
body{font:16px/1.5 system-ui,sans-serif;max-width:64rem;margin:0 auto;padding:1rem;
overflow-wrap:break-word}
h1{font-size:1.75rem;line-height:1.25}
h2{margin-top:3rem;border-top:1px solid var(--line);padding-top:1rem;font-size:1.15rem}
h3{font-size:1rem;margin:1.5rem 0 .5rem}
code,pre{font:.875rem/1.5 ui-monospace,monospace;overflow-wrap:anywhere}
pre{border:1px solid var(--line);border-radius:.375rem;padding:.75rem;white-space:pre-wrap}
table{border-collapse:collapse;width:100%;font-size:.9rem}
tr{border-bottom:1px solid var(--line)}
th,td{text-align:left;vertical-align:top;padding:.3rem .75rem .3rem 0}
th{font-weight:600;color:var(--dim)}
td:first-child{min-width:10rem}
td:nth-child(2){min-width:6rem}
nav ul{list-style:none;padding:0;columns:24rem}
nav code{text-decoration:underline}
nav a{text-decoration:none;display:grid;grid-template-columns:4.5rem 1fr;align-items:baseline;
break-inside:avoid}
.method{color:var(--dim);font-weight:600;font-size:.8rem}
a{color:inherit}
:target{outline:2px solid currentColor;outline-offset:.5rem}
@media(max-width:40rem){
tr:has(th){display:none}
table,tbody,tr,td{display:block;padding:.1rem 0;overflow-wrap:anywhere}
td:nth-child(3):empty{display:none}
}
"""
_STYLE_HASH: Final = b64encode(sha256(_STYLE.encode()).digest()).decode()
_HEADERS: Final = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'"
        "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_NAME: Final = re.compile(r"`([^`]+)`")
_BOUNDS: Final = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
    "minLength": "characters ≥",
    "maxLength": "characters ≤",
    "minItems": "items ≥",
    "maxItems": "items ≤",
    "pattern": "matches",
    "default": "default",
}


class DocsPage:
    """Answer with the page."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._page = page(document).encode()

    def routes(self) -> list[Route]:
        """Declare the route, open to anybody."""
        return [public(PATH, self.show)]

    async def show(self, request: Request) -> Response:
        return Response(self._page, headers=_HEADERS, media_type="text/html")


def page(document: Mapping[str, Any]) -> str:
    """Write an OpenAPI 3.1 document as HTML."""
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    operations.sort(key=lambda one: "security" not in one[2])
    title = f"{escape(document['info']['title'])} {escape(document['info']['version'])}"
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        f"<title>{title}: the API</title>",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{title}: the API</h1>",
        "<p>The base URL is this address. Send a key as <code>Authorization: Bearer KEY</code>. "
        'The same for programs: <a href="/openapi.json">/openapi.json</a>.</p>',
        "<nav><ul>",
        *(
            f'<li><a href="#{_anchor(method, path)}"><span class="method">{method}</span>'
            f"<code>{escape(path)}</code></a></li>"
            for method, path, _ in operations
        ),
        "</ul></nav>",
    ]
    for method, path, operation in operations:
        parts += _operation(method, path, operation)
    for name, schema in document["components"]["schemas"].items():
        parts += _schema(name, schema)
    return "\n".join([*parts, "</body></html>", ""])


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f'<section><h2 id="{_anchor(method, path)}">{method} <code>{escape(path)}</code></h2>'
    yield f"<p>{_prose(operation['summary'])}</p>"
    yield f"<pre>{escape(_curl(method, path, operation))}</pre>"
    if parameters := operation.get("parameters"):
        yield "<h3>Parameters</h3>"
        yield from _table(
            (
                f"{one['name']} ({one['in']})",
                one["schema"],
                one["required"],
                one.get("description", ""),
            )
            for one in parameters
        )
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"<h3>Body: <code>{escape(kind)}</code></h3>"
        yield from _described(content.get("schema", {}))
    yield "<h3>Answers</h3><ul>"
    # Most of the refusals are alike but for their status.
    alike: dict[str, list[str]] = {}
    for status, answer in operation["responses"].items():
        kinds = ", ".join(
            " ".join(filter(None, (escape(kind), _type(content.get("schema", {})))))
            for kind, content in answer.get("content", {}).items()
        )
        said = f"<code>{status}</code> {_prose(answer['description'])}"
        alike.setdefault(kinds, []).append(said)
    for kinds, several in alike.items():
        yield f"<li>{', '.join(several)}: {kinds}</li>"
    yield "</ul></section>"


def _schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f'<section><h2 id="{escape(name)}">{escape(name)}</h2>'
    if text := schema.get("description"):
        yield f"<p>{_prose(text)}</p>"
    yield from _described(schema)
    yield "</section>"


def _described(schema: Mapping[str, Any]) -> Iterator[str]:
    properties = schema.get("properties")
    if properties is None:
        yield f"<p>{_type(schema)}</p>"
        return
    needed = schema.get("required", ())
    yield from _table(
        (name, one, name in needed, one.get("description", "")) for name, one in properties.items()
    )


def _table(rows: Iterator[tuple[str, Mapping[str, Any], bool, str]]) -> Iterator[str]:
    yield "<table><tr><th>Name</th><th>Type</th><th></th></tr>"
    for name, schema, is_needed, text in rows:
        said = " · ".join(
            filter(None, ("<b>required</b>" if is_needed else "", *_bounds(schema), _prose(text)))
        )
        cells = (f"<code>{escape(name)}</code>", _type(schema), said)
        yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    yield "</table>"


def _prose(text: str) -> str:
    """Write a sentence, in which names stand between backticks, as HTML."""
    return _NAME.sub(r"<code>\1</code>", escape(text))


def _type(schema: Mapping[str, Any]) -> str:
    """Say what a value may be, as HTML."""
    if reference := schema.get("$ref"):
        name = escape(reference.rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if (values := schema.get("enum")) is not None:
        return " | ".join(f"<code>{escape(json.dumps(value))}</code>" for value in values)
    if "const" in schema:
        return f"<code>{escape(json.dumps(schema['const']))}</code>"
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(map(_type, schema[several])))
    kind = schema.get("type", "")
    if kind == "array" and "items" in schema:
        return f"array of {_type(schema['items'])}"
    return escape(" | ".join(kind) if isinstance(kind, list) else kind)


def _bounds(schema: Mapping[str, Any]) -> Iterator[str]:
    for one in (schema, *schema.get("anyOf", ())):
        for name, sign in _BOUNDS.items():
            if name in one:
                value = one[name] if name == "pattern" else json.dumps(one[name])
                yield f"{sign} <code>{escape(str(value))}</code>"


def _curl(method: str, path: str, operation: Mapping[str, Any]) -> str:
    words = ["curl", *(["-X", method] if method not in ("GET", "POST") else []), f"$SLUICE{path}"]
    if "security" in operation:
        words += ["-H", '"Authorization: Bearer $KEY"']
    kinds = operation.get("requestBody", {}).get("content", {})
    if "application/json" in kinds:
        words += ["-H", "'Content-Type: application/json'", "-d", "@body.json"]
    elif kinds:
        words += ["-F", "purpose=batch", "-F", "file=@input.jsonl"]
    elif method == "POST":
        words[1:1] = ["-X", method]
    return " ".join(words)


def _anchor(method: str, path: str) -> str:
    return escape(f"{method.lower()}{path}".replace("/", "-").replace("{", "").replace("}", ""))
