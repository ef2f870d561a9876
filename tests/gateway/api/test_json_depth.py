"""How deep a body may be."""

from __future__ import annotations

import json

import pytest

from gateway.api.json_depth import MAX_JSON_DEPTH, check_depth
from gateway.errors import InvalidRequest


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def test_a_body_may_be_as_deep_as_allowed_and_no_deeper() -> None:
    """32 levels pass, 33 do not, wherever they are."""
    check_depth(nested(MAX_JSON_DEPTH))
    with pytest.raises(InvalidRequest):
        check_depth(nested(MAX_JSON_DEPTH + 1))
    with pytest.raises(InvalidRequest):
        check_depth(b'{"a": [1, ' + b'{"b":' * MAX_JSON_DEPTH + b"1")


def test_wide_is_not_deep() -> None:
    """Any number of brackets beside each other pass, and so do brackets in texts."""
    check_depth(json.dumps([{"role": "user", "content": "[" * 99}] * 200).encode())
    check_depth(json.dumps({"a": 'quo"te' + "{[\\" * 99}).encode())


def test_a_string_without_end_is_left_to_the_decoder() -> None:
    """Megabytes of an unfinished string are passed over, not tried again from each byte."""
    check_depth(b"{}" * 40 + b'"' + b"\\" * (4 << 20))
