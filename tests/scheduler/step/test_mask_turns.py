"""Whose masks are made in a step: costly ones wait in turn, and nobody waits for them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from decode_contest import FIXED_S, ROW_S, Contest, Flood, config_of
from scheduler.order import places
from scheduler.request import Band

# Of what a step takes in these contests, masks may have this much at least.
LEAST_S = 0.002


def longest_s(contest: Contest, num_steps: int) -> float:
    """Say what masks took in the longest of the last steps."""
    return max(contest.masks_s[-num_steps:])


@pytest.mark.parametrize("depth", [1, 2])
def test_costly_masks_do_not_lengthen_steps(depth: int) -> None:
    """Beside thirty rows whose masks take 5 ms each, a row without one draws in every step, and
    none of these takes longer than the one mask that is made in it.
    """
    floods = Flood(tenant="a", streams=1), Flood(tenant="b", streams=30, mask_s=0.005)
    contest = Contest(*floods, depth=depth, config=config_of(0.0)).run(300, settle=60)
    assert longest_s(contest, 300) == pytest.approx(0.005)
    assert contest.tokens["a"] >= 290
    made = np.array(contest.masks_s[-300:])
    assert made.mean() == pytest.approx(LEAST_S, rel=0.15), "what is allowed is also used"


def test_a_busy_machine_gives_masks_no_more() -> None:
    """Where masks take four times what they compute, steps wait for them, and get no longer for
    having waited.
    """
    floods = Flood(tenant="a", streams=1), Flood(tenant="b", streams=40, mask_s=0.001)
    contest = Contest(*floods, config=config_of(0.0))
    contest.mask_stretch = 4.0
    contest.run(200, settle=60)
    assert np.mean(contest.masks_s[-100:]) == pytest.approx(LEAST_S, rel=0.15)


def test_cheap_masks_are_all_made() -> None:
    """Sixty rows whose masks take 10 µs each, as those of schemas do, all draw in every step once
    that is known.
    """
    contest = Contest(Flood(tenant="a", streams=60, mask_s=1e-5), config=config_of(0.0))
    num_rested = contest.run(4).num_rested
    assert contest.run(100).num_rested == num_rested


def test_what_nobody_knows_yet_is_tried_in_few_rows() -> None:
    """Of thirty rows that begin at once a few have their masks made in the first step."""
    contest = Contest(Flood(tenant="a", streams=30, mask_s=0.005), config=config_of(0.0)).run(40)
    assert max(contest.masks_s) <= 4 * 0.005


def test_a_tenant_with_few_masks_waits_for_nobody() -> None:
    """Four rows of 100 µs draw in every step, beside forty of another tenant."""
    floods = Flood(tenant="a", streams=4, mask_s=1e-4), Flood(tenant="b", streams=40, mask_s=1e-3)
    contest = Contest(*floods, config=config_of(0.0)).run(200, settle=20)
    assert contest.tokens["a"] >= 4 * 195
    assert longest_s(contest, 200) < LEAST_S + 2e-3


def test_masks_are_shared_by_weight() -> None:
    """Two tenants that ask for more than there is have it by their weights, of 1 and 3."""
    floods = (
        Flood(tenant="a", streams=20, mask_s=1e-3),
        Flood(tenant="b", streams=20, mask_s=1e-3, weight=3.0),
    )
    contest = Contest(*floods, config=config_of(0.0)).run(800, settle=50)
    assert contest.share("b") == pytest.approx(0.75, rel=0.1)


def test_a_row_alone_runs_however_dear() -> None:
    """Where nothing else is computed a row draws in each step."""
    contest = Contest(Flood(tenant="a", streams=1, mask_s=0.05)).run(40, settle=5)
    assert contest.tokens["a"] == 40


def test_coming_anew_is_no_way_around() -> None:
    """Rows that end after three tokens and come again are taken to cost what the others did."""
    floods = (
        Flood(tenant="a", streams=1),
        Flood(tenant="b", streams=30, output=3, mask_s=0.005),
    )
    contest = Contest(*floods, config=config_of(0.0)).run(300, settle=60)
    assert longest_s(contest, 300) <= 2 * 0.005


def test_the_batch_band_has_what_others_leave() -> None:
    """Its rows' masks are made in what is left of a step's, and not where nothing is."""
    floods = (
        Flood(tenant="a", streams=20, mask_s=1e-3),
        Flood(tenant="b", streams=10, mask_s=1e-3, band=Band.BATCH),
    )
    contest = Contest(*floods, config=config_of(0.0)).run(300, settle=30)
    assert longest_s(contest, 300) < LEAST_S + 2e-3
    assert contest.share("a") > 0.9


def test_every_row_runs_in_time() -> None:
    """With forty rows of a millisecond each, none waits for longer than all of them take."""
    contest = Contest(Flood(tenant="a", streams=40, mask_s=1e-3), config=config_of(0.0)).run(300)
    step_s = FIXED_S + 3 * ROW_S
    assert contest.most_steps_out <= 1.2 * 40 * 1e-3 / max(LEAST_S, 0.5 * step_s)


def test_what_is_little_too_much_waits() -> None:
    """Eight rows of half a millisecond take turns: not all of them are in one step."""
    floods = Flood(tenant="a", streams=1), Flood(tenant="b", streams=8, mask_s=5e-4)
    contest = Contest(*floods, config=config_of(0.0)).run(100, settle=20)
    assert longest_s(contest, 100) < LEAST_S + 1e-3


def test_rows_cost_what_their_own_masks_do() -> None:
    """Twenty rows of 10 µs run with each turn of their tenant's dear one, and not in its place."""
    floods = Flood(tenant="a", streams=1, mask_s=5e-3), Flood(tenant="a", streams=20, mask_s=1e-5)
    contest = Contest(*floods, config=config_of(0.0)).run(300, settle=20)
    assert contest.tokens["a"] > 1000


