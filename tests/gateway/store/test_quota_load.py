"""Counters that lost everything learn from the ledger what was used, exactly, whoever settles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec
import pytest
from redis import Redis

from gateway.domain.counters import (
    Answer,
    Building,
    Done,
    Extend,
    Extended,
    Gone,
    Held,
    HoldAgain,
    Keep,
    Kept,
    Known,
    Load,
    Nothing,
    Recount,
    Reserve,
    Settle,
    Unknown,
    Waiting,
)
from gateway.domain.limits import BASE_S, Amounts, Limits, Told
from gateway.domain.quota import Quota, Scope, ScopeKind
from tests.gateway.store.quota_harness import LEASE_S, Counters, limits_of, used

BUILD_S = 3
NO_VOUCHERS: Final[Mapping[str, int]] = {}
# What the ledger has of those that have a row in it.
USED: Final = {"a": 70, "b": 42}
# Of the tenant whose day it is.
META: Final = msgspec.json.encode([UUID(int=8), UUID(int=1), UUID(int=9)]).decode()
LEASE_US = LEASE_S * 1_000_000
TENANT: Final = Scope(ScopeKind.TENANT, UUID(int=1))


class Emptied:
    """Counters of a tenant's day that were emptied while requests ran."""

    def __init__(self, redis: Redis) -> None:
        self.counters = Counters(redis)
        self.limits = limits_of(self.counters.now_s, tenant=Quota(daily_tokens=1000))
        self.meta = "{}"
        self.since_us = 0

    def come_back(self, id_: str, held: int) -> Answer:
        """Hold again what a gateway held before."""
        amounts = Amounts(1, 0, held, 1, 0, held, 0)
        at_us = int((self.counters.now_s - BASE_S) * 1_000_000)
        op = HoldAgain(id_, self.limits, amounts, at_us, self.meta, LEASE_US)
        [answer] = self.counters.run(op)
        return answer

    def settle(self, id_: str, tokens: int, *, is_unknown: bool = False) -> None:
        """Settle it as a process does that was told that it is not known here, or before."""
        at_us = int((self.counters.now_s - BASE_S) * 1_000_000)
        row = (at_us, META) if is_unknown else (0, "")
        self.counters.run(Settle(id_, used(output=tokens), self.limits, 100, *row))

    def load(
        self,
        ledger: int,
        asked: Sequence[str] = (),
        booked: Sequence[str] = (),
        vouched: Mapping[str, int] = NO_VOUCHERS,
    ) -> Answer:
        """Tell what the ledger has."""
        [limit] = self.limits.limits
        [start_s] = limit.slots()
        lost = [(id_, start_s, amount) for id_, amount in vouched.items()]
        rows = [(id_, USED[id_]) for id_ in booked]
        op = Load(limit, [ledger], asked, rows, lost, self.since_us)
        [answer] = self.counters.run(op)
        if isinstance(answer, Waiting):
            self.since_us = self.since_us or answer.at_us
        return answer

    def extend(self, id_: str, tokens: int) -> Answer:
        [answer] = self.counters.run(Extend(id_, tokens, 0, LEASE_US, Told()))
        return answer

    @property
    def epoch(self) -> str:
        """Return the name of this life."""
        stored: bytes = self.counters.redis.get("sluice:q:epoch")  # type: ignore[assignment]
        return stored.decode().partition(":")[0]

    @property
    def stands(self) -> tuple[int, int]:
        """Return what is used and what is held."""
        [row] = self.counters.look(self.limits)
        return row["used"], row["held"]

    def found_anew(self, *, num_gateways: int = 1) -> None:
        """Begin a life in which everybody has a while to come back."""
        self.counters.run()
        self.counters.redis.delete("sluice:q:epoch")
        wait_s = LEASE_S if num_gateways > 1 else 0
        self.counters.found("again", BUILD_S, wait_s=wait_s, num_gateways=num_gateways)

    def hear_of(self, *gateways: str) -> None:
        """Have gateways say that they live."""
        for gateway in gateways:
            self.counters.run(Keep(gateway, LEASE_US, []))


@pytest.fixture
def emptied(redis_url: str) -> Emptied:
    return Emptied(Redis.from_url(redis_url))


def test_what_settles_after_the_load_is_counted_by_itself(emptied: Emptied) -> None:
    """The ledger did not have it, and what is held is let go."""
    emptied.come_back("a", 100)
    assert emptied.load(50) == Done()
    assert emptied.stands == (50, 100)
    emptied.settle("a", 70)
    assert emptied.stands == (120, 0)


