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

    def __init__(self, num_started: int, *, is_full: bool = False) -> None:
        self.num_started = num_started
        self.is_full = is_full
        self.num_closed = self.num_asked = 0

    async def prepare(self, tenant_id: UUID, model: Any, jobs: Any, **more: Any) -> Any:
        return [SimpleNamespace(num_tokens=2, max_tokens=5) for _ in jobs]

    def check_room(self, *args: Any, num_requests: int, **more: Any) -> None:
        self.num_asked = num_requests
        if self.is_full:
            raise Overloaded("full", retry_after_s=1)

    def submit(self, *args: Any, **more: Any) -> Any:
        if not self.num_started:
            raise Overloaded("full", retry_after_s=1)
        self.num_started -= 1
        return self

    def close(self) -> None:
        self.num_closed += 1


async def start(inference: Refusing, num_jobs: int) -> list[Any]:
    """Start a request that is refused; returns what was billed."""
    rows: list[Any] = []
    async with leased(inference, rows) as leases:  # type: ignore[arg-type]
        with pytest.raises(Overloaded):
            await leases.start(
                SOMEBODY,
                SimpleNamespace(name="demo"),  # type: ignore[arg-type]
                [object()] * num_jobs,  # type: ignore[list-item]
                Tier.DEFAULT,
                request_id=uuid4().hex,
                choices_per_prompt=1,
            )
    return rows


@pytest.mark.parametrize("num_started", [0, 1])
async def test_a_request_that_the_scheduler_refuses_is_refunded(num_started: int) -> None:
    """What it had started already is closed, nothing is billed, and nothing stays held."""
    inference = Refusing(num_started)
    assert await start(inference, 2) == []
    assert inference.num_closed == num_started


async def test_nothing_is_handed_over_of_what_has_no_room() -> None:
    """A hundred prompts are refused before the first one is with the scheduler, and free of charge;
    of a single one it is for the scheduler to say.
    """
    inference = Refusing(200, is_full=True)
    assert await start(inference, 100) == []
    assert (inference.num_asked, inference.num_started) == (100, 200)
    alone = Refusing(0, is_full=True)
    assert await start(alone, 1) == []
    assert alone.num_asked == 0
