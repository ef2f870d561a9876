"""Which rows decode in a step: shares of tenants, promises, bands, and what that may cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fakes
from decode_contest import COST, FIXED_S, ROW_S, Contest, Flood, config_of
from engine.step_cost import LinearCost, StepCost
from scheduler.core import Scheduler
from scheduler.learn import StepModel
from scheduler.learn.step_regime import Regime
from scheduler.order import places
from scheduler.policies.vtc import Vtc
from scheduler.request import Band, Slo
from scheduler.running import PLACE_BITS
from scheduler.sequence import MEMBER
from scheduler.step.decode_shares import MAX_STEPS_OUT
from scheduler.step.water_level import least_work_s

SHORT, LONG = 20, 60


def decoded(contest: Contest, num_steps: int) -> float:
    """Say how many rows decoded in a step, in the mean of the last ones."""
    return sum(len(plan.decodes) for plan in contest.plans[-num_steps:]) / num_steps


@pytest.mark.parametrize("depth", [1, 2])
def test_more_requests_are_no_larger_share(depth: int) -> None:
    """Sixteen rows of a tenant are served what forty-eight of another are."""
    floods = Flood(tenant="a", streams=16, output=SHORT), Flood(tenant="b", streams=48, output=LONG)
    contest = Contest(*floods, depth=depth).run(600, settle=100)
    assert contest.share("a") == pytest.approx(0.5, rel=0.1)


def test_shares_go_by_weight() -> None:
    """Forty rows of a tenant of weight 1 have a third of what twenty of weight 3 have."""
    contest = Contest(Flood(tenant="a", streams=40), Flood(tenant="b", streams=20, weight=3.0))
    assert contest.run(600, settle=100).share("a") == pytest.approx(0.25, rel=0.1)


@pytest.mark.parametrize("loss", [0.1, 0.2, 0.3])
def test_the_loss_is_bounded(loss: float) -> None:
    """One row beside sixty runs as fast as so much of the tokens per second can pay for."""
    floods = Flood(tenant="a", streams=1, output=500), Flood(tenant="b", streams=60)
    per_s = {}
    for max_loss in (0.0, loss):
        contest = Contest(*floods, config=config_of(max_loss)).run(100)
        began_s = contest.now
        contest.run(600, settle=1)
        per_s[max_loss] = contest.tokens.total() / (contest.now - began_s)
    lost = 1 - per_s[loss] / per_s[0.0]
    assert loss - 0.03 <= lost <= loss + 0.01


def test_what_a_row_costs_is_found_out() -> None:
    """Steps that are all alike would not tell; a few that are not do, and then shares hold."""
    contest = Contest(
        Flood(tenant="a", streams=16, output=500),
        Flood(tenant="b", streams=48, output=500),
        prior=None,
    )
    # A step takes what one of sixty-four rows does, whatever is in it.
    contest.scheduler.step_model._small = Regime(LinearCost(FIXED_S + 64 * ROW_S, 0.0), 0.0, 1.0)
    contest.run(300)
    assert contest.run(500, settle=1).share("a") == pytest.approx(0.5, rel=0.1)


def test_a_sample_leaves_out_nobody_who_must_run() -> None:
    """Of sixteen rows two run, and besides those that sat out for long or have a token due."""
    contest = Contest(Flood(tenant="a", streams=16, output=500)).run(30)
    running, shares, now = contest.scheduler._running, contest.scheduler._composer._shares, 1e3
    slots, turns = running.decode_rows.online(), running.decode_rows.turns
    shares._num_chosen = 8
    turns[slots] = (running.num_steps - 5 << PLACE_BITS) + np.arange(16)
    assert sorted(shares._sample(slots, now).tolist()) == slots[:2].tolist()
    turns[slots] = (running.num_steps - 5 << PLACE_BITS) + np.arange(16)
    running.pace.start(slots[15], Slo(tpot_s=1.0), now, now)
    running.pace.start(slots[14], Slo(tpot_s=1.0), now + 1.0, now)
    assert sorted(shares._sample(slots, now).tolist()) == [*slots[:2], slots[15]]
    assert shares.kept_s > 0.0, "or the step might end when the other's is due"
    turns[slots[2:9]] = running.num_steps - MAX_STEPS_OUT - 1 << PLACE_BITS
    assert set(slots[2:9].tolist()) <= set(shares._sample(slots, now).tolist())


@pytest.mark.parametrize(("num_chosen", "num_sampled"), [(40, 10), (4, 1), (3, 12), (1, 4)])
def test_a_sample_has_a_quarter_of_the_rows_or_four_times_as_many(
    num_chosen: int, num_sampled: int
) -> None:
    """What few rows take is found out by more of them, and the other way round."""
    contest = Contest(Flood(tenant="a", streams=60, output=500)).run(60)
    shares, slots = contest.scheduler._composer._shares, contest.scheduler._running.decode_rows
    shares._num_chosen = num_chosen
    assert len(shares._sample(slots.online(), 1e3)) == num_sampled


def test_samples_are_of_six_steps_and_grow_rarer() -> None:
    """Six in a row, 32 steps apart at first and 512 in the end, and anew after a rest."""
    contest = Contest(Flood(tenant="a", streams=60, output=500)).run(60)
    running, shares = contest.scheduler._running, contest.scheduler._composer._shares
    slots = running.decode_rows.online()
    found = []

    def sample() -> None:
        began = running.num_steps
        for _ in range(6):
            assert running.num_steps >= shares._next_sample
            shares._sample(slots, 1e3)
            running.num_steps += 1
        found.append(shares._next_sample - began - 5)

    for _ in range(6):
        running.num_steps = max(running.num_steps, shares._next_sample)
        sample()
    running.num_steps = shares._next_sample + 513
    sample()
    assert found == [32, 64, 128, 256, 512, 512, 32]


def test_time_that_the_engine_does_not_see_counts() -> None:
    """Where handing tokens out takes longer than drawing them, that is what is shared."""
    floods = Flood(tenant="a", streams=1, output=500), Flood(tenant="b", streams=60)
    per_s, num_rows = {}, {}
    for max_loss in (0.0, 0.2):
        contest = Contest(*floods, config=config_of(max_loss), host_row_s=3 * ROW_S).run(400)
        began_s = contest.now
        contest.run(400, settle=1)
        per_s[max_loss] = contest.tokens.total() / (contest.now - began_s)
        num_rows[max_loss] = decoded(contest, 400)
    assert per_s[0.2] / per_s[0.0] == pytest.approx(0.8, rel=0.05)
    # By the engine's time alone it would be twenty.
    assert num_rows[0.2] < 12


def test_with_no_loss_all_rows_decode() -> None:
    """At 0 each row that may draw does, in every step, whoever it is of."""
    contest = Contest(
        Flood(tenant="a", streams=4), Flood(tenant="b", streams=40), config=config_of(0.0)
    )
    assert contest.run(300).num_rested == 0


def test_one_tenant_has_all_of_its_rows() -> None:
    """Where nobody else has rows, none sits out."""
    assert Contest(Flood(tenant="a", streams=40, keys=4)).run(300).num_rested == 0


def test_nobody_sits_out_where_rows_cost_little() -> None:
    """Where a step is read weights for the most part, others would gain less than is lost."""
    contest = Contest(Flood(tenant="a", streams=1), Flood(tenant="b", streams=8))
    assert contest.run(300).num_rested == 0
    line = LinearCost(100 * FIXED_S, ROW_S)
    contest = Contest(Flood(tenant="a", streams=1), Flood(tenant="b", streams=60))
    contest.scheduler = Scheduler(
        contest.engine.info, config_of(), step_model=StepModel(StepCost("gpu", line, line))
    )
    contest.live.clear()
    contest.join(Flood(tenant="a", streams=1))
    contest.join(Flood(tenant="b", streams=60))
    for _ in range(5):
        contest.turn()
    assert contest.num_rested == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_nobody_sits_out_where_all_have_a_pace(depth: int) -> None:
    """Rows that come as fast as was promised gain nothing by those of others that sit out.

    Those of which the first token is in flight are among them.
    """
    paced = Slo(tpot_s=10.0)
    contest = Contest(
        Flood(tenant="a", streams=4, slo=paced),
        Flood(tenant="b", streams=50, slo=paced),
        depth=depth,
    )
    assert contest.run(300).num_rested == 0
    contest.join(Flood(tenant="c", streams=1))
    assert contest.run(100).num_rested, "one without a pace does"


def test_a_light_tenant_of_many_is_not_worth_the_whole_loss() -> None:
    """One row beside thirty tenants of two gets them to give up little."""
    others = [Flood(tenant=f"t{n}", streams=2) for n in range(30)]
    contest = Contest(Flood(tenant="a", streams=1), *others).run(200, settle=50)
    assert decoded(contest, 200) > 0.8 * 61
    # Against one tenant of as many rows it has the whole of it.
    contest = Contest(Flood(tenant="a", streams=1), Flood(tenant="b", streams=60))
    assert decoded(contest.run(200, settle=50), 200) < 0.5 * 61


def test_rows_that_sit_out_do_so_evenly() -> None:
    """Of rows that run in every third step none waits for longer than four."""
    contest = Contest(
        Flood(tenant="a", streams=20, output=500), Flood(tenant="b", streams=40, output=500)
    )
    contest.run(100)
    contest.most_steps_out = 0
    contest.run(200)
    assert contest.num_rested
    assert contest.most_steps_out <= 3


def test_every_row_runs_within_bounded_steps() -> None:
    """A tenant of hardly any weight has each row run once in so many steps all the same."""
    contest = Contest(
        Flood(tenant="a", streams=30, weight=1000.0),
        Flood(tenant="b", streams=30, output=500),
        config=config_of(0.9),
    ).run(400)
    assert MAX_STEPS_OUT - 3 <= contest.most_steps_out <= MAX_STEPS_OUT


def test_a_new_weight_holds_at_once() -> None:
    """Shares go by a weight that is set while rows run, from the next steps on."""
    contest = Contest(Flood(tenant="a", streams=30), Flood(tenant="b", streams=30))
    assert contest.run(300, settle=50).share("a") == pytest.approx(0.5, rel=0.1)
    contest.scheduler.set_weight("b", 3.0)
    contest.live = {
        name: replace(flood, weight=3.0) if flood.tenant == "b" else flood
        for name, flood in contest.live.items()
    }
    assert contest.run(300, settle=8).share("a") == pytest.approx(0.25, rel=0.1)


def test_a_new_loss_holds_at_once() -> None:
    """Rows that sat out decode again from the step on that a loss of 0 is set."""
    contest = Contest(Flood(tenant="a", streams=4), Flood(tenant="b", streams=40)).run(100)
    assert contest.num_rested
    contest.scheduler.configure(config_of(0.0), contest.now)
    contest.num_rested = 0
    assert contest.run(100).num_rested == 0


def test_who_joins_late_has_its_share_at_once() -> None:
    """Twenty rows that come to fifty have half within a few steps, and no more."""
    contest = Contest(Flood(tenant="b", streams=44)).run(300)
    contest.join(Flood(tenant="a", streams=20))
    assert contest.run(300, settle=10).share("a") == pytest.approx(0.5, rel=0.1)


def test_a_newcomer_is_nobody_who_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant with the place of one that was swept had no prompts nor rows, and is held to
    nothing.
    """
    monkeypatch.setattr(places, "_MIN_SWEEP", 8)
    monkeypatch.setattr(Vtc, "is_owed", lambda *_: False)
    gone = Flood(tenant="b", streams=30, prompt=20, output=400)
    contest = Contest(Flood(tenant="a", streams=2, output=400), gone).run(80)
    shares, num_steps = contest.scheduler._composer._shares, contest.scheduler._running.num_steps
    account = contest.scheduler._lifecycle.waiting.find_account(Band.DEFAULT, "", "b")
    assert account is not None
    entry = np.array([account.entry])

    def known() -> list[float]:
        prefills, rotation, part_of = shares.prefills, shares._rotation, shares._part_of
        assert part_of is not None
        return [
            float(prefills.of(entry, num_steps)[0]),
            float(prefills.per_decode(entry, num_steps)[0]),
            float(entry[0] in prefills.lately(Band.DEFAULT, num_steps, contest.now)),
            float(np.nan_to_num(rotation.credit_s[entry], nan=0.0)[0]),
            float(part_of.take(entry, mode="clip")[0] < np.inf),
        ]

    assert all(known())
    contest.leave("b")
    contest.replace_place("b")
    assert known() == [0.0] * 5