@pytest.mark.parametrize(("booked", "expected"), [((), 162), (("a",), 92), (("a", "b"), 50)])
def test_what_settles_before_the_load_is_counted_once(
    emptied: Emptied, booked: tuple[str, ...], expected: int
) -> None:
    """Whether or not the sums that are loaded have it already."""
    for id_, tokens in (("a", 70), ("b", 42)):
        emptied.come_back(id_, 100)
        emptied.settle(id_, tokens)
    answer = emptied.load(50)
    assert isinstance(answer, Waiting)
    assert sorted(answer.request_ids) == ["a", "b"]
    assert emptied.load(50, ["a", "b"], booked) == Done()
    assert emptied.stands == (expected, 0)
    emptied.settle("a", 70)
    assert emptied.stands == (expected, 0)


def test_what_settles_between_reading_and_loading_makes_it_read_again(emptied: Emptied) -> None:
    """Nobody could tell whether the sums have it."""
    for id_ in ("a", "b"):
        emptied.come_back(id_, 100)
    emptied.settle("a", 70)
    emptied.settle("b", 42)
    answer = emptied.load(50, ["a"], ["a"])
    assert isinstance(answer, Waiting)
    assert sorted(answer.request_ids) == ["a", "b"]
    assert emptied.stands == (0, 0)


def test_what_was_reaped_before_the_load_waits_too(emptied: Emptied) -> None:
    """At what was told of it; its true end corrects that whenever it comes."""
    emptied.come_back("a", 100)
    emptied.counters.run(Keep("gateway", LEASE_US, [("a", Told(10, 0, 20, 0))]))
    emptied.counters.now_s += LEASE_S + 1
    emptied.counters.sweep()
    assert emptied.load(50, ["a"]) == Done()
    assert emptied.stands == (80, 0)
    emptied.settle("a", 45)
    assert emptied.stands == (95, 0)


def test_what_is_held_is_not_used_too_where_it_was_vouched_for(emptied: Emptied) -> None:
    """The ledger's sums have it; its end is counted once, like any other."""
    emptied.come_back("a", 100)
    assert emptied.load(150, vouched={"a": 100}) == Done()
    assert emptied.stands == (50, 100)
    emptied.settle("a", 70, is_unknown=True)
    assert emptied.stands == (120, 0)


@pytest.mark.parametrize("booked", [(), ("a",), ("b",), ("a", "b")])
def test_what_is_held_still_is_not_used_too_where_its_bill_was_quicker(
    emptied: Emptied, booked: tuple[str, ...]
) -> None:
    """The ledger is asked for all that is held; its end is counted once."""
    emptied.meta = META
    emptied.come_back("a", 60)
    emptied.come_back("b", 40)
    emptied.settle("b", 42)
    answer = emptied.load(150)
    assert isinstance(answer, Waiting)
    assert sorted(answer.request_ids) == ["a", "b"]
    assert emptied.load(150, ["a", "b"], booked) == Done()
    was_used = 150 - 70 * ("a" in booked) + 42 * ("b" not in booked)
    assert emptied.stands == (was_used, 60)
    emptied.settle("a", 70)
    assert emptied.stands == (was_used + 70, 0)


def test_what_comes_back_while_the_ledger_is_read_is_asked_for_too(emptied: Emptied) -> None:
    """Its bill may be among the sums."""
    emptied.meta = META
    emptied.come_back("a", 60)
    emptied.counters.now_s += 1
    assert isinstance(emptied.load(150), Waiting)
    emptied.counters.now_s -= 1
    emptied.come_back("b", 40)
    emptied.counters.now_s += 1
    answer = emptied.load(150, ["a"])
    assert isinstance(answer, Waiting)
    assert sorted(answer.request_ids) == ["a", "b"]
    assert emptied.load(150, ["a", "b"], ["b"]) == Done()
    assert emptied.stands == (108, 100)


def test_what_begins_while_the_ledger_is_read_keeps_nobody_waiting(emptied: Emptied) -> None:
    """Somebody begins all the time: it cannot be among the sums."""
    emptied.meta = META
    emptied.come_back("a", 60)
    assert isinstance(emptied.load(150), Waiting)
    emptied.counters.now_s += 1
    emptied.come_back("b", 40)
    assert emptied.load(150, ["a"]) == Done()
    assert emptied.stands == (150, 100)


