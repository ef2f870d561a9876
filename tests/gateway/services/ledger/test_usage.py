"""What is asked about usage, put into terms of the ledger, for who may know it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from gateway.domain import ApiKey
from gateway.domain.usage import UsageBy, UsageQuestion, UsageSum, UsageTotals
from gateway.errors import InvalidRequest, NotFound, Overloaded
from gateway.services.ledger.usage import UsageAsked, UsageService
from gateway.store import Store

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 11, 21, 10, 30, 5, tzinfo=UTC)
MIDNIGHT = datetime(2026, 11, 21, tzinfo=UTC)


class FakeUsage:
    """Answer every question with the same batches, and note what was asked and closed."""

    def __init__(self, log: list[str], wait_s: float = 0.0) -> None:
        self.log = log
        self.wait_s = wait_s
        self.batches: list[list[UsageSum]] = []

    async def sums(self, question: UsageQuestion) -> AsyncGenerator[Sequence[UsageSum], None]:
        self.log.append("asked")
        try:
            for batch in self.batches:
                yield batch
                await asyncio.sleep(self.wait_s)
        finally:
            self.log.append("closed")

    async def sums_by(
        self, question: UsageQuestion, ways: Sequence[tuple[UsageBy, ...]]
    ) -> AsyncGenerator[Sequence[tuple[int, UsageSum]], None]:
        async with aclosing(self.sums(question)) as batches:
            async for batch in batches:
                yield [(way, one) for way in range(len(ways)) for one in batch]


class FakeWriter:
    def __init__(self, log: list[str]) -> None:
        self._log = log

    async def flush(self, timeout_s: float) -> bool:
        self._log.append(f"flushed for {timeout_s} s")
        return False


class FixedClock:
    def time(self) -> float:
        return NOW.timestamp()

    def monotonic(self) -> float:
        return 0.0


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def sums(log: list[str]) -> FakeUsage:
    return FakeUsage(log)


@pytest.fixture
def usage(store: Store, sums: FakeUsage, log: list[str]) -> UsageService:
    writer = FakeWriter(log)
    return UsageService(sums, store.keys, store.tenants, writer, max_rows=4, clock=FixedClock())


@pytest.mark.parametrize(
    ("start", "end", "wanted"),
    [
        (None, None, (MIDNIGHT - timedelta(days=29), NOW.replace(hour=12, minute=0, second=0))),
        (MIDNIGHT, None, (MIDNIGHT, NOW.replace(hour=12, minute=0, second=0))),
        (NOW, NOW + timedelta(microseconds=1), (NOW, NOW + timedelta(microseconds=1))),
        (
            None,
            MIDNIGHT - timedelta(hours=9),
            (MIDNIGHT - timedelta(days=30), MIDNIGHT - timedelta(hours=9)),
        ),
        (
            None,
            MIDNIGHT + timedelta(days=90),
            (MIDNIGHT - timedelta(days=29), MIDNIGHT + timedelta(days=90)),
        ),
    ],
    ids=["neither", "from", "both", "to", "to in the future"],
)
async def test_times_that_are_missing(
    usage: UsageService,
    start: datetime | None,
    end: datetime | None,
    wanted: tuple[datetime, datetime],
) -> None:
    """Without `from` it is thirty days, of which the last is today's or that of `to`."""
    asked = UsageAsked(by=(UsageBy.DAY,), start=start, end=end)
    question = await usage.question(asked, organisation_id=uuid4(), tenant_id=None)
    assert (question.start, question.end) == wanted


@pytest.mark.parametrize("end", [NOW, NOW - timedelta(days=1)])
async def test_an_end_not_after_its_start_is_refused(usage: UsageService, end: datetime) -> None:
    """Nothing lies between a moment and itself, or one before it."""
    asked = UsageAsked(by=(), start=NOW, end=end)
    with pytest.raises(InvalidRequest) as refused:
        await usage.question(asked, organisation_id=uuid4(), tenant_id=None)
    assert refused.value.param == "from"


async def test_names_are_looked_up(usage: UsageService, store: Store) -> None:
    """A tenant's name and a key's kid become the ids that the ledger has."""
    organisation_id, acme, _ = await _known(store)
    asked = UsageAsked(by=(), tenant="acme", key=acme.kid, model="m")
    question = await usage.question(asked, organisation_id=organisation_id, tenant_id=None)
    found = (question.tenant_id, question.key_id, question.model, question.organisation_id)
    assert found == (acme.tenant_id, acme.id, "m", organisation_id)