def test_who_waits_for_slots_is_not_helped_by_rows_that_sit_out() -> None:
    """Beside sixty rows, four of thirty requests run: the sixty are held to thirty, not to four."""
    config = config_of(0.8)
    contest = Contest(Flood(tenant="b", streams=60, output=400), config=config)
    # Or they would be sent back for it.
    contest.scheduler._running.holdings.has_shares = False
    contest.run(20)
    contest.join(Flood(tenant="a", streams=30, output=400))
    contest.run(40)
    assert contest.scheduler.snapshot().queued == 26
    assert decoded(contest, 20) == pytest.approx(34, abs=2)


def visited(**visit: Any) -> Contest:
    """Have sixty rows beside which another tenant's prompts come once, and draw a token each."""
    contest = Contest(Flood(tenant="b", streams=60, output=500)).run(20)
    contest.join(Flood(tenant="a", output=1, once=True, **visit))
    return contest.run(40)


def test_rows_sit_out_for_who_came_lately() -> None:
    """A tenant without a row soon comes again: for a second steps are short for its prompts."""
    contest = visited(streams=1)
    assert decoded(contest, 30) == pytest.approx(22, abs=2)
    before_s = contest.now
    while contest.now < before_s + 1.0:
        contest.turn()
    assert decoded(contest.run(20), 10) == 60


