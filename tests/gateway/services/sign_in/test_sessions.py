"""Sessions that something goes on for, over a fake of their store."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest

from gateway.credentials import Secrets
from gateway.domain.sign_in import Session
from gateway.errors import StoreUnavailable
from gateway.ports import SessionStore
from gateway.services.sign_in.sessions import Sessions

pytestmark = pytest.mark.anyio

GRACE_S = 300.0


class Clock:
    now_s = 1000.0

    def time(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s


class Living:
    """Say that all sessions live, until `is_away`."""

    is_away = False

    async def living(self, ids: Collection[UUID]) -> Collection[UUID]:
        if self.is_away:
            raise StoreUnavailable
        return ids


async def test_what_nobody_can_ask_for_is_over_after_the_grace() -> None:
    """It counts from when the store last answered, and not from before anybody watched."""
    clock, store = Clock(), Living()
    sessions = Sessions(
        cast(SessionStore, store), Secrets(b"r" * 32), UUID(int=1), grace_s=GRACE_S, clock=clock
    )
    await sessions.look()
    clock.now_s += 2 * GRACE_S
    await sessions.look()
    with sessions.watching(cast(Session, SimpleNamespace(id=UUID(int=2)))) as watched:
        store.is_away = True
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await sessions.look()
            clock.now_s += GRACE_S / 2
            assert not watched.is_over
        await sessions.look()
        assert watched.is_over