def test_what_masks_take_is_known_with_the_next_step() -> None:
    """Of twenty rows whose masks take 10 µs, then 5 ms and then 10 µs again, all run in two steps
    more at most, and not in eight, and then again once each has been tried some times.
    """
    floods = Flood(tenant="a", streams=1), Flood(tenant="b", streams=20, output=400, mask_s=1e-5)
    contest = Contest(*floods, config=config_of(0.0)).run(101, settle=20)
    have_masks_take(contest, 5e-3)
    contest.run(40)
    assert sum(each > 4 * 5e-3 for each in contest.masks_s[-40:]) <= 2
    have_masks_take(contest, 1e-5)
    contest.run(120)
    num_rested = contest.num_rested
    assert contest.run(20).num_rested == num_rested


def test_who_has_the_place_of_one_that_has_gone_is_tried_like_anybody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the masks of a tenant took that was swept is not expected of a newcomer in its place."""
    monkeypatch.setattr(places, "_MIN_SWEEP", 8)
    contest = Contest(Flood(tenant="dear", streams=1, mask_s=0.05), config=config_of(0.0)).run(20)
    contest.leave("dear")
    newcomer = contest.replace_place("dear")
    contest.join(Flood(tenant=newcomer, streams=20, mask_s=1e-4))
    contest.run(2)
    assert len(contest.plans[-2].slices) == 20
    assert len(contest.plans[-1].decodes.slots) > 1


def test_slots_that_steps_have_again_have_masks_too() -> None:
    """All of sixteen rows with masks draw once steps are again what they were, where it was
    configured while they were smaller for want of memory.
    """
    contest = Contest(Flood(tenant="a", streams=16), config=config_of(0.0), max_num_seqs=16).run(5)
    scheduler = contest.scheduler
    assert lack_memory(contest)
    assert scheduler.snapshot().max_step_rows == 8
    scheduler.configure(config_of(0.1), contest.now)
    while lack_memory(contest):
        pass
    assert scheduler.snapshot().max_step_rows == 16
    while contest.live:
        contest.cancel(0)
    contest.join(Flood(tenant="a", streams=16, mask_s=1e-5))
    assert contest.run(10, settle=20).tokens["a"] == 16 * 10


def lack_memory(contest: Contest) -> bool:
    """Take a step back that found no memory; a request ends for which there is no smaller one."""
    scheduler, now = contest.scheduler, contest.now
    plan = scheduler.plan(now)
    assert plan is not None
    can_be_smaller = scheduler.take_back(plan.step_id, now)
    if not can_be_smaller:
        for output in scheduler.fail_step(plan.step_id, "memory", now):
            del contest.live[output.request_id]
    contest.engine.reset()
    return can_be_smaller


def have_masks_take(contest: Contest, mask_s: float) -> None:
    for name, flood in contest.live.items():
        if flood.mask_s:
            contest.live[name] = replace(flood, mask_s=mask_s)
