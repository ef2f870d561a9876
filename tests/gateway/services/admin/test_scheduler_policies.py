"""What operators set of the schedulers, by several processes over one real store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

import pytest

from gateway.domain.admin import Actor, AuditEntry, AuditFilter, AuditRecord
from gateway.domain.page import PageRequest
from gateway.domain.scheduler_policy import OperatorPolicy
from gateway.errors import InvalidRequest, ModelNotFound, StoreUnavailable, VersionConflict
from gateway.ports import SchedulerPolicyStore
from gateway.services.admin.scheduler_control import SchedulerControl
from gateway.services.admin.scheduler_policies import REFRESH_S, SchedulerPolicies
from gateway.store import Store
from tests.gateway.fake_scheduling import FakeModel, FakeService

pytestmark = pytest.mark.anyio
ANN, BEA = Actor("ann", "operator"), Actor("bea", "operator")


class Clock:
    """Stand until moved; its wall clock is years off, which nothing may mind."""

    now = 0.0

    def time(self) -> float:
        return -1e9

    def monotonic(self) -> float:
        return self.now


class FakeEpoch:
    """Count; one that is cut off says so, and others never hear of it."""

    def __init__(self) -> None:
        self.value = 0
        self.is_away = False

    async def current(self) -> int | None:
        return None if self.is_away else self.value

    async def advance(self, changed: str | None = None) -> None:
        self.value += not self.is_away

    async def changed(self, after: int, to: int) -> None:
        return


class FickleStore:
    """Answer as a real store until it is away, at all or once a change was written."""

    def __init__(self, store: SchedulerPolicyStore) -> None:
        self._store = store
        self.num_reads = 0
        self.is_away = False
        self.loses_answers = False
        self.before_put: Callable[[], None] = lambda: None
        # Of the first read.
        self.has_read, self.may_answer = asyncio.Event(), asyncio.Event()
        self.may_answer.set()

    async def get(self, organisation_id: UUID) -> OperatorPolicy:
        self.num_reads += 1
        if self.is_away:
            raise StoreUnavailable
        found = await self._store.get(organisation_id)
        if not self.has_read.is_set():
            self.has_read.set()
            await self.may_answer.wait()
        return found

    async def put(
        self, actor: Actor, entry: AuditEntry, policy: OperatorPolicy, *, replaces: int
    ) -> OperatorPolicy:
        self.before_put()
        if self.is_away:
            raise StoreUnavailable
        made = await self._store.put(actor, entry, policy, replaces=replaces)
        if self.loses_answers:
            raise StoreUnavailable
        return made


@dataclass
class Process:
    """Hold one gateway of model `sim`."""

    service: FakeService
    control: SchedulerControl
    policies: SchedulerPolicies
    store: FickleStore
    clock: Clock

    @property
    def policy(self) -> str:
        self.service.step()
        return self.service.config.fairness.policy


def process(store: Store, epoch: FakeEpoch) -> Process:
    service, fickle, clock = FakeService(), FickleStore(store.scheduler_policies), Clock()
    control = SchedulerControl([FakeModel("sim", service, aliases=("alias",))])
    policies = SchedulerPolicies(fickle, store.organisations, control, epoch, clock=clock)
    return Process(service, control, policies, fickle, clock)


@pytest.fixture
def epoch() -> FakeEpoch:
    return FakeEpoch()


@pytest.fixture
def one(store: Store, epoch: FakeEpoch) -> Process:
    return process(store, epoch)


@pytest.fixture
def other(store: Store, epoch: FakeEpoch) -> Process:
    return process(store, epoch)


async def records(store: Store) -> list[AuditRecord]:
    organisation = await store.organisations.default()
    chosen = AuditFilter(object_kind="scheduler")
    found = await store.audit.page(organisation.id, chosen, PageRequest(50))
    return list(found.data)[::-1]


async def test_a_change_reaches_the_others_and_who_starts_later(
    store: Store, epoch: FakeEpoch, one: Process, other: Process
) -> None:
    """One round of the others after the change it holds there, in either direction."""
    await other.policies.follow()
    await one.policies.configure(ANN, {"policy": "fcfs"})
    assert (one.policy, other.policy) == ("fcfs", "vtc")
    await other.policies.follow()
    assert other.policy == "fcfs"
    await other.policies.configure(BEA, {"composer": {"max_bypasses": 4}}, model="alias")
    await one.policies.follow()
    one.service.step()
    assert one.service.config.composer.max_bypasses == 4
    late = process(store, epoch)
    async with late.policies.running():
        assert late.policy == "fcfs"
        assert late.service.config == one.service.config


async def test_who_hears_of_nothing_new_reads_nothing(one: Process, epoch: FakeEpoch) -> None:
    """A round asks Redis; the database is read after changes and every few seconds."""
    for _ in range(5):
        await one.policies.follow()
    assert one.store.num_reads == 1
    one.clock.now = REFRESH_S
    await one.policies.follow()
    await one.policies.follow()
    assert one.store.num_reads == 2


async def test_without_redis_a_change_is_late_and_not_lost(
    one: Process, other: Process, epoch: FakeEpoch
) -> None:
    """Who does not hear of changes looks for them after some seconds."""
    await other.policies.follow()
    epoch.is_away = True
    await one.policies.configure(ANN, {"policy": "fcfs"})
    await other.policies.follow()
    assert other.policy == "vtc"
    other.clock.now = REFRESH_S
    await other.policies.follow()
    assert other.policy == "fcfs"


async def test_a_reset_goes_back_to_each_process_own_settings(
    store: Store, one: Process, other: Process
) -> None:
    """It is told to the others as a change is, and can be of one model."""
    await one.policies.configure(ANN, {"policy": "fcfs"})
    await one.policies.reset(ANN, model="sim")
    await other.policies.follow()
    assert (one.policy, other.policy) == ("vtc", "vtc")
    assert one.control.describe()[0]["set"] == {}
    await one.policies.configure(ANN, {"policy": "edf"})
    [shown] = await one.policies.reset(ANN)
    assert (shown["policy"], one.control.policy.version) == ("vtc", 4)
    assert [(record.entry.action, record.entry.object_id) for record in await records(store)] == [
        ("scheduler.configure", "all"),
        ("scheduler.reset", "sim"),
        ("scheduler.configure", "all"),
        ("scheduler.reset", "all"),
    ]
    await one.policies.reset(ANN)
    assert one.control.policy.version == 4, "nothing was left to be reset"


async def test_of_two_operators_at_two_gateways_one_is_told_of_the_other(
    store: Store, one: Process, other: Process
) -> None:
    """Both saw the same version; the second one's gateway knows what is set once it refuses."""
    done = await asyncio.gather(
        one.policies.configure(ANN, {"policy": "fcfs"}, version=0),
        other.policies.configure(BEA, {"policy": "edf"}, version=0),
        return_exceptions=True,
    )
    [refused] = [answer for answer in done if isinstance(answer, BaseException)]
    assert isinstance(refused, VersionConflict)
    assert isinstance(refused.current, OperatorPolicy)
    assert refused.current.version == 1
    for process in (one, other):
        await process.policies.follow()
    assert one.policy == other.policy == refused.current.every["policy"]
    assert len(await records(store)) == 1


