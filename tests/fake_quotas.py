"""Fakes of the ports of quotas: counters that hold whatever is asked, a ledger in a list."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
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
    Sweep,
    Swept,
)
from gateway.domain.limits import BASE_S, Sums, Told
from gateway.domain.price import Price
from gateway.domain.usage import UsageRow
from gateway.services.inference.leased import LeasedInference
from gateway.services.inference.service import InferenceService
from gateway.services.quotas.entry import Entry
from gateway.services.quotas.lease import Books
from gateway.services.quotas.link import CounterLink
from gateway.services.quotas.service import QuotaService
from gateway.telemetry.metrics import Metrics


class OpenCounters:
    """Hold everything, and note what was asked."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    async def run(self, ops: Sequence[Op]) -> CounterReply:
        self.ops += ops
        now_us = int((time.time() - BASE_S) * 1_000_000)
        return CounterReply("epoch", 0, now_us, [_answer(op, now_us) for op in ops])


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


def leased(
    inference: InferenceService, rows: list[UsageRow] | None = None, price: Price | None = None
) -> LeasedInference:
    """Let an inference service run on quotas that refuse nothing."""
    quotas = open_quotas(rows, price=price)
    return LeasedInference(inference, quotas, Entry(quotas, short_bytes=SHORT_BODY_BYTES))