def test_who_comes_back_after_the_load_holds_what_it_vouched_for(emptied: Emptied) -> None:
    """However full the window is, as that is full of it; and once."""
    assert emptied.load(1000, vouched={"a": 100, "b": 60}) == Done()
    assert emptied.stands == (1000, 0)
    assert emptied.come_back("a", 100) == Done()
    assert emptied.stands == (900, 100)
    assert emptied.come_back("a", 100) == Known()
    emptied.settle("a", 70, is_unknown=True)
    emptied.settle("a", 70, is_unknown=True)
    assert emptied.stands == (970, 0)


def test_who_ends_before_it_comes_back_is_counted_at_what_it_used(emptied: Emptied) -> None:
    """Once, however often that is told."""
    assert emptied.load(1000, vouched={"a": 100}) == Done()
    for _ in range(2):
        emptied.settle("a", 70, is_unknown=True)
    assert emptied.stands == (970, 0)


def test_what_ended_here_and_is_lost_in_the_ledger_is_counted_at_what_it_used(
    emptied: Emptied,
) -> None:
    """Its true row is yet to come into the ledger."""
    emptied.come_back("a", 100)
    emptied.settle("a", 70)
    assert emptied.load(150, ["a"], vouched={"a": 100}) == Done()
    assert emptied.stands == (120, 0)


def test_others_have_got_what_was_loaded_without_it(emptied: Emptied) -> None:
    """Who comes back too late and did not vouch holds what still fits, or nothing."""
    assert emptied.load(950, vouched={"a": 100}) == Done()
    assert emptied.come_back("b", 51) == Gone()
    assert emptied.stands == (950, 0)
    assert emptied.come_back("b", 50) == Done()
    assert emptied.stands == (950, 50)
    # Nor does one that vouched for less than it holds push others out.
    assert emptied.come_back("a", 101) == Gone()
    assert emptied.stands == (950, 50)
    assert emptied.come_back("a", 100) == Done()
    assert emptied.stands == (850, 150)


def test_a_bill_of_what_is_not_known_here_has_its_windows_loaded_again(emptied: Emptied) -> None:
    """They were loaded with it or without: the ledger says which; what is held stays held."""
    assert emptied.load(50) == Done()
    emptied.come_back("b", 40)
    emptied.settle("a", 70, is_unknown=True)
    amounts = Amounts(1, 0, 1, 1, 0, 1, 0)
    asks = Reserve("c", emptied.limits, amounts, META, LEASE_US)
    assert emptied.counters.run(asks) == [Unknown((TENANT,))]
    assert emptied.extend("b", 10) == Unknown()
    assert isinstance(emptied.load(120), Waiting)
    assert emptied.load(120, ["a"], ["a"]) == Done()
    assert emptied.stands == (120, 40)
    assert isinstance(emptied.counters.run(asks)[0], Held)
    assert emptied.extend("b", 10) == Extended(10)
    # That was known from then on, however often it is told.
    emptied.settle("a", 70, is_unknown=True)
    assert emptied.load(120, ["a"], ["a"]) == Known()
    assert emptied.stands == (120, 51)


def test_a_reservation_names_every_scope_that_is_to_be_loaded(redis_url: str) -> None:
    """Those that were loaded are not read again, nor what no window is of."""
    counters = Counters(Redis.from_url(redis_url))
    daily = Quota(daily_tokens=1000)
    limits = limits_of(
        counters.now_s, 1, key=daily, tenant=daily, organisation=Quota(rpm=5), platform=daily
    )
    key, tenant, _, platform = (one.scope for one in limits.limits)
    asks = Reserve("a", limits, Amounts(1, 0, 1, 1, 0, 1, 0), META, LEASE_US)
    assert counters.run(asks) == [Unknown((key, tenant, platform))]
    counters.run(Load(limits.limits[1], [0]))
    assert counters.run(asks) == [Unknown((key, platform))]
    # Loaded, and before the limits became what they are.
    before = limits_of(counters.now_s, 0, key=daily)
    counters.run(Load(before.limits[0], [0]), Load(limits.limits[3], [0]))
    assert counters.run(asks) == [Unknown((key,))]
    counters.run(Load(limits.limits[0], [0]))
    assert isinstance(counters.run(asks)[0], Held)