async def test_changes_that_name_no_version_are_all_made(
    store: Store, one: Process, other: Process
) -> None:
    """Each is laid over what the others set meanwhile; versions and records tell of all."""
    changes = [{"composer": {name: 3}} for name in ("max_bypasses", "min_chunk_tokens")]
    changes += [{"policy": "fcfs"}, {"preemption": {"min_run_steps": 9}}]
    await asyncio.gather(
        *(
            (one, other)[number % 2].policies.configure(ANN, change)
            for number, change in enumerate(changes)
        )
    )
    for process in (one, other):
        await process.policies.follow()
        process.service.step()
    assert one.service.config == other.service.config
    assert one.control.policy.version == len(await records(store)) == 4
    config = one.service.config
    assert (config.composer.max_bypasses, config.composer.min_chunk_tokens) == (3, 3)
    assert (config.fairness.policy, config.preemption.min_run_steps) == ("fcfs", 9)


@pytest.mark.parametrize("away", ["at once", "at the write"])
async def test_a_change_without_the_store_is_none(
    store: Store, one: Process, other: Process, away: str
) -> None:
    """It is refused whole: not in force here either, and what held goes on."""
    await one.policies.configure(ANN, {"policy": "fcfs"})

    def leave() -> None:
        one.store.is_away = True

    one.store.before_put = leave
    one.store.is_away = away == "at once"
    with pytest.raises(StoreUnavailable):
        await one.policies.configure(ANN, {"policy": "edf"})
    with pytest.raises(StoreUnavailable):
        await one.policies.follow()
    assert one.policy == "fcfs"
    one.store.is_away = False
    await one.policies.follow()
    await other.policies.follow()
    assert (one.policy, other.policy) == ("fcfs", "fcfs")
    assert len(await records(store)) == 1