async def test_what_is_anothers_is_as_what_is_not_there(usage: UsageService, store: Store) -> None:
    """A tenant asking for another's key or name gets the refusal of one that never was."""
    organisation_id, acme, globex = await _known(store)

    async def refusal(
        organisation_id: UUID, tenant_id: UUID | None, **asked: str
    ) -> tuple[str, str | None]:
        with pytest.raises(NotFound) as refused:
            await usage.question(
                UsageAsked(by=(), **asked), organisation_id=organisation_id, tenant_id=tenant_id
            )
        return refused.value.message, refused.value.param

    keys = {
        await refusal(organisation_id, globex.tenant_id, key=acme.kid),
        await refusal(organisation_id, globex.tenant_id, key="A" * 12),
        await refusal(organisation_id, globex.tenant_id, key="no\0kid"),
        await refusal(uuid4(), None, key=acme.kid),
        await refusal(organisation_id, None, tenant="globex", key=acme.kid),
    }
    assert len(keys) == 1
    tenants = {
        await refusal(organisation_id, globex.tenant_id, tenant="acme"),
        await refusal(organisation_id, globex.tenant_id, tenant="nobody"),
        await refusal(organisation_id, None, tenant="no\0name"),
        await refusal(uuid4(), None, tenant="acme"),
    }
    assert len(tenants) == 1


async def test_the_spool_is_written_before_the_ledger_is_asked(
    usage: UsageService, log: list[str]
) -> None:
    """Who has just got an answer finds it in the sums; a flush that fails holds nothing up."""
    total, rows = await usage.answer(await _any(usage))
    assert log == ["flushed for 0.5 s", "asked", "closed"]
    assert (total, rows) == (UsageTotals(), [])


async def test_the_total_is_that_of_all_rows(usage: UsageService, sums: FakeUsage) -> None:
    """Every sum is added up over all batches."""
    one = UsageSum(("a",), UsageTotals(1, 2, 3, 4, 5))
    other = UsageSum(("b",), UsageTotals(10, 20, 30, 2**62, 50))
    sums.batches = [[one], [other, other]]
    total, rows = await usage.answer(await _any(usage))
    assert total == UsageTotals(21, 42, 63, 2**63 + 4, 105)
    assert rows == [one, other, other]


async def test_parts_of_several_ways_are_apart_and_the_total_is_of_one(
    usage: UsageService, sums: FakeUsage, log: list[str]
) -> None:
    """Nothing counts twice, the store is asked once, and too many rows are those of all ways."""
    one, other = (UsageSum((name,), UsageTotals(1, 2, 3, 4, 5)) for name in "ab")
    ways = [(UsageBy.DAY,), (UsageBy.MODEL,)]
    sums.batches = [[one], [other]]
    total, parts = await usage.answer_by(await _any(usage), ways)
    assert (total, parts) == (UsageTotals(2, 4, 6, 8, 10), [[one, other]] * 2)
    assert log.count("asked") == 1
    sums.batches = [[one, other], [one]]
    with pytest.raises(InvalidRequest):
        await usage.answer_by(await _any(usage), ways)


async def test_an_answer_that_is_too_large_is_refused(
    usage: UsageService, sums: FakeUsage, log: list[str]
) -> None:
    """It is given up at the first row too many, and what reads the store is closed."""
    sums.batches = [[UsageSum((), UsageTotals())] * 2] * 3
    with pytest.raises(InvalidRequest, match="more than 4 rows"):
        await usage.answer(await _any(usage))
    assert log[-1] == "closed"


@pytest.mark.parametrize("kind", ["answer", "export"])
async def test_a_report_that_takes_too_long_is_given_up(log: list[str], kind: str) -> None:
    """However slowly the store gives it, its transaction ends in time, and the caller is told."""

    slow, nobody = FakeUsage(log, wait_s=0.02), None
    slow.batches = [[UsageSum((), UsageTotals())]] * 1000
    usage = UsageService(slow, nobody, nobody, FakeWriter(log), read_s=0.05)  # type: ignore[arg-type]
    question = await _any(usage)

    async def export() -> None:
        async with usage.export(question, lambda batch: b"x" * len(batch)):
            raise AssertionError("it is not whole")

    with pytest.raises(Overloaded) as refused:
        await (usage.answer(question) if kind == "answer" else export())
    assert refused.value.code == "report_timeout"
    assert log[-1] == "closed"


async def _any(usage: UsageService) -> UsageQuestion:
    return await usage.question(UsageAsked(by=()), organisation_id=uuid4(), tenant_id=None)


async def _known(store: Store) -> tuple[UUID, ApiKey, ApiKey]:
    assert store.first_start is not None
    acme, globex = (issued.key for issued in store.first_start.keys)
    return (await store.organisations.default()).id, acme, globex