def test_what_was_settled_here_has_nothing_loaded_again(emptied: Emptied) -> None:
    """Who did not hear that it was asks once more, and its journal may tell of it later."""
    assert emptied.load(50) == Done()
    emptied.come_back("a", 100)
    op = Settle("a", used(output=70), emptied.limits)
    assert [emptied.counters.run(op) for _ in range(2)] == [[Done()], [Known()]]
    emptied.settle("a", 70, is_unknown=True)
    assert emptied.load(50) == Known()
    assert emptied.stands == (120, 0)


def test_a_journal_that_tells_first_takes_nothing_from_who_vouched(emptied: Emptied) -> None:
    """It knows whose the bill is, and not which limits it met."""
    assert emptied.load(1000, vouched={"a": 100}) == Done()
    emptied.counters.run(Settle("a", used(output=70), at_us=1, meta=META))
    emptied.settle("a", 70, is_unknown=True)
    assert emptied.stands == (970, 0)


def test_what_was_not_known_stays_so_until_its_bill_comes(emptied: Emptied) -> None:
    """Who did not hear that it was not known hears it again."""
    assert emptied.load(50) == Done()
    op = Settle("a", used(output=70), emptied.limits)
    assert [emptied.counters.run(op) for _ in range(2)] == [[Nothing()], [Nothing()]]
    emptied.settle("a", 70, is_unknown=True)
    assert isinstance(emptied.load(120), Waiting)
    assert emptied.counters.run(op) == [Known()]


def test_windows_of_whom_the_ledger_has_more_are_loaded_again(emptied: Emptied) -> None:
    """Whoever asks next does it; what is held stays held."""
    assert emptied.load(50) == Done()
    emptied.come_back("b", 40)
    for meta, answer in (("[]", Known()), (META, Done())):
        emptied.counters.run(Recount([meta]))
        assert emptied.load(90) == answer
    assert emptied.stands == (90, 40)


def test_a_bill_of_one_tenant_is_nothing_to_another(emptied: Emptied) -> None:
    """Only those who are billed are loaded again."""
    assert emptied.load(50) == Done()
    meta = msgspec.json.encode([UUID(int=8), UUID(int=2), UUID(int=9)]).decode()
    emptied.counters.run(Settle("a", used(output=70), at_us=1, meta=meta))
    assert emptied.load(50) == Known()


def test_a_soft_budget_is_held_again_however_much_is_used(emptied: Emptied) -> None:
    """It refuses nothing."""
    soft = Quota(budget_nano_usd=10, budget_hard=False)
    emptied.limits = limits_of(emptied.counters.now_s, tenant=soft)
    assert emptied.load(500) == Done()
    amounts = Amounts(1, 0, 1, 1, 0, 1, 40)
    op = HoldAgain("a", emptied.limits, amounts, 0, "{}", LEASE_US)
    assert emptied.counters.run(op) == [Done()]
    assert emptied.stands == (500, 40)


def test_a_gateway_is_waited_for_until_it_has_vouched(emptied: Emptied) -> None:
    """It may hold something that no ledger has."""
    kept: list[Answer] = []
    emptied.hear_of("a", "b")
    for seconds in (19, 2):
        emptied.counters.now_s += seconds
        kept += emptied.counters.run(Keep("b", LEASE_US, []))
    assert kept == [Kept(2, {}), Kept(1, {})]


def test_a_second_load_changes_nothing(emptied: Emptied) -> None:
    """The first to come is believed, and nothing is added twice."""
    emptied.come_back("a", 100)
    emptied.settle("a", 70)
    assert emptied.load(50, ["a"]) == Done()
    assert emptied.load(999) == Known()
    assert emptied.stands == (120, 0)


def test_nothing_is_loaded_before_everybody_had_the_time_to_come_back(emptied: Emptied) -> None:
    """What settles until then is in no hash: the ledger has it by the time that it is read."""
    emptied.found_anew()
    assert isinstance(emptied.load(50), Building)
    emptied.counters.now_s += BUILD_S
    assert emptied.load(50) == Done()


