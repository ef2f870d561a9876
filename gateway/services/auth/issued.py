"""Which tokens may be ours, told without asking the store: what strangers make up costs no query.

A token that we issue carries a tag, which only who has the root secret can make. Those without one
(given at the first start, or issued before there were tags, by processes of then too) are few and
become no more by themselves: the beginnings of their MACs are kept in memory, read at the start,
and those made since every few seconds. So a token of an older process is good here a few seconds
after it was made, and a stranger's is refused however well it is formed.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Final

from gateway.background import Background
from gateway.credentials import Secrets, Token
from gateway.ports import UntaggedTokenStore

_INTERVAL_S: Final = 5.0
_MAC_BYTES: Final = 8
# A row is dated when its transaction begins, and seen when it ends.
_OVERLAP: Final = timedelta(minutes=1)


class IssuedTokens:
    """Tell tokens that may be ours from those that cannot, while `running` is entered."""

    def __init__(self, store: UntaggedTokenStore, secrets: Secrets) -> None:
        self._store = store
        self._secrets = secrets
        # None: they were never read, and every token may be one of them.
        self._untagged: set[bytes] | None = None
        self._read_at: datetime | None = None

    def may_hold(self, token: Token, mac: bytes) -> bool:
        """Tell whether the store may know a token, whose MAC this is."""
        if self._secrets.is_tagged(token) or self._untagged is None:
            return True
        return mac[:_MAC_BYTES] in self._untagged

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Read them, and go on reading what is new."""
        reading = Background(
            "reading of tokens without a tag",
            self.refresh,
            interval_s=_INTERVAL_S,
            jitter=0.1,
            # Who needs the store says more of its being away than this.
            level=logging.INFO,
        )
        await reading.round()
        async with reading:
            yield

    async def refresh(self) -> None:
        """Read what was made since the last time. Raises: `StoreUnavailable`."""
        since = None if self._read_at is None else self._read_at - _OVERLAP
        macs, self._read_at = await self._store.made_since(since)
        if self._untagged is None:
            self._untagged = set()
        self._untagged.update(macs)
