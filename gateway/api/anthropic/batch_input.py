"""The requests of a batch that came in one body, as the lines that a batch's input has.

Each is looked at as a line of an uploaded file is, so that what is wrong with one is said at once,
by its place. Whether its parameters are good is found out when it runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from gateway.api.access import require_model
from gateway.api.anthropic.batch_schemas import (
    CUSTOM_ID,
    BatchedMessage,
    MessageBatchRequest,
)
from gateway.api.body import JsonBody
from gateway.api.json_parts import gathered, giving_way
from gateway.domain import Principal
from gateway.errors import InvalidRequest, ModelNotFound
from gateway.services.batches import BadLine, read_line
from gateway.services.batches.batch_input import MAX_ITEMS
from gateway.services.batches.item_line import MAX_LINE_BYTES
from gateway.services.batches.message_batches import ENDPOINT
from gateway.services.inference import ModelRegistry

_CUSTOM_ID: Final = re.compile(CUSTOM_ID, re.ASCII)
_LINE: Final = b'{"custom_id":%b,"method":"POST","url":"' + ENDPOINT.encode() + b'","body":%b}\n'
_body: Final = JsonBody(MessageBatchRequest, checks_shape=False)
# A string of JSON holds neither as it is: they stand between values.
_ENDS: Final = bytes.maketrans(b"\r\n", b"  ")


def read_requests(
    raw: bytes, principal: Principal, models: ModelRegistry
) -> tuple[list[bytes], int]:
    """Return the lines in parts of about 64 KiB, and how many they are; call it on a thread.

    Raises: `InvalidRequest`, `ModelNotFound`, `PermissionDenied`, each with the request's place.
    """
    requests = _body.decode(raw).requests
    if not 1 <= len(requests) <= MAX_ITEMS:
        raise InvalidRequest(
            f"'requests' must hold 1 to {MAX_ITEMS} requests, not {len(requests)}.",
            param="requests",
        )
    return list(giving_way(gathered(_lines(requests, principal, models)))), len(requests)


def _lines(
    requests: list[BatchedMessage], principal: Principal, models: ModelRegistry
) -> Iterator[bytes]:
    seen: dict[str, int] = {}
    known: set[str] = set()
    for index, request in enumerate(requests):
        where = f"requests[{index}]"
        if not _CUSTOM_ID.fullmatch(request.custom_id):
            raise InvalidRequest(f"A 'custom_id' matches {CUSTOM_ID}.", param=f"{where}.custom_id")
        first = seen.setdefault(request.custom_id, index)
        if first != index:
            raise InvalidRequest(
                f"requests[{first}] has the same 'custom_id'.", param=f"{where}.custom_id"
            )
        line = _line(request, where)
        model = _model(line, where)
        if model not in known:
            _check_model(model, principal, models, where)
            known.add(model)
        yield line


def _line(request: BatchedMessage, where: str) -> bytes:
    custom_id = msgspec.json.encode(request.custom_id)
    line = _LINE % (custom_id, bytes(request.params).translate(_ENDS))
    if len(line) > MAX_LINE_BYTES:
        raise InvalidRequest(
            f"A request of a batch may have {MAX_LINE_BYTES >> 20} MiB.", param=f"{where}.params"
        )
    return line


def _model(line: bytes, where: str) -> str:
    """Return the model that a line asks for. Raises: `InvalidRequest`: it may not run."""
    try:
        read = read_line(line, ENDPOINT)
        if bytes(read.prompt[:1]) != b"[":
            raise BadLine("invalid_type", "'body.messages' must be a list.", "body.messages")
        return read.model
    except BadLine as exc:
        param = (exc.param or "body").replace("body", "params", 1)
        message = exc.message.replace("body", "params", 1)
        raise InvalidRequest(message, param=f"{where}.{param}", code=exc.code) from None


def _check_model(name: str, principal: Principal, models: ModelRegistry, where: str) -> None:
    try:
        require_model(principal, models.get(name))
    except ModelNotFound as exc:
        raise ModelNotFound(exc.message, param=f"{where}.params.model") from None