@pytest.mark.parametrize(("booked", "expected"), [((), 120), (("a",), 50)])
@pytest.mark.parametrize("was_given_up", [False, True])
def test_what_ended_in_a_life_before_is_asked_of_the_ledger(
    emptied: Emptied, booked: tuple[str, ...], expected: int, was_given_up: bool
) -> None:
    """It waited in a journal when all was lost: it is counted once, however often it is told."""
    emptied.found_anew()
    if was_given_up:
        # As it is told before its process has noticed that these are other counters.
        emptied.settle("a", 70)
    at_us = int((emptied.counters.now_s - BASE_S) * 1_000_000)
    for _ in range(2):
        emptied.counters.run(Settle("a", used(output=70), at_us=at_us, meta=META))
    emptied.counters.now_s += BUILD_S
    assert isinstance(emptied.load(50), Waiting)
    assert emptied.load(50, ["a"], booked) == Done()
    assert emptied.stands == (expected, 0)


def test_nothing_is_loaded_before_as_many_gateways_are_back_as_there_were(
    emptied: Emptied,
) -> None:
    """One that is cut off may hold something, and have ended what nobody else knows of."""
    emptied.found_anew(num_gateways=2)
    for _ in range(LEASE_S // 2):
        emptied.counters.now_s += 1
        emptied.hear_of("a")
        assert isinstance(emptied.load(50), Building)
    emptied.hear_of("b")
    assert emptied.load(50) == Done()


def test_a_gateway_that_has_not_come_to_this_life_is_not_back(emptied: Emptied) -> None:
    """It has yet to hold again what it holds."""
    emptied.found_anew(num_gateways=2)
    emptied.counters.now_s += BUILD_S
    emptied.hear_of("a")
    for epoch in ("", "the one before"):
        emptied.counters.run(Keep("b", LEASE_US, [], epoch))
        assert isinstance(emptied.load(50), Building)
    emptied.counters.run(Keep("b", LEASE_US, [], emptied.epoch))
    assert emptied.load(50) == Done()


def test_a_gateway_that_died_and_came_back_is_one(emptied: Emptied) -> None:
    """Its next process has another name, and its last one is not heard of any more."""
    emptied.found_anew(num_gateways=2)
    emptied.hear_of("a")
    emptied.counters.now_s += BUILD_S + 1
    emptied.hear_of("a again")
    assert isinstance(emptied.load(50), Building)


def test_gateways_that_never_come_back_are_waited_for_as_long_as_a_lease(
    emptied: Emptied,
) -> None:
    """What they held is let go by then, as ever."""
    emptied.found_anew(num_gateways=2)
    emptied.counters.now_s += LEASE_S - 1
    emptied.hear_of("a")
    assert isinstance(emptied.load(50), Building)
    emptied.counters.now_s += 1
    assert emptied.load(50) == Done()


def test_no_more_is_granted_on_what_nobody_has_counted(emptied: Emptied) -> None:
    """A running request waits until the window is loaded, and then gets what is left of it."""
    emptied.found_anew()
    emptied.come_back("a", 100)
    assert isinstance(emptied.extend("a", 256), Building)
    emptied.counters.now_s += BUILD_S
    assert isinstance(emptied.extend("a", 256), Unknown)
    assert emptied.stands == (0, 100)
    emptied.load(850)
    assert emptied.extend("a", 256) == Extended(50)


def test_who_waits_for_more_keeps_its_lease(emptied: Emptied) -> None:
    """Asking renews it, whatever the answer."""
    emptied.come_back("a", 100)
    for _ in range(3):
        emptied.counters.now_s += LEASE_S - 1
        assert isinstance(emptied.extend("a", 256), Unknown)


def test_a_soft_budget_refuses_nothing_meanwhile(emptied: Emptied) -> None:
    """It is held and settled without being loaded, and exact once it is."""
    soft = limits_of(emptied.counters.now_s, tenant=Quota(budget_nano_usd=10, budget_hard=False))
    emptied.found_anew()
    amounts = Amounts(1, 0, 1, 1, 0, 1, 40)
    op = Reserve("a", soft, amounts, "{}", LEASE_US)
    assert isinstance(emptied.counters.run(op)[0], Held)
    emptied.counters.run(Settle("a", used(output=1, nano_usd=30)))
    emptied.counters.now_s += BUILD_S
    again = Reserve("b", soft, amounts, "{}", LEASE_US)
    assert isinstance(emptied.counters.run(again)[0], Unknown)
    assert _load(emptied.counters, soft, 500) == Done()
    [row] = emptied.counters.look(soft)
    assert row["used"] == 530


def _load(counters: Counters, limits: Limits, ledger: int) -> Answer:
    [limit] = limits.limits
    [answer] = counters.run(Load(limit, [ledger], ["a"]))
    return answer
