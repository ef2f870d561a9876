"""How much batches have left to do, asked now and then: a scrape does not wait for the database."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from gateway.background import JITTER, Background
from gateway.domain.batch import BatchBacklog
from gateway.ports import BacklogStore

INTERVAL_S: Final = 15.0


class BacklogWatch:
    """Ask what is left; enter `running` to have it done. `on_known` is told each time."""

    def __init__(self, store: BacklogStore, on_known: Callable[[BatchBacklog], None]) -> None:
        self._store = store
        self._on_known = on_known

    def running(self) -> Background:
        """Ask while the block runs."""
        return Background(
            "counting what batches have left",
            self.look,
            interval_s=INTERVAL_S,
            jitter=JITTER,
            at_once=True,
            level=logging.DEBUG,
        )

    async def look(self) -> None:
        """Ask once. Raises: `StoreUnavailable`."""
        self._on_known(await self._store.backlog())