def test_nobody_sits_out_for_who_is_not_helped_by_it() -> None:
    """Who was promised something, is of a lower band or sends much has nothing of short steps."""
    assert decoded(visited(streams=1, slo=Slo(ttft_s=9.0)), 30) == 60
    assert decoded(visited(streams=1, band=Band.FLEX), 30) == 60
    assert decoded(visited(streams=3, prompt=500), 30) < 60
    assert decoded(visited(streams=5, prompt=500), 30) == 60


@pytest.mark.parametrize("band", [Band.PRIORITY, Band.FLEX])
def test_who_comes_in_another_band_keeps_no_step_from_being_a_sample(band: Band) -> None:
    """Whether there is anything to find out is asked of the rows that there are."""
    contest = Contest(
        Flood(tenant="b", streams=60, output=500),
        Flood(tenant="c", streams=1, output=500),
        prior=None,
    ).run(100)
    shares = contest.scheduler._composer._shares
    assert shares._is_uneven
    contest.join(Flood(tenant="a", streams=1, output=1, once=True, band=band))
    contest.run(10)
    assert shares._is_uneven


def test_who_weighs_little_is_not_worth_the_whole_loss() -> None:
    """Who has a fifth of all weight and came lately has others give up 0.08 of what they do."""
    assert decoded(visited(streams=1, weight=0.25), 30) == pytest.approx(37, abs=2)


