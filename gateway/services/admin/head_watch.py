"""Keeps the audit log's head on this machine, and posts it to a URL of the operator's.

Who can write to the database can cut the log off, or make a new one where the secret is known. A
head that is somewhere else tells: one is in a file here, looked at every few seconds and moved only
where the one before is still in the log; where it is not, the file stays as it is, for `verify`,
and the process says so. Another goes to a webhook when it has moved, signed as threshold events are
(`gateway.services.quotas.webhook`): the newest alone, again until it is taken, so that one is never
behind for longer than the receiver was away. Several gateways post the same head under one id.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final
from uuid import UUID

import msgspec

from gateway.background import JITTER, Background
from gateway.domain.admin import AuditHead
from gateway.errors import StoreUnavailable
from gateway.ports import AuditStore, Clock, HeadKeeper
from gateway.services.quotas import DeliveryFailed, Webhook

logger = logging.getLogger(__name__)

KEEP_S: Final = 10.0
# The waits after a post that failed; the newest head is tried, not the one that failed.
RETRY_S: Final = (5.0, 30.0, 60.0)
_LOG_S: Final = 60.0


class HeadWatch:
    """Keep an organisation's head; enter `running` to have it done in the background.

    `on_lost` is told after each look whether the head that is kept is gone from the log.
    """

    def __init__(
        self,
        log: AuditStore,
        organisation_id: UUID,
        kept_heads: HeadKeeper,
        *,
        on_lost: Callable[[bool], None] = lambda is_lost: None,
        interval_s: float = KEEP_S,
    ) -> None:
        self._log = log
        self._organisation_id = organisation_id
        self._kept_heads = kept_heads
        self._on_lost = on_lost
        self._interval_s = interval_s
        self._was_lost = False

    def running(self) -> Background:
        """Look while the block runs."""
        return Background(
            "keeping the audit log's head",
            self.look,
            interval_s=self._interval_s,
            jitter=JITTER,
            at_once=True,
            # Who needs the store says more of its being away than this.
            level=logging.DEBUG,
        )

    async def look(self) -> None:
        """Keep the newest head, where the one that is kept is in the log.

        Raises: `StoreUnavailable`.
        """
        kept = await asyncio.to_thread(self._kept_heads.read, self._organisation_id)
        is_lost = kept is not None and kept != await self._log.head_was(
            self._organisation_id, kept.seq
        )
        if kept is not None and is_lost and not self._was_lost:
            logger.error(
                "record %d of the audit log is not what it was: the log was cut off or made anew, "
                "or the database is an older copy; see 'sluice audit verify'",
                kept.seq,
            )
        self._was_lost = is_lost
        self._on_lost(is_lost)
        newest = await self._log.head(self._organisation_id)
        if not is_lost and newest is not None and newest != kept:
            await asyncio.to_thread(self._kept_heads.write, self._organisation_id, newest)


class HeadPost:
    """Post an organisation's head when it has moved; enter `running` to have it done."""

    def __init__(
        self,
        log: AuditStore,
        organisation_id: UUID,
        webhook: Webhook,
        *,
        interval_s: float,
        on_failed: Callable[[], None] = lambda: None,
        clock: Clock = time,
        retry_s: tuple[float, ...] = RETRY_S,
    ) -> None:
        self._log = log
        self._organisation_id = organisation_id
        self._webhook = webhook
        self._interval_s = interval_s
        self._on_failed = on_failed
        self._clock = clock
        self._retry_s = retry_s
        self._posted: AuditHead | None = None
        self._told_at = float("-inf")

    def running(self) -> Background:
        """Post while the block runs: what is there first, and then at most once an interval."""
        return Background(
            "posting of the audit log's head",
            self.post,
            interval_s=self._interval_s,
            at_once=True,
            retry_s=self._retry_s,
            outages=(StoreUnavailable, DeliveryFailed),
            # `post` has told of its failures itself.
            level=logging.DEBUG,
        )

    async def post(self) -> None:
        """Post the newest head, if it is another one.

        Raises: `DeliveryFailed`, `StoreUnavailable`.
        """
        head = await self._log.head(self._organisation_id)
        if head is None or head == self._posted:
            return
        try:
            await self._webhook.post(
                f"audit-{head.seq}-{head.hash.hex()[:16]}", _message(self._organisation_id, head)
            )
        except DeliveryFailed as exc:
            self._failed(head, exc)
            raise
        self._posted = head

    def _failed(self, head: AuditHead, exc: DeliveryFailed) -> None:
        self._on_failed()
        now = self._clock.monotonic()
        if now - self._told_at >= _LOG_S:
            self._told_at = now
            logger.warning("the audit log's head %d could not be posted: %s", head.seq, exc)


def _message(organisation_id: UUID, head: AuditHead) -> str:
    document = {
        "type": "audit.head",
        "timestamp": head.at,
        "data": {"organisation": str(organisation_id), "seq": head.seq, "hash": head.hash.hex()},
    }
    return msgspec.json.encode(document).decode()
