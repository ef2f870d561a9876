"""`GET /openapi.json`: the API described from the types that decode it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.errors import ErrorBody
from gateway.api.idempotent import MAX_KEY_CHARS
from gateway.api.openai.schemas import (
    ChatCompletion,
    ChatRequest,
    CompletionRequest,
    DetokenizeAnswer,
    DetokenizeRequest,
    ModelCard,
    ModelList,
    TextCompletion,
    TokenizeAnswer,
    TokenizeRequest,
    TokenizerInfo,
)
from gateway.api.usage import UsageView

# (method, path) → summary, request type, response type
_OPERATIONS: Final[dict[tuple[str, str], tuple[str, type | None, type | None]]] = {
    ("post", "/v1/chat/completions"): (
        "Answer a chat; with `stream`, as server-sent events.",
        ChatRequest,
        ChatCompletion,
    ),
    ("post", "/v1/completions"): (
        "Continue a text; with `stream`, as server-sent events.",
        CompletionRequest,
        TextCompletion,
    ),
    ("get", "/v1/models"): ("List the models served.", None, ModelList),
    ("get", "/v1/models/{model}"): ("Describe one model.", None, ModelCard),
    ("get", "/v1/usage"): (
        "Sum what the key's tenant has used; `from`, `to` and `group_by` choose.",
        None,
        UsageView,
    ),
    ("post", "/tokenize"): (
        "Spell a text or a chat as tokens, as vLLM has it.",
        TokenizeRequest,
        TokenizeAnswer,
    ),
    ("post", "/detokenize"): (
        "Spell tokens as text, as vLLM has it.",
        DetokenizeRequest,
        DetokenizeAnswer,
    ),
    ("get", "/tokenizer_info"): (
        "Describe the tokenizer, as vLLM has it.",
        None,
        TokenizerInfo,
    ),
    ("get", "/livez"): ("Tell whether the process lives.", None, None),
    ("get", "/readyz"): ("Tell whether the process can serve.", None, None),
    ("get", "/startupz"): ("Tell whether the process has started.", None, None),
    ("get", "/health"): ("Tell whether the process can serve, as `/readyz`.", None, None),
    ("get", "/ping"): ("Tell whether the process can serve, as `/readyz`.", None, None),
    ("get", "/version"): ("Tell the version.", None, None),
    ("get", "/"): ("Say what this is, to a browser or a program.", None, None),
    ("get", "/openapi.json"): ("Return this document.", None, None),
}


def document(routes: Sequence[Route], *, version: str) -> dict[str, Any]:
    """Build the OpenAPI 3.1 document of `routes`. Raises: KeyError for an undescribed route."""
    types = [t for op in _OPERATIONS.values() for t in op[1:] if t is not None]
    _, components = msgspec.json.schema_components(
        [*types, ErrorBody], ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = route.path.replace(":path}", "}")
        for method in sorted((route.methods or set()) - {"HEAD"}):
            operation = _operation(path, *_OPERATIONS[method.lower(), path])
            paths.setdefault(path, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sluice", "version": version, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def endpoint(routes: Sequence[Route], *, version: str) -> Any:
    """Return the handler of `/openapi.json`, its body encoded once."""
    body = msgspec.json.encode(document(routes, version=version))

    async def show(request: Request) -> Response:
        return Response(body, media_type="application/json")

    return show


_IDEMPOTENCY_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY_CHARS},
    "description": "Runs and bills once: a retry with the same key and body gets the same answer.",
}


def _operation(
    path: str, summary: str, request: type | None, response: type | None
) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": summary, "responses": {"200": {"description": "OK"}}}
    if "{model}" in path:
        operation["parameters"] = [
            {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    if request is not None:
        operation["parameters"] = [_IDEMPOTENCY_KEY] if path.startswith("/v1/") else []
        operation["requestBody"] = {"required": True, "content": _content(request)}
    if response is not None:
        operation["security"] = [{"key": []}]
        operation["responses"] = {
            "200": {"description": "OK", "content": _content(response)},
            "default": {"description": "Error", "content": _content(ErrorBody)},
        }
    return operation


def _content(kind: type) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}
