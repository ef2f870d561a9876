"""Fakes of the ports of quotas: counters that hold whatever is asked, a ledger in a list.

Whoever runs requests on them has to end each: `leased` sees to it that every hold was let go, once.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from gateway.api.body import SHORT_BODY_BYTES
from gateway.domain.counters import (
    Answer,
    CounterReply,
    Done,
    Extend,
    Extended,
    Held,
    Keep,
    Kept,
    Op,
    Reserve,
    Settle,
    Sweep,
    Swept,
)
from gateway.domain.limits import BASE_S, LedgerSnapshot, Sums, Told
from gateway.domain.price import Price
from gateway.domain.usage import UsageRow
from gateway.services.inference.leased import LeasedInference
from gateway.services.inference.service import InferenceService
from gateway.services.quotas.entry import Entry
from gateway.services.quotas.lease import Books
from gateway.services.quotas.link import CounterLink
from gateway.services.quotas.service import QuotaService
from gateway.telemetry.metrics import Metrics
from tests.gateway.services.quotas.scripted import until


class OpenCounters:
    """Hold everything, and note what was held and what was let go, how often."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.let_go: Counter[str] = Counter()

    async def run(self, ops: Sequence[Op]) -> CounterReply:
        self.held |= {op.request_id for op in ops if isinstance(op, Reserve)}
        self.let_go.update(op.request_id for op in ops if isinstance(op, Settle))
        now_us = int((time.time() - BASE_S) * 1_000_000)
        return CounterReply("epoch", 0, now_us, [_answer(op, now_us) for op in ops])

    def begin(
        self, ops: Sequence[Op], on_reply: Callable[[CounterReply | Exception], None]
    ) -> bool:
        return False


def _answer(op: Op, now_us: int) -> Answer:
    if isinstance(op, Reserve):
        return Held(now_us)
    if isinstance(op, Extend):
        return Extended(op.tokens)
    if isinstance(op, Keep):
        return Kept(1, {})
    if isinstance(op, Sweep):
        return Swept(0, 0, [])
    return Done()


class NothingUsed:
    """A ledger without rows."""

    async def used(self, wanted: Sequence[Any]) -> Sequence[Sums]:
        return [Sums()] * len(wanted)

    async def booked(self, ids: Collection[UUID], since_s: float) -> Mapping[UUID, Told]:
        return {}

    async def snapshot(
        self, wanted: Sequence[Any], ids: Collection[UUID], since_s: float
    ) -> LedgerSnapshot:
        return LedgerSnapshot([Sums()] * len(wanted), [{}] * len(wanted), {})


class FixedPrice:
    """One price for every model, or none."""

    def __init__(self, price: Price | None = None) -> None:
        self._price = price

    def price(self, model: str) -> Price | None:
        return self._price


async def _flushed() -> None:
    return


def open_quotas(
    rows: list[UsageRow] | None = None,
    counters: OpenCounters | None = None,
    price: Price | None = None,
) -> QuotaService:
    """Make a service that refuses nothing and writes its bills into `rows`."""
    metrics = Metrics()
    link = CounterLink(counters or OpenCounters(), time, metrics, build_s=0)
    books = Books(append=([] if rows is None else rows).append, note=lambda *told: None)
    prices = FixedPrice(price)
    return QuotaService(link, NothingUsed(), prices, books, metrics, flush_ledger=_flushed)


@asynccontextmanager
async def leased(
    inference: InferenceService,
    rows: list[UsageRow] | None = None,
    price: Price | None = None,
) -> AsyncIterator[LeasedInference]:
    """Let an inference service run on quotas that refuse nothing; on leaving, nothing may run."""
    counters = OpenCounters()
    quotas = open_quotas(rows, counters, price=price)
    yield LeasedInference(inference, quotas, Entry(quotas, short_bytes=SHORT_BODY_BYTES))
    # Who left without his answer may have left something to end.
    await until(lambda: not list(quotas.live))
    await quotas.link.flush()
    await quotas.link.close()
    assert counters.let_go == Counter(counters.held), "each hold is let go once"
