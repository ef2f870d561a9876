"""A key that is named and not shown: for who may use it by their role, and for nobody on a socket.

Whoever asks has been asked first whether they may (`admin_ui.routes.playground`). From there on a
request is like any other of the key: its networks, its models, its limits, its price.
"""

from __future__ import annotations

import time
from typing import Protocol

from gateway.domain import KeyRecord, Principal
from gateway.domain.timeline import Timeline
from gateway.errors import AuthenticationFailed
from gateway.ports import Clock


class FindsKeys(Protocol):
    async def find(self, kid: str) -> KeyRecord | None: ...


class ChosenKeys:
    """Tell on whose behalf the key of a public id speaks."""

    def __init__(self, keys: FindsKeys, *, clock: Clock = time) -> None:
        self._keys = keys
        self._clock = clock

    async def authenticate(self, kid: str, timeline: Timeline | None = None) -> Principal:
        """Return the principal of a live key, as the store has it now.

        Raises: `AuthenticationFailed`, `StoreUnavailable`.
        """
        record = await self._keys.find(kid)
        if record is None or record.revoked_at is not None:
            raise AuthenticationFailed(detail=f"not a live key: {kid}")
        if record.expires_at is not None and record.expires_at.timestamp() <= self._clock.time():
            raise AuthenticationFailed(detail=f"over: {kid}")
        return record.principal
