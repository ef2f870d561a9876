"""`GET /openapi.json`: the API described from the types that decode it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway import errors
from gateway.api.anthropic.batch_results import MessageBatchResult
from gateway.api.anthropic.batch_schemas import (
    MESSAGE_BATCH_ID_PARAMETER,
    MESSAGE_BATCH_LIST_PARAMETERS,
    MessageBatchDeleted,
    MessageBatchList,
    MessageBatchRequest,
    MessageBatchView,
)
from gateway.api.anthropic.described import describe_messages
from gateway.api.anthropic.schemas import (
    CountTokensRequest,
    MessageAnswer,
    MessagesRequest,
    TokenCount,
)
from gateway.api.dialect import MESSAGES, speaks_anthropic
from gateway.api.errors import OVERLOADED, STATUS, ErrorBody, MessagesError, status_of
from gateway.api.idempotent import MAX_KEY_CHARS
from gateway.api.openai.batch_schemas import (
    BATCH_ID_PARAMETER,
    BATCH_LIST_PARAMETERS,
    BatchList,
    BatchRequest,
    BatchView,
)
from gateway.api.openai.described import Served, bounded
from gateway.api.openai.file_schemas import (
    ID_PARAMETER,
    LIST_PARAMETERS,
    UPLOAD_FORM,
    FileDeleted,
    FileList,
    FileObject,
)
from gateway.api.openai.schemas import (
    ChatCompletion,
    ChatRequest,
    CompletionRequest,
    DetokenizeAnswer,
    DetokenizeRequest,
    EmbeddingList,
    EmbeddingRequest,
    ModelCard,
    ModelList,
    TextCompletion,
    TokenizeAnswer,
    TokenizeRequest,
    TokenizerInfo,
)
from gateway.api.responses.described import ITEM_TYPES, describe_responses
from gateway.api.responses.schemas import (
    InputItemList,
    ResponseDeleted,
    ResponseObject,
    ResponsesRequest,
)
from gateway.api.responses.stored import INPUT_ITEM_PARAMETERS, RESPONSE_ID_PARAMETER
from gateway.api.usage import BY, UsageView
from gateway.api.usage_params import described_usage_params

_MESSAGE_BATCHES: Final = f"{MESSAGES}/batches"
_MESSAGE_BATCH: Final = f"{_MESSAGE_BATCHES}/{{message_batch_id}}"

RESPONSES: Final = "/v1/responses"
_RESPONSE: Final = f"{RESPONSES}/{{response_id}}"

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
    ("post", "/v1/messages"): (
        "Answer a conversation, as Anthropic has it; with `stream`, as server-sent events.",
        MessagesRequest,
        MessageAnswer,
    ),
    ("post", "/v1/messages/count_tokens"): (
        "Count the tokens of a conversation, as Anthropic has it.",
        CountTokensRequest,
        TokenCount,
    ),
    ("post", "/v1/messages/batches"): (
        "Have many messages answered when there is room, for less.",
        MessageBatchRequest,
        MessageBatchView,
    ),
    ("get", "/v1/messages/batches"): (
        "List the tenant's batches of messages, the newest first.",
        None,
        MessageBatchList,
    ),
    ("get", _MESSAGE_BATCH): ("Describe one batch of messages.", None, MessageBatchView),
    ("delete", _MESSAGE_BATCH): (
        "Forget a batch of messages that has ended, and its results.",
        None,
        MessageBatchDeleted,
    ),
    ("post", f"{_MESSAGE_BATCH}/cancel"): (
        "Cancel a batch of messages.",
        None,
        MessageBatchView,
    ),
    ("get", f"{_MESSAGE_BATCH}/results"): (
        "Download the results of a batch of messages, a JSON line each.",
        None,
        MessageBatchResult,
    ),
    ("post", RESPONSES): (
        "Answer as OpenAI's Responses do; with `stream`, as server-sent events.",
        ResponsesRequest,
        ResponseObject,
    ),
    ("get", _RESPONSE): ("Read a stored response.", None, ResponseObject),
    ("delete", _RESPONSE): ("Delete a stored response.", None, ResponseDeleted),
    ("post", f"{_RESPONSE}/cancel"): (
        "Say that a response cannot be cancelled: none runs in the background.",
        None,
        ResponseObject,
    ),
    ("get", f"{_RESPONSE}/input_items"): (
        "List the items that a stored response was asked with, the last first.",
        None,
        InputItemList,
    ),
    ("post", "/v1/embeddings"): (
        "Make vectors of texts.",
        EmbeddingRequest,
        EmbeddingList,
    ),
    ("get", "/v1/models"): ("List the models served.", None, ModelList),
    ("get", "/v1/models/{model}"): ("Describe one model.", None, ModelCard),
    ("get", "/v1/usage"): (
        "Sum what the key's tenant has used; `from`, `to` and `group_by` choose.",
        None,
        UsageView,
    ),
    ("post", "/v1/batches"): (
        "Have the requests of a file answered when there is room, for less.",
        BatchRequest,
        BatchView,
    ),
    ("get", "/v1/batches"): ("List the tenant's batches, the newest first.", None, BatchList),
    ("get", "/v1/batches/{batch_id}"): ("Describe one batch.", None, BatchView),
    ("post", "/v1/batches/{batch_id}/cancel"): ("Cancel a batch.", None, BatchView),
    ("post", "/v1/files"): ("Upload a file, as multipart/form-data.", None, FileObject),
    ("get", "/v1/files"): ("List the tenant's files.", None, FileList),
    ("get", "/v1/files/{file_id}"): ("Describe one file.", None, FileObject),
    ("delete", "/v1/files/{file_id}"): ("Remove a file.", None, FileDeleted),
    ("get", "/v1/files/{file_id}/content"): ("Download a file, or a range of it.", None, bytes),
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
    ("get", "/docs"): ("Show this document to somebody who reads.", None, None),
}


# What an answer's `type` is where it is no JSON document.
_STREAMS: Final = ("/v1/chat/completions", "/v1/completions", MESSAGES, RESPONSES)
_KEYED: Final = tuple(
    ("POST", path) for path in (*_STREAMS, "/v1/embeddings", "/v1/batches", _MESSAGE_BATCHES)
)
_BYTES: Final[dict[str, Any]] = {"application/octet-stream": {}}
_PLAIN: Final = {"text/plain": {"schema": {"type": "string"}}}
_OPEN: Final = {
    "/": {"text/html": {"schema": {"type": "string"}}},
    "/version": {},
    "/openapi.json": {},
}
# What any request with a key may be answered; one with a body, and one that computes, more.
_WITH_KEY: Final = (
    errors.InvalidRequest,
    errors.AuthenticationFailed,
    errors.PermissionDenied,
    errors.TenantLimited,
    errors.InternalFailure,
    errors.Overloaded,
)
_NAMING: Final = (errors.ModelNotFound,)
_READING: Final = (errors.RequestTimedOut, errors.BodyTooLarge)
_REMOVING: Final = (errors.FileInUse,)
_RANGING: Final = (errors.RangeNotSatisfiable,)
_COMPUTING: Final = (errors.IdempotencyConflict, errors.IdempotencyMismatch)


# Each path with its methods.
Paths = tuple[tuple[str, tuple[str, ...]], ...]


def paths_of(routes: Sequence[Route]) -> Paths:
    """Return what of routes goes into their description."""
    return tuple((one.path, tuple(sorted((one.methods or set()) - {"HEAD"}))) for one in routes)


def document(routes: Paths, *, version: str, served: Served) -> dict[str, Any]:
    """Build the OpenAPI 3.1 document of `routes`. Raises: KeyError for an undescribed route."""
    types = [t for op in _OPERATIONS.values() for t in op[1:] if t not in (None, bytes)]
    paths: dict[str, dict[str, Any]] = {}
    for named, methods in routes:
        path = named.replace(":path}", "}")
        if path == "/v1/embeddings" and served.embeddings is None:
            # It answers, but with nothing that it could be asked for.
            continue
        for method in methods:
            operation = _operation(method, path, *_OPERATIONS[method.lower(), path], served)
            paths.setdefault(path, {})[method.lower()] = operation
    components = bounded([*types, *ITEM_TYPES, ErrorBody, MessagesError], served)
    describe_messages(components, served)
    describe_responses(components, served)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sluice", "version": version, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def endpoint(described: Mapping[str, Any]) -> Any:
    """Return the handler of `/openapi.json`, its body encoded once."""
    body = msgspec.json.encode(described)

    async def show(request: Request) -> Response:
        return Response(body, media_type="application/json")

    return show


_IDEMPOTENCY_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    # As it is, but for spaces around it, which no server sees.
    "schema": {
        "type": "string",
        "minLength": 1,
        "maxLength": MAX_KEY_CHARS,
        "pattern": "^[!-~]([ -~]*[!-~])?$",
    },
    "description": "Runs and bills once: a retry with the same key and body gets the same answer.",
}


def _operation(
    method: str,
    path: str,
    summary: str,
    request: type | None,
    response: type | None,
    served: Served,
) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": summary}
    if parameters := _parameters(method, path, served):
        operation["parameters"] = parameters
    if request is not None:
        operation["requestBody"] = {"required": True, "content": _content(request)}
    if response is None:
        operation["responses"] = _open_responses(path)
        return operation
    is_upload = (method, path) == ("POST", "/v1/files")
    if is_upload:
        form = {"multipart/form-data": {"schema": UPLOAD_FORM}}
        operation["requestBody"] = {"required": True, "content": form}
    operation["security"] = [{"key": []}]
    answer = _BYTES if response is bytes else _content(response)
    if response is MessageBatchResult:
        answer = {"application/x-jsonl": {}}
    if path in _STREAMS:
        answer |= {"text/event-stream": {}}
    refusals: list[type[errors.GatewayError]] = [*_WITH_KEY]
    refusals += _READING if request is not None or is_upload else ()
    refusals += _REMOVING if method == "DELETE" or response is MessageBatchResult else ()
    refusals += _RANGING if response is bytes else ()
    refusals += _NAMING if path != "/v1/models" else ()
    refusals += _COMPUTING if (method, path) in _KEYED else ()
    answers = {"200": {"description": "OK", "content": answer}}
    if response is bytes:
        answers["206"] = {"description": "The range that was asked for.", "content": answer}
    shape = MessagesError if speaks_anthropic(path) else ErrorBody
    operation["responses"] = answers | {
        str(status): {"description": _phrase(status), "content": _content(shape)}
        for status in sorted({status_of(STATUS[kind][0], path) for kind in refusals})
    }
    return operation


def _phrase(status: int) -> str:
    return "Overloaded" if status == OVERLOADED else HTTPStatus(status).phrase


def _open_responses(path: str) -> dict[str, Any]:
    """Describe the answers of a route that needs no key."""
    if path == "/docs":
        return {"200": {"description": "OK", "content": _OPEN["/"]}}
    if path in _OPEN:
        content = {"application/json": {"schema": {"type": "object"}}} | _OPEN[path]
        return {"200": {"description": "OK", "content": content}}
    unwell = {"description": "The first part that is not well.", "content": _PLAIN}
    return {"200": {"description": "OK", "content": _PLAIN}, "503": unwell}


def _parameters(method: str, path: str, served: Served) -> list[dict[str, Any]]:
    names = {"type": "string", "enum": list(served.names)}
    if path.endswith("/input_items"):
        return INPUT_ITEM_PARAMETERS
    if path.startswith(f"{RESPONSES}/"):
        return RESPONSE_ID_PARAMETER
    if path.startswith("/v1/files/"):
        return [ID_PARAMETER]
    if (method, path) == ("GET", "/v1/files"):
        return LIST_PARAMETERS
    if path.startswith("/v1/batches/"):
        return [BATCH_ID_PARAMETER]
    if (method, path) == ("GET", "/v1/batches"):
        return BATCH_LIST_PARAMETERS
    if path.startswith(f"{_MESSAGE_BATCHES}/"):
        return [MESSAGE_BATCH_ID_PARAMETER]
    if (method, path) == ("GET", _MESSAGE_BATCHES):
        return MESSAGE_BATCH_LIST_PARAMETERS
    if (method, path) in _KEYED:
        return [_IDEMPOTENCY_KEY]
    if path == "/v1/models/{model}":
        return [{"name": "model", "in": "path", "required": True, "schema": names}]
    if path == "/tokenizer_info":
        needed = served.has_several
        return [{"name": "model", "in": "query", "required": needed, "schema": names}]
    return described_usage_params(BY) if path == "/v1/usage" else []


def _content(kind: type) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}