def test_prompts_count_towards_a_share() -> None:
    """Nobody sits out for a tenant that has more of the machine by its prompts."""
    contest = Contest(
        Flood(tenant="a", streams=8, prompt=200, output=5), Flood(tenant="b", streams=40)
    ).run(600, settle=100)
    # What a token of a costs with its part of the prompt.
    had_s = contest.tokens["a"] * 205 / 5, contest.tokens["b"] * 42 / 40
    assert had_s[0] / sum(had_s) <= 0.55


def test_prompts_that_rows_bring_are_work() -> None:
    """One row beside sixty is faster where those bring prompts, and no more is lost by it."""
    bringing = Flood(tenant="b", streams=60, prompt=80)
    per_s = {}
    for max_loss in (0.0, 0.2):
        contest = Contest(
            Flood(tenant="a", streams=1, output=500), bringing, config=config_of(max_loss)
        ).run(200)
        began_s = contest.now
        contest.run(300, settle=1)
        per_s[max_loss] = contest.tokens.total() / (contest.now - began_s)
    # By decoding alone it would be 22 of them.
    assert decoded(contest, 300) == pytest.approx(11, abs=2)
    assert 1 - per_s[0.2] / per_s[0.0] <= 0.21


def test_prompts_take_no_rows_from_a_lower_band() -> None:
    """Beside one row of a higher band, sixty that bring prompts run as those that bring none."""
    above = Flood(tenant="a", streams=1, output=500, band=Band.PRIORITY)
    contest = Contest(above, Flood(tenant="b", streams=60, prompt=80)).run(400)
    assert decoded(contest, 200) == pytest.approx(22, abs=2)


