"""Requests under their leases: what is held is let go however a start fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

from gateway.domain import Principal, Tier
from gateway.errors import Overloaded
from tests.fake_quotas import leased

pytestmark = pytest.mark.anyio

SOMEBODY = Principal(UUID(int=1), UUID(int=2), "acme", 1.0, UUID(int=3), "kid")


class Refusing:
    """Start so many generations and refuse the next, as a scheduler does that is full."""

    pool = None

    def __init__(self, num_started: int) -> None:
        self.num_started = num_started
        self.num_closed = 0

    async def prepare(self, tenant_id: UUID, model: Any, jobs: Any, **more: Any) -> Any:
        return [SimpleNamespace(num_tokens=2, max_tokens=5) for _ in jobs]

    def submit(self, *args: Any, **more: Any) -> Any:
        if not self.num_started:
            raise Overloaded("full", retry_after_s=1)
        self.num_started -= 1
        return self

    def close(self) -> None:
        self.num_closed += 1


@pytest.mark.parametrize("num_started", [0, 1])
async def test_a_request_that_the_scheduler_refuses_is_refunded(num_started: int) -> None:
    """What it had started already is closed, nothing is billed, and nothing stays held."""
    inference, rows = Refusing(num_started), []
    async with leased(inference, rows) as leases:  # type: ignore[arg-type]
        with pytest.raises(Overloaded):
            await leases.start(
                SOMEBODY,
                SimpleNamespace(name="demo"),  # type: ignore[arg-type]
                [object(), object()],  # type: ignore[list-item]
                Tier.DEFAULT,
                request_id=uuid4().hex,
                choices_per_prompt=1,
            )
    assert inference.num_closed == num_started
    assert rows == []
