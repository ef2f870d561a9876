"""Sharing with other gateways, over a fake of what carries it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from fakes import ManualClock
from gateway.errors import CountersUnavailable
from gateway.services.replica_shares import LIFE_S, ReplicaShares
from scheduler.order import Account, Rates
from scheduler.request import Band

pytestmark = pytest.mark.anyio

MINE = Account(Band.DEFAULT, "", "acme")
ORG = Account(Band.PRIORITY, "org", "")


class FakeEngine:
    """Serve at set rates, and note what it is leaned by."""

    def __init__(self, rates: Mapping[Account, float]) -> None:
        self.served = rates
        self.leaned: list[tuple[Rates, int]] = []

    def rates(self) -> Rates:
        return self.served

    def lean(self, elsewhere: Rates, num_replicas: int) -> None:
        self.leaned.append((dict(elsewhere), num_replicas))


class FakeModel:
    def __init__(self, name: str, rates: Mapping[Account, float]) -> None:
        self.name = name
        self.service = FakeEngine(rates)


class FakeRates:
    """Keep what replicas say for ever, until `is_away`."""

    def __init__(self) -> None:
        self.said: dict[tuple[str, str], bytes] = {}
        self.is_away = False
        self.lives_s: set[float] = set()

    async def exchange(
        self, topic: str, replica: str, said: bytes, *, life_s: float
    ) -> Sequence[bytes]:
        if self.is_away:
            raise CountersUnavailable(detail="away")
        self.lives_s.add(life_s)
        self.said[topic, replica] = said
        return [v for (t, r), v in self.said.items() if t == topic and r != replica]


async def test_each_hears_what_the_others_serve_of_its_model() -> None:
    """Rates of one account are summed over the others; another model's are left out."""
    carried = FakeRates()
    models = [
        FakeModel("m", {MINE: 2.0, ORG: 1.0}),
        FakeModel("m", {MINE: 3.0}),
        FakeModel("m", {}),
    ]
    other = FakeModel("n", {MINE: 50.0})
    replicas = [ReplicaShares([model], carried) for model in models]
    await ReplicaShares([other], carried).round()
    for _ in range(2):
        for replica in replicas:
            await replica.round()
    assert models[0].service.leaned == [({MINE: 3.0}, 3)]
    assert models[2].service.leaned[-1] == ({MINE: 5.0, ORG: 1.0}, 3)
    assert other.service.leaned == []
    assert carried.lives_s == {LIFE_S}


async def test_who_is_alone_leans_on_nobody() -> None:
    """A single gateway never touches its weights; one that was left takes back what it leaned."""
    carried = FakeRates()
    mine = FakeModel("m", {MINE: 1.0})
    sharing = ReplicaShares([mine], carried)
    await sharing.round()
    assert mine.service.leaned == []
    carried.said["rates:m", "other"] = msgspec.msgpack.encode([(1, "", "acme", 4.0)])
    await sharing.round()
    del carried.said["rates:m", "other"]
    await sharing.round()
    assert mine.service.leaned == [({MINE: 4.0}, 2), ({}, 1)]


async def test_cut_off_it_shares_what_comes_to_itself(caplog: pytest.LogCaptureFixture) -> None:
    """Without Redis weights go back to what they are, and the log has it once."""
    carried, clock = FakeRates(), ManualClock()
    carried.said["rates:m", "other"] = msgspec.msgpack.encode([(1, "", "acme", 4.0)])
    mine = FakeModel("m", {MINE: 1.0})
    sharing = ReplicaShares([mine], carried, clock=clock)
    await sharing.round()
    carried.is_away, clock.now = True, LIFE_S
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await sharing.round()
    assert mine.service.leaned[1:] == [({}, 1)]
    assert len(caplog.records) == 1


async def test_what_was_said_holds_for_a_while_without_redis() -> None:
    """A round that fails brings no weights back; what takes ten rounds to find would be lost."""
    carried, clock = FakeRates(), ManualClock()
    carried.said["rates:m", "other"] = msgspec.msgpack.encode([(1, "", "acme", 4.0)])
    mine = FakeModel("m", {MINE: 1.0})
    sharing = ReplicaShares([mine], carried, clock=clock)
    for carried.is_away, clock.now in ((False, 0.0), (True, 1.0), (False, 2.0), (True, 3.0)):
        await sharing.round()
    assert mine.service.leaned == [({MINE: 4.0}, 2)] * 4


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"a": 1}),
        msgspec.msgpack.encode([(99, "", "acme", 4.0)]),
        msgspec.msgpack.encode([(1, "", "acme", -4.0)]),
        msgspec.msgpack.encode([(1, "", "acme", float("nan"))]),
        msgspec.msgpack.encode([(1, "", "acme", float("inf"))]),
        msgspec.msgpack.encode([(1, "acme", 4.0)]),
    ],
)
async def test_what_is_not_understood_counts_for_nothing(said: bytes) -> None:
    """What another release may say, or somebody wrote there, changes no weight."""
    carried = FakeRates()
    carried.said["rates:m", "other"] = said
    mine = FakeModel("m", {MINE: 1.0})
    await ReplicaShares([mine], carried).round()
    assert mine.service.leaned == [({}, 2)]
