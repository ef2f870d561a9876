"""What gateways tell each other of their models, over a fake of what carries it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fakes import ManualClock
from gateway.errors import CountersUnavailable
from gateway.services.served_names import LIFE_S, ServedNames

pytestmark = pytest.mark.anyio


class FakeTold:
    """Keep what replicas say for ever, until `is_away`."""

    def __init__(self) -> None:
        self.said: dict[str, bytes] = {}
        self.is_away = False

    async def exchange(
        self, topic: str, replica: str, said: bytes, *, life_s: float
    ) -> Sequence[bytes]:
        if self.is_away:
            raise CountersUnavailable(detail="away")
        assert (topic, life_s) == ("names", LIFE_S)
        self.said[replica] = said
        return [value for key, value in self.said.items() if key != replica]


async def test_names_of_one_other_gateway_are_known() -> None:
    """All that is asked for is served by one of them; what two have together, nobody can run."""
    told = FakeTold()
    gateways = [ServedNames(own, told) for own in (["a"], ["b", "alias"], ["c"])]
    for gateway in gateways * 2:
        await gateway.round()
    first = gateways[0]
    assert first.may_be_elsewhere({"b", "alias"})
    assert first.may_be_elsewhere({"c"})
    assert not first.may_be_elsewhere({"b", "c"})
    assert not first.may_be_elsewhere({"a"})
    assert not first.may_be_elsewhere({"typo"})


async def test_before_anything_was_heard_all_may_be_elsewhere() -> None:
    """A start while Redis is away fails nothing for want of a model."""
    told = FakeTold()
    told.is_away = True
    gateway = ServedNames(["a"], told)
    with pytest.raises(CountersUnavailable):
        await gateway.round()
    assert gateway.may_be_elsewhere({"typo"})
    told.is_away = False
    await gateway.round()
    assert not gateway.may_be_elsewhere({"typo"})


async def test_what_was_heard_outlives_a_redis_that_forgot_it() -> None:
    """For as long as it holds; what nobody understands names nothing."""
    told, clock = FakeTold(), ManualClock()
    told.said = {"newer": b"\xc1", "gone": b"\x91\xa1b"}
    gateway = ServedNames(["a"], told, clock=clock)
    await gateway.round()
    told.said.clear()
    await gateway.round()
    assert gateway.may_be_elsewhere({"b"})
    clock.now += LIFE_S
    await gateway.round()
    assert not gateway.may_be_elsewhere({"b"})