async def test_a_change_whose_answer_was_lost_is_found(one: Process, other: Process) -> None:
    """It was made, and nobody could tell: the next round knows, and tells the others."""
    await other.policies.follow()
    one.store.loses_answers = True
    with pytest.raises(StoreUnavailable):
        await one.policies.configure(ANN, {"policy": "fcfs"})
    assert one.policy == "vtc"
    await one.policies.follow()
    await other.policies.follow()
    assert (one.policy, other.policy) == ("fcfs", "fcfs")


async def test_what_was_read_before_a_change_does_not_undo_it(one: Process) -> None:
    """An answer that is late, of a change at the same time, is not laid over that change."""
    one.store.may_answer.clear()
    reading = asyncio.create_task(one.policies.follow())
    await one.store.has_read.wait()
    changing = asyncio.create_task(one.policies.configure(ANN, {"policy": "fcfs"}))
    await asyncio.wait([changing], timeout=0.5)
    one.store.may_answer.set()
    await asyncio.gather(reading, changing)
    assert one.policy == "fcfs"


async def test_a_process_that_starts_without_the_store_has_its_settings(
    one: Process, other: Process, caplog: pytest.LogCaptureFixture
) -> None:
    """It starts, says so in a line, and follows once the store is back."""
    await one.policies.configure(ANN, {"policy": "fcfs"})
    other.store.is_away = True
    async with other.policies.running():
        assert other.policy == "vtc"
        other.store.is_away = False
        async with asyncio.timeout(5):
            while other.policy != "fcfs":
                await asyncio.sleep(0.05)
    assert len([line for line in caplog.messages if "put off" in line]) == 1


async def test_a_change_and_its_record_are_one(store: Store, one: Process) -> None:
    """Both sides are in it; what is refused, or changes nothing, leaves neither."""
    await one.policies.configure(ANN, {"policy": "fcfs"}, model="alias")
    await one.policies.configure(ANN, {"policy": "fcfs"}, model="sim")
    for changes, model in (({"policy": "nope"}, None), ({"policy": "edf"}, "nope")):
        with pytest.raises(InvalidRequest if model is None else ModelNotFound):
            await one.policies.configure(ANN, changes, model=model)
    with pytest.raises(VersionConflict):
        await one.policies.configure(ANN, {"policy": "edf"}, version=0)
    [record] = await records(store)
    assert (record.actor.name, record.entry.object_id) == ("ann", "sim")
    assert (record.entry.before, record.entry.after) == ({"policy": "vtc"}, {"policy": "fcfs"})
    assert one.control.policy.version == 1
    assert one.policy == "fcfs"


async def test_a_record_that_cannot_be_written_leaves_no_change(
    store: Store, one: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are of one transaction."""

    async def fails(*_: object) -> None:
        raise StoreUnavailable

    monkeypatch.setattr(store.scheduler_policies._audit, "append", fails)
    with pytest.raises(StoreUnavailable):
        await one.policies.configure(ANN, {"policy": "fcfs"})
    organisation = await store.organisations.default()
    assert await store.scheduler_policies.get(organisation.id) == OperatorPolicy()