def test_who_brings_prompts_has_no_more_than_who_has_rows() -> None:
    """Where both are held, two rows whose prompts are long have what fifty-eight others have."""
    light = Flood(tenant="a", streams=1, output=500)
    contest = Contest(
        light, Flood(tenant="b", streams=58), Flood(tenant="c", streams=2, prompt=200, output=2)
    ).run(300, settle=250)
    # What a token of c costs with its part of the prompt; two prompt tokens are a row's.
    had_s = contest.tokens["b"] * 42 / 40, contest.tokens["c"] * 202 / 2
    assert had_s[0] / sum(had_s) == pytest.approx(0.5, abs=0.1)


def test_prompts_that_wait_anyway_are_not_brought() -> None:
    """Rows of a tenant whose prompts fill every step are held to no fewer for them."""
    floods = Flood(tenant="a", streams=1, output=500), Flood(tenant="b", streams=30, output=300)
    contest = Contest(*floods, Flood(tenant="b", streams=60, prompt=500, output=2)).run(300)
    assert decoded(contest, 150) >= 15


def test_first_come_first_served_has_no_shares() -> None:
    """Under a policy without accounts all rows decode, whoever they are of."""
    contest = Contest(
        Flood(tenant="a", streams=4), Flood(tenant="b", streams=40), config=config_of(policy="fcfs")
    )
    assert contest.run(200).num_rested == 0


def test_lower_bands_sit_out_for_higher_ones() -> None:
    """They keep their guaranteed share, and the higher band's rows never sit out for them."""
    contest = Contest(
        Flood(tenant="a", streams=40, band=Band.PRIORITY), Flood(tenant="b", streams=20)
    ).run(400, settle=100)
    assert contest.share("b") == pytest.approx(0.1, rel=0.2)
    contest = Contest(Flood(tenant="a", streams=60, band=Band.PRIORITY))
    contest.join(Flood(tenant="b", streams=1, band=Band.FLEX))
    assert contest.run(300).num_rested == 0


def test_the_lowest_band_has_what_those_between_leave() -> None:
    """Below two bands all rows of which run, a third has its guaranteed twentieth."""
    contest = Contest(
        Flood(tenant="a", streams=10, band=Band.PRIORITY),
        Flood(tenant="b", streams=20),
        Flood(tenant="c", streams=30, band=Band.FLEX),
    ).run(200, settle=50)
    assert contest.share("c") == pytest.approx(0.05, rel=0.2)
    assert contest.tokens["b"] == pytest.approx(2.0 * contest.tokens["a"], rel=0.2)


def test_what_is_lost_for_a_tenant_is_no_less_for_a_light_one_above() -> None:
    """Beside a row of a higher band a light tenant has others sit out as beside one of its own."""
    num_rows = []
    for band in (Band.DEFAULT, Band.PRIORITY):
        floods = Flood(tenant="a", streams=1), Flood(tenant="b", streams=58)
        contest = Contest(Flood(tenant="c", streams=1, band=band), *floods)
        num_rows.append(decoded(contest.run(200, settle=50), 200))
    assert num_rows[1] == pytest.approx(num_rows[0], rel=0.05)


