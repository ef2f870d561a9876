"""Bodies of batches as lines: what is taken, and what is refused by its place."""

from __future__ import annotations

import json
from typing import Any, cast
from uuid import UUID

import pytest

from gateway.api.anthropic.batch_input import read_requests
from gateway.domain import Principal
from gateway.errors import GatewayError, InvalidRequest, ModelNotFound, PermissionDenied
from gateway.services.batches.item_line import MAX_LINE_BYTES, read_line
from gateway.services.inference import ModelRegistry, ServedModel

GOOD: dict[str, Any] = {"model": "sim", "max_tokens": 3, "messages": []}
WHO = Principal(UUID(int=1), UUID(int=2), "acme", 1.0, UUID(int=3), "k")


class OneModel:
    def get(self, name: str) -> ServedModel:
        if name not in ("sim", "alias"):
            raise ModelNotFound(param="model")
        return cast(ServedModel, type("Named", (), {"name": "sim", "aliases": ("alias",)}))


def read(body: bytes, who: Principal = WHO) -> list[bytes]:
    parts, number = read_requests(body, who, cast(ModelRegistry, OneModel()))
    lines = b"".join(parts).splitlines()
    assert len(lines) == number
    return lines


def of(*requests: Any) -> bytes:
    return json.dumps({"requests": requests}).encode()


def test_each_request_is_a_line_that_may_run() -> None:
    """However the body is laid out, a line holds a request as it was sent, text untouched."""
    params = GOOD | {"model": "alias", "system": "a\\nb\n\u2028"}
    body = json.dumps({"requests": [{"custom_id": "a-1", "params": params}]}, indent=1)
    [line] = read(body.replace("\n", "\r\n").encode())
    item = read_line(line, "/v1/messages")
    assert (item.custom_id, item.model) == ("a-1", "alias")
    assert json.loads(bytes(item.body)) == params


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        ({"custom_id": "r0", "params": GOOD}, "requests[1].custom_id"),
        ({"custom_id": "a b", "params": GOOD}, "requests[1].custom_id"),
        ({"custom_id": "a\n", "params": GOOD}, "requests[1].custom_id"),
        ({"custom_id": "a", "params": GOOD | {"stream": True}}, "requests[1].params.stream"),
        ({"custom_id": "a", "params": {"model": "sim"}}, "requests[1].params.messages"),
        (
            {"custom_id": "a", "params": GOOD | {"messages": {}}},
            "requests[1].params.messages",
        ),
        ({"custom_id": "a", "params": GOOD | {"model": "no"}}, "requests[1].params.model"),
        ({"custom_id": "a", "params": GOOD | {"model": 7}}, "requests[1].params.model"),
        ({"custom_id": "a", "params": 7}, "requests[1].params"),
        ({"custom_id": "a", "params": GOOD, "url": "x"}, "requests[1].url"),
        ({"custom_id": "a"}, "requests[1].params"),
        ({"custom_id": "a", "params": GOOD | {"system": "x" * MAX_LINE_BYTES}}, "requests[1]"),
    ],
)
def test_a_bad_request_is_named_by_its_place(request_: dict[str, Any], named: str) -> None:
    """The first one that may not run refuses them all."""
    with pytest.raises(GatewayError) as refused:
        read(of({"custom_id": "r0", "params": GOOD}, request_))
    assert (refused.value.param or "").startswith(named)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", of(), b'{"requests":[{}]}', b"[" * 100_000, b'{"requests":"\xff"}', b"{"],
)
def test_what_is_no_batch_is_refused(body: bytes) -> None:
    """Whatever the bytes are, they are a 400."""
    with pytest.raises(InvalidRequest):
        read(body)


def test_a_key_is_held_to_its_models() -> None:
    """What would fail as it runs, for its key, is refused as it is made."""
    who = Principal(UUID(int=1), UUID(int=2), "a", 1.0, UUID(int=3), "k", models=("other",))
    with pytest.raises(PermissionDenied):
        read(of({"custom_id": "a", "params": GOOD}), who)
