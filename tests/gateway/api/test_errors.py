"""The table from exceptions to statuses."""

from __future__ import annotations

import json

import pytest

from gateway import errors
from gateway.api.errors import STATUS, error_response


def _tree(root: type[errors.GatewayError]) -> list[type[errors.GatewayError]]:
    return [root] + [sub for cls in root.__subclasses__() for sub in _tree(cls)]


@pytest.mark.parametrize("kind", _tree(errors.GatewayError)[1:])
def test_every_error_has_a_status_of_its_own(kind: type[errors.GatewayError]) -> None:
    """No exception of the gateway falls back on a parent's status by accident."""
    assert kind in STATUS


def test_detail_stays_inside() -> None:
    """The internal detail of an error is not part of the answer."""
    response = error_response(errors.InternalFailure(detail="at 0xdeadbeef in /srv/secret"))
    assert b"deadbeef" not in response.body
    assert json.loads(response.body) == {
        "error": {
            "message": errors.InternalFailure.message,
            "type": "server_error",
            "param": None,
            "code": "internal_error",
        }
    }


def test_waiting_time_is_rounded_up() -> None:
    """`retry-after` never tells a client to come back too early."""
    response = error_response(errors.Overloaded(retry_after_s=1.2))
    assert response.headers["retry-after"] == "2"
    assert response.headers["retry-after-ms"] == "1200"


def test_a_limit_that_cannot_be_checked_says_so() -> None:
    """Who is refused because nobody can count finds the same header as who is let through."""
    response = error_response(errors.CountersUnavailable(retry_after_s=1))
    assert response.status_code == 503
    assert response.headers["x-sluice-degraded"] == "quota"
    assert "x-sluice-degraded" not in error_response(errors.StoreUnavailable()).headers