def test_a_promise_is_kept_by_rows_that_have_time() -> None:
    """A pace that a step with all rows breaks is kept while others of the same tenant sit out."""
    slo = Slo(tpot_s=FIXED_S + 50 * ROW_S)
    for loss, keeps in ((0.0, False), (0.2, True)):
        contest = Contest(
            Flood(tenant="a", streams=60, output=500),
            Flood(tenant="a", streams=2, output=200, slo=slo),
            config=config_of(loss),
        )
        contest.run(150)
        pace = contest.scheduler._running.pace
        assert (pace.tightest_s >= contest.now) == keeps


def test_a_promise_that_cannot_be_kept_costs_nobody_anything() -> None:
    """Where a row would be late with itself alone, nobody sits out for it."""
    contest = Contest(
        Flood(tenant="a", streams=40), Flood(tenant="a", streams=2, slo=Slo(tpot_s=FIXED_S / 2))
    )
    assert contest.run(100).num_rested == 0


def test_nobody_sits_out_before_the_model_has_learned() -> None:
    """A model that only guesses is no reason to hold anybody."""
    contest = Contest(Flood(tenant="a", streams=1), Flood(tenant="b", streams=40))
    model = StepModel()
    contest.scheduler = Scheduler(fakes.make_engine(cost=COST).info, config_of(), step_model=model)
    assert not model.is_calibrated
    shares = contest.scheduler._composer._shares
    slots = contest.scheduler._running.decode_rows.online()
    assert shares.choose(slots, 0.0) is slots


def test_parts_are_found_anew_where_rows_have_gone() -> None:
    """Six that went are no eighth of those that are left of fifty-six, and seven are."""
    floods = Flood(tenant="a", streams=1, output=500), Flood(tenant="b", streams=55, output=500)
    contest = Contest(*floods).run(60)
    shares, slots = contest.scheduler._composer._shares, contest.scheduler._running.decode_rows
    for num_gone, num_found_for in ((0, 56), (6, 56), (7, 49)):
        if not num_gone:
            contest.scheduler._running.num_steps += 4
        shares._choose(slots.online()[: 56 - num_gone], contest.now)
        assert shares._found_for_rows == num_found_for


def test_what_a_tight_promise_takes_is_bounded_and_for_one_step() -> None:
    """However soon a row is due, others decode as far as the loss allows, and anew a step later."""
    contest = Contest(Flood(tenant="a", streams=61, output=500)).run(60)
    running, shares, now = contest.scheduler._running, contest.scheduler._composer._shares, 1e3
    slots, costs_s = running.decode_rows.online(), np.full(61, ROW_S)
    row = Slo(tpot_s=1.0)
    running.pace.start(slots[0], row, now + FIXED_S + 3 * ROW_S, now)
    least_s = least_work_s(61 * ROW_S, FIXED_S, 0.2)
    assert least_s > 3 * ROW_S
    assert shares._most_s(slots, costs_s, FIXED_S, now) == pytest.approx(least_s)
    running.pace.start(slots[0], row, now + FIXED_S + 50 * ROW_S, now)
    assert shares._most_s(slots, costs_s, FIXED_S, now) == pytest.approx(50 * ROW_S)
    chosen = shares._choose(slots, now)
    assert slots[0] in chosen
    assert len(chosen) < 61
    assert len(shares._choose(slots, now - 1.0)) == 61, "as nothing is due soon by then"


def test_debts_end_where_nobody_is_held() -> None:
    """Once a tenant is alone none of its rows sits out, and none of what it had too much counts."""
    contest = Contest(Flood(tenant="a", streams=1, output=500), Flood(tenant="b", streams=60))
    contest.run(60)
    rotation = contest.scheduler._composer._shares._rotation
    assert len(rotation.held)
    contest.leave("a")
    # It soon comes again, for all that is known, until it did not for a second.
    contest.now += 1.0
    contest.run(70)
    assert not len(rotation.held)


