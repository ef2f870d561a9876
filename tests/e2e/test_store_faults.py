"""Stores that fail under a fleet that serves, at a small size; `make soak` has the full one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.made_stores import MadeStores
from tests.passable import passable_directory
from tests.soak.faulty_stores import faulty_stores
from tests.soak.postgres_away import Away, take_postgres_away
from tests.soak.revocations import Revoked, revocations, without_redis
from tests.soak.store_faults import Sizes, Storm, storm, strikes

# A gateway that gets no processor for 50 ms takes Redis for away.
pytestmark = pytest.mark.alone

GATEWAYS, KEYS = 3, 10
SMALL = Sizes(stop_s=1.2, black_hole_s=1.2, reset_s=0.5, calm_s=0.3)
AWAY_S = 8.0


@dataclass
class Seen:
    """Hold what came of everything that one fleet went through."""

    storm: Storm
    normal: Revoked
    without_redis: Revoked
    away: Away
    logs: str


@pytest.fixture(scope="module")
def seen(made_stores: MadeStores) -> Iterator[Seen]:
    """Bring every fault over one fleet, as starting one takes as long as most of them."""
    with passable_directory() as directory:
        made_stores.copy(directory / "stores")

        async def go_through() -> Seen:
            async with faulty_stores(directory, size=GATEWAYS) as stores:
                seen = Seen(
                    await storm(stores, strikes(stores, SMALL), SMALL.calm_s),
                    await revocations(stores, trials=KEYS, together=KEYS, seed=1),
                    await without_redis(stores, trials=KEYS, together=KEYS, seed=2),
                    await take_postgres_away(stores, away_s=AWAY_S, calm_s=2.0, hurry=True),
                    logs="",
                )
            seen.logs = "".join(log.read_text() for log in directory.glob("gateway-*.log"))
            return seen

        yield asyncio.run(go_through())


def test_no_gateway_meets_what_it_did_not_expect(seen: Seen) -> None:
    """Faults are told in their logs in a line each, without a traceback."""
    assert "the counters do not answer" in seen.logs
    assert "the counters begin anew" in seen.logs
    assert "Traceback" not in seen.logs


def test_faults_of_redis_are_not_seen_by_a_tenant_of_rates(seen: Seen) -> None:
    """Every answer is whole and a 200, and says that it was degraded where nobody could count."""
    answers = seen.storm.answers
    assert answers.soft_failed == []
    assert set(answers.soft) == {"200"}
    assert [fault.fault for fault in seen.storm.faults] == [
        "killed",
        "flushed",
        "stopped",
        "black_holed",
        "reset",
    ]
    for fault in seen.storm.faults:
        assert fault.undegraded == 0, fault
        if fault.is_away:
            assert fault.degraded > 0, fault
            assert fault.gateways_degraded == GATEWAYS, fault


def test_faults_of_redis_close_a_hard_quota_and_open_it_again(seen: Seen) -> None:
    """It is refused with a 503 for as long as nobody can count, and served soon after."""
    assert seen.storm.answers.hard_failed == []
    for fault in seen.storm.faults:
        assert fault.unwary == 0, fault
        assert fault.back_s < 10, fault
        if fault.fault != "reset":
            assert fault.refused > 0, fault


def test_faults_of_redis_let_nobody_pass_a_cap(seen: Seen) -> None:
    """All of the cap is used and no token more; nothing stays held, and the ledger agrees."""
    storm = seen.storm
    assert storm.is_used_up
    assert max(storm.max_used_and_held, storm.max_billed) <= storm.cap
    assert storm.held == 0
    assert storm.used == storm.billed <= storm.cap


def test_a_revoked_key_is_dead_everywhere(seen: Seen) -> None:
    """Soon with Redis and within ten seconds without, and what streams on it is ended."""
    for revoked in (seen.normal, seen.without_redis):
        assert len(revoked.requests_s) == KEYS
        assert len(revoked.streams_s) == KEYS // 2
        assert revoked.wrong == []
    assert seen.without_redis.longest_s < 10


def test_every_answer_is_billed_once_however_long_the_database_was_away(seen: Seen) -> None:
    """Nobody is refused meanwhile, and the journal of a gateway that was killed is replayed."""
    away = seen.away
    assert away.answers.soft_failed == []
    assert away.answers.hard_failed == []
    assert away.hard_5xx == 0
    assert set(away.answers.hard) == {"200"}
    assert away.unready == 0
    assert away.gateways_degraded > 0
    assert away.max_depth > 0
    assert (away.missing, away.unasked, away.duplicates) == (0, 0, 0)
    assert away.rows == away.requests_by_hour
    assert away.rows >= away.whole
