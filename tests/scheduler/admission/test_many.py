"""What is asked of the queue before many requests of a sender join it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fakes
from fakes import Driver
from scheduler.config import first_come
from scheduler.core import Scheduler
from scheduler.request import Admit, RejectCode, Sender

FLOOD, VICTIM = Sender(tenant_id="flood"), Sender(tenant_id="victim")
NUM_SLOTS = 8


def queue(num_flood: int, num_victim: int = 0, *, max_tokens: int | None = None) -> Scheduler:
    """A scheduler with so many requests of ten tokens waiting, and a hundred places."""
    driver = Driver(fakes.make_engine(max_num_seqs=NUM_SLOTS, num_blocks=4000))
    config = first_come(max_num_queued=100)
    admission = replace(config.admission, max_queued_tokens=max_tokens)
    scheduler = Scheduler(driver.engine.info, replace(config, admission=admission))
    for tenant_id, number in (("flood", num_flood), ("victim", num_victim)):
        for place in range(number):
            assert offer(scheduler, tenant_id, place), "there is room so far"
    return scheduler


def offer(scheduler: Scheduler, tenant_id: str, place: int) -> bool:
    request = fakes.make_request(f"{tenant_id}-{place}", prompt=[1] * 10, tenant_id=tenant_id)
    return isinstance(scheduler.offer(request, 0.0), Admit)


@pytest.mark.parametrize(("num_requests", "fits"), [(49, True), (50, True), (51, False)])
def test_the_last_of_them_is_what_counts(num_requests: int, fits: bool) -> None:
    """Of a hundred places ninety are anybody's: a tenant that has forty is told at once that it is
    not given fifty-one more, and that this is its own doing.
    """
    scheduler = queue(40)
    refusal = scheduler.refuse_many(FLOOD, num_requests, 10 * num_requests)
    assert (refusal is None) == fits
    if refusal is not None:
        assert refusal.code is RejectCode.TENANT_LIMITED
        assert refusal.cause == "queue_requests"
        assert scheduler.snapshot().num_rejected == 1
    assert scheduler.refuse_many(VICTIM, 31, 310) is None, "who has nothing there has its part"


def test_who_has_nothing_there_finds_room_for_its_part() -> None:
    """With ninety of others there ten places are left for who is new; what one asks for beyond a
    third of all is its own doing, and one request is taken.
    """
    scheduler = queue(45, 45)
    newcomer = Sender(tenant_id="newcomer")
    assert scheduler.refuse_many(newcomer, 1, 10) is None
    refusal = scheduler.refuse_many(newcomer, 60, 600)
    assert refusal is not None
    assert refusal.code is RejectCode.TENANT_LIMITED
    assert scheduler.refuse_many(newcomer, 8, 80) is None


def test_nobody_waits_for_slots_that_are_free() -> None:
    """With eight slots and nothing waiting, 97 requests find room where 108 do not."""
    scheduler = queue(0)
    assert scheduler.refuse_many(FLOOD, 50 + NUM_SLOTS, 500) is None
    assert scheduler.refuse_many(FLOOD, 100 + NUM_SLOTS + 1, 1090) is not None


@given(
    num_flood=st.integers(0, 45),
    num_victim=st.integers(0, 45),
    num_requests=st.integers(2, 120),
    max_tokens=st.sampled_from([None, 300, 1000]),
)
def test_nobody_is_refused_who_would_be_taken_in(
    num_flood: int, num_victim: int, num_requests: int, max_tokens: int | None
) -> None:
    """Whoever is told that there is no room would have been told so by one of its requests."""
    if max_tokens is not None:
        num_flood, num_victim = num_flood % 8, num_victim % 4
    scheduler = queue(num_flood, num_victim, max_tokens=max_tokens)
    if scheduler.refuse_many(FLOOD, num_requests, 10 * num_requests) is not None:
        assert not all(offer(scheduler, "flood", num_flood + n) for n in range(num_requests))