def test_rows_of_batch_work_are_a_part_of_what_any_step_costs() -> None:
    """As much of them as a step may take along: who is ahead is held to no fewer rows for nothing.

    What these rows would cost beyond that is nobody's.
    """
    contest = Contest(
        Flood(tenant="a", streams=1, output=500),
        Flood(tenant="b", streams=20, output=500),
        Flood(tenant="c", streams=30, output=500, band=Band.BATCH),
    ).run(100)
    running, shares = contest.scheduler._running, contest.scheduler._composer._shares
    num_batch = len(running.decode_rows.batch())
    assert num_batch > 20
    assert shares._batch_s(0.01) == pytest.approx(num_batch * ROW_S)
    # A step may take five times as long as the online rows by themselves.
    assert shares._batch_s(0.0001) == pytest.approx(0.0004)
    assert shares._batch_s(1.0) == 0.0
    slots, now = running.decode_rows.online(), contest.now
    tenants, costs_s = running.decode_rows.accounts[slots, MEMBER], np.full(len(slots), ROW_S)
    found_s = []
    for fixed_s in (FIXED_S, FIXED_S + num_batch * ROW_S):
        part_of = shares._find_parts(slots, tenants, costs_s, fixed_s, np.inf, now)
        found_s.append(np.inf if part_of is None else part_of.min())
        running.batch_decodes.clear()
    assert found_s[0] == pytest.approx(found_s[1])
    assert found_s[0] > 0.0


@pytest.mark.parametrize(
    ("is_in_flight", "kept_s", "keeps_more"),
    [(True, 0.0, False), (False, 0.0, True), (True, 0.1, True)],
)
def test_the_step_in_flight_is_kept_time_for(
    is_in_flight: bool, kept_s: float, keeps_more: bool
) -> None:
    """Where a promised row is not in it, or sits out the one after it, its rest is kept as well."""
    contest = Contest(Flood(tenant="a", streams=20, output=500), depth=2).run(30)
    running, shares, now = contest.scheduler._running, contest.scheduler._composer._shares, 0.0
    rows, slots = running.decode_rows, running.decode_rows.online()
    running.pace.start(slots[0], Slo(tpot_s=1.0), now + 0.5, now)
    rows.num_known[slots[0]] = rows.num_tokens[slots[0]] - is_in_flight
    left_s = running.in_flight_times.left_s(now, stretch=1.0)
    assert left_s > 0.0
    shares.kept_s = kept_s
    assert shares._beside_step_in_flight(slots, slots, now) is slots
    assert shares.kept_s == pytest.approx(kept_s + left_s * keeps_more)
    by_then_s = left_s + 3 * shares._step_s(slots)
    assert shares._by_then_s(slots, now) == pytest.approx(by_then_s), "a row may miss it as well"


def test_a_row_whose_promise_begins_has_its_turn() -> None:
    """Its first token is in flight: it runs though it was to sit out, and goes to the end."""
    contest = Contest(Flood(tenant="a", streams=20, output=500), depth=2).run(30)
    running, shares = contest.scheduler._running, contest.scheduler._composer._shares
    slots, turns = running.decode_rows.online(), running.decode_rows.turns
    running.pace.join(slots[1], Slo(tpot_s=1.0))
    turns[slots] = 0
    chosen = shares._beside_step_in_flight(slots, slots[5:], contest.now)
    assert sorted(chosen.tolist()) == sorted([slots[1], *slots[5:]])
    assert turns[slots[1]] == running.num_steps << PLACE_BITS


@pytest.mark.parametrize(("band", "is_uneven"), [(Band.DEFAULT, True), (Band.FLEX, False)])
def test_nothing_is_to_be_found_out_between_bands(band: Band, is_uneven: bool) -> None:
    """Steps are made unlike the others where a tenant has more than one of its own band."""
    floods = Flood(tenant="a", streams=4, output=500), Flood(tenant="b", streams=40, band=band)
    contest = Contest(*floods, prior=None).run(40)
    rows, shares = contest.scheduler._running.decode_rows, contest.scheduler._composer._shares
    slots = rows.online()
    tenants, costs_s = rows.accounts[slots, MEMBER], np.full(len(slots), ROW_S)
    shares._find_parts(slots, tenants, costs_s, FIXED_S, np.inf, contest.now)
    assert shares._is_uneven == is_uneven
