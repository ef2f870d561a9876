"""What one stream has beside a flood of another tenant, and what that costs in tokens per second.

First beside 150 rows.

The demo model on a CPU, where a row costs a step as much as a thirtieth of what any step costs: all
rows together make steps many times as long as the stream's alone. Everything fits, so nothing
waits, and all that is decided is who sits out (`scheduler.step.decode_shares`).

Whoever schedules, a bound on what may be lost leaves a least time per token. Of each second a part
goes to steps of the stream alone, of one token each, and the rest to steps of all. `least_ratio`
says what the largest such part makes of the stream's pace; the costs of rows being linear, no step
of some of the rows does better. Prompts come with either.

Then beside endless prompts of 4,000 tokens, on an A100 with Llama-3-8B: in whole steps, and cut for
the stream (`scheduler.step.prompt_shares`). And what the first token takes there of a tenant that
sends eight tokens three times a second and draws one, so that it has nothing in most steps; on the
CPU beside the rows, with all of them in each step and with some that sit out for it.

And beside the same rows where they are of the batch band, which takes along in a step of the stream
what the bound on the loss asks for (`scheduler.step.budget`).

And how many of such short prompts are in time that were promised less than two whole steps of the
long ones take, or two of batch work: where steps are whole, and they are refused, and where steps
are short for them (`scheduler.step.first_tokens`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from scheduler.config import PRESETS, SchedulerConfig
from scheduler.figure import Figure, at_least, at_most
from scheduler.request import Band, Slo
from scheduler.simulator.metrics import quantiles
from scheduler.simulator.records import Run
from scheduler.simulator.report import number
from scheduler.simulator.run import simulate
from scheduler.simulator.setup import Machine, load_machine
from scheduler.simulator.suite import OnRun, SuiteResult
from scheduler.simulator.workload import Arrival, Workload

_LIGHT, _FLOOD = "light", "flood"
_NUM_PROMPT_TOKENS, _OUTPUTS = 384, (256, 384)
# More than a stream draws until the next one takes its place.
_ENDLESS = 3_600
# The flood's first prompts are computed by then.
_SETTLED_S = 5.0
# Times that alone, for what may be lost.
_LOSSES = {0.2: 3.5, 0.3: 2.5}
_OVER_LEAST = 1.1
_PROMPT_LOSS = 0.2
_SHORT_PROMPT = 8
_SHORT_EVERY_S = 0.31
# Of a run, in which none is sent that might not begin.
_LAST_S = 2.0
_CUT_OF_WHOLE = 0.5
_BATCH_LOSS = 0.2
_IN_TIME = 0.9
_NO_SLO = Slo()
NUM_RUNS = 2 + len(_LOSSES) + 3 + 2 + 2 + 2 + 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LightSuiteOptions:
    """Size the suite: each run lasts `duration_s`."""

    duration_s: float = 65.0
    seed: int = 42


@dataclass(frozen=True, slots=True)
class _Flood:
    """Say how many requests there are at all times, of what lengths, and how long a stream is."""

    depth: int
    num_prompt_tokens: int
    outputs: tuple[int, int]
    stream_s: float
    band: Band = Band.DEFAULT


_DEFAULTS = LightSuiteOptions()
_ROWS = _Flood(150, _NUM_PROMPT_TOKENS, _OUTPUTS, 0.75)
_BATCH = replace(_ROWS, band=Band.BATCH)
_PROMPTS = _Flood(8, 4_000, (1, 4), 2.5)


def run(on_run: OnRun, options: LightSuiteOptions = _DEFAULTS) -> SuiteResult:
    """Run the stream alone, beside the flood without shares, and with each bound on the loss."""
    result = SuiteResult(header=("", "time per token", "× alone", "at least", "tokens/s"))
    machine = load_machine("cpu-demo")
    alone_s, _ = _measure(simulate(machine, PRESETS["mixed"], _alone(options, _ROWS)))
    _show("alone", alone_s, alone_s, 1.0, 1.0 / alone_s, result)
    on_run("alone")
    unheld_s, most_per_s = _beside(machine, 0.0, options)
    unheld_ratio = unheld_s / alone_s
    _show("no shares", unheld_s, alone_s, unheld_ratio, most_per_s, result)
    result.figures["light_tpot_at_0_ratio"] = Figure(unheld_ratio, "ratio")
    on_run("no shares")
    for loss, at_most_ratio in _LOSSES.items():
        tpot_s, per_s = _beside(machine, loss, options)
        least = least_ratio(alone_s, unheld_s, most_per_s, loss)
        _show(f"loss {loss:g}", tpot_s, alone_s, least, per_s, result)
        name, ratio = f"light_at_{round(100 * loss)}", tpot_s / alone_s
        result.figures |= {
            f"{name}_tpot_ratio": at_most(ratio, at_most_ratio, "ratio"),
            f"{name}_least_tpot_ratio": Figure(least, "ratio"),
            f"{name}_over_least_ratio": at_most(ratio / least, _OVER_LEAST, "ratio"),
            f"{name}_tokens_per_s_ratio": at_least(per_s / most_per_s, 1.0 - loss, "ratio"),
        }
        on_run(f"loss {loss:g}")
    _run_batch(on_run, options, alone_s, result)
    _run_prompts(on_run, options, result)
    _run_short(on_run, options, result)
    _run_promised(on_run, options, result)
    return result


def _run_batch(
    on_run: OnRun, options: LightSuiteOptions, alone_s: float, result: SuiteResult
) -> None:
    """Run the stream beside rows of the batch band, as many as fit and as the loss asks for."""
    machine = load_machine("cpu-demo")
    per_s = {}
    for loss in (0.0, _BATCH_LOSS):
        tpot_s, per_s[loss] = _beside(machine, loss, options, _BATCH)
        ratio, shown = tpot_s / alone_s, f"batch, loss {loss:g}"
        most = 1.0 / loss if loss else math.inf
        _show(shown, tpot_s, alone_s, 1.0, per_s[loss], result)
        name = f"batch_at_{round(100 * loss)}_tpot_ratio"
        goal = at_most(ratio, most * _OVER_LEAST, "ratio") if loss else Figure(ratio, "ratio")
        result.figures[name] = goal
        on_run(shown)
    kept = per_s[_BATCH_LOSS] / per_s[0.0]
    result.figures["batch_tokens_per_s_ratio"] = at_least(kept, 1.0 - _BATCH_LOSS, "ratio")


def _run_prompts(on_run: OnRun, options: LightSuiteOptions, result: SuiteResult) -> None:
    """Run the stream alone on the larger machine, beside whole prompts, and beside cut ones."""
    machine = load_machine("a100-llama-3-8b")
    alone_s, _ = _measure(simulate(machine, PRESETS["mixed"], _alone(options, _PROMPTS)))
    _show("alone, A100", alone_s, alone_s, 1.0, 1.0 / alone_s, result)
    on_run("alone, A100")
    found = {}
    for name, levels in (("whole prompts", False), ("cut prompts", True)):
        config = _config(_PROMPT_LOSS, levels_prompts=levels)
        flood = _flooded(options, _PROMPTS)
        done = simulate(machine, config, flood, until_s=options.duration_s)
        found[levels] = _measure(done)[0], _tokens_per_s(done)
        whole_s = found[False][0]
        loss = _PROMPT_LOSS if levels else 0.0
        least = least_ratio(alone_s, whole_s, np.inf, loss)
        _show(name, found[levels][0], alone_s, least, found[levels][1], result)
        on_run(name)
    (whole_s, most_per_s), (cut_s, cut_per_s) = found[False], found[True]
    result.figures |= {
        "prompts_whole_tpot_ratio": Figure(whole_s / alone_s, "ratio"),
        "prompts_cut_tpot_ratio": Figure(cut_s / alone_s, "ratio"),
        "prompts_cut_over_least_ratio": at_most(cut_s / alone_s / least, _OVER_LEAST, "ratio"),
        "prompts_cut_tokens_per_s_ratio": at_least(
            cut_per_s / most_per_s, 1.0 - _PROMPT_LOSS, "ratio"
        ),
    }


def _run_short(on_run: OnRun, options: LightSuiteOptions, result: SuiteResult) -> None:
    """Send a short prompt now and then beside prompts that are whole or cut, and beside rows."""
    whole, cut = (_config(_PROMPT_LOSS, levels_prompts=levels) for levels in (False, True))
    a100, cpu = load_machine("a100-llama-3-8b"), load_machine("cpu-demo")
    for kind, machine, flood, configs in (
        ("short", a100, _PROMPTS, {"whole": whole, "cut": cut}),
        ("short_rows", cpu, _ROWS, {"all": _config(0.0), "held": _config(_PROMPT_LOSS)}),
    ):
        ttft_s, per_s = {}, {}
        for name, config in configs.items():
            done = simulate(machine, config, _visited(options, flood), until_s=options.duration_s)
            ttft_s[name] = quantiles(_first_tokens_s(done))["p99"] or math.inf
            per_s[name] = _tokens_per_s(done)
            shown = f"{kind} {name}".replace("_", " beside ")
            result.samples[shown] = {"ttft_p99_s": ttft_s[name], "tokens_per_s": per_s[name]}
            result.figures[f"{kind}_{name}_ttft_p99_s"] = Figure(ttft_s[name], "s")
            first = f"first token {1e3 * ttft_s[name]:.0f} ms"
            ratio = ttft_s[name] / next(iter(ttft_s.values()))
            result.rows.append((shown, first, number(ratio), "", f"{per_s[name]:,.0f}"))
            on_run(shown)
        (before_s, after_s), (most, least) = ttft_s.values(), per_s.values()
        ratio_name, tokens_name = f"{kind}_{name}_ttft_ratio", f"{kind}_{name}_tokens_per_s_ratio"
        result.figures |= {
            ratio_name: at_most(after_s / before_s, _CUT_OF_WHOLE, "ratio"),
            tokens_name: at_least(least / most, 1.0 - _PROMPT_LOSS, "ratio"),
        }


def _run_promised(on_run: OnRun, options: LightSuiteOptions, result: SuiteResult) -> None:
    """Promise short prompts less than whole steps take, of online prompts and of batch work."""
    machine = load_machine("a100-llama-3-8b")
    batch = replace(_PROMPTS, band=Band.BATCH)
    for kind, flood, ttft_s in (("promised", _PROMPTS, 0.25), ("promised_batch", batch, 0.1)):
        per_s = {}
        for name, loss in (("whole", 0.0), ("cut", _PROMPT_LOSS)):
            visited = _visited(options, flood, Slo(ttft_s=ttft_s))
            done = simulate(machine, _config(loss), visited, until_s=options.duration_s)
            # But for the first, which nobody came before.
            light = [one for one in done.records if one.arrival.tenant_id == _LIGHT][1:]
            in_time = sum(one.meets_slo for one in light) / len(light)
            per_s[name] = _tokens_per_s(done)
            shown = f"{kind} {name}".replace("_", " beside ")
            result.samples[shown] = {"in_time": in_time, "tokens_per_s": per_s[name]}
            goal = at_least(in_time, _IN_TIME, "share") if loss else Figure(in_time, "share")
            result.figures[f"{kind}_{name}_in_time_share"] = goal
            result.rows.append((shown, f"in time {in_time:.0%}", "", "", f"{per_s[name]:,.0f}"))
            on_run(shown)
        kept = at_least(per_s["cut"] / per_s["whole"], 1.0 - _PROMPT_LOSS, "ratio")
        result.figures[f"{kind}_cut_tokens_per_s_ratio"] = kept


def _visited(options: LightSuiteOptions, flood: _Flood, slo: Slo = _NO_SLO) -> Workload:
    """Have a short prompt come now and then beside a flood, and draw a token."""
    short = replace(_request(_LIGHT, _SHORT_PROMPT, 1), slo=slo)
    num_short = int((options.duration_s - _SETTLED_S - _LAST_S) / _SHORT_EVERY_S)
    return Workload(
        name=_FLOOD,
        arrivals=[short.at(_SETTLED_S + number * _SHORT_EVERY_S) for number in range(num_short)],
        duration_s=options.duration_s,
        backlog=_endless(random.Random(options.seed), flood),
        backlog_depth=flood.depth,
    )


def _tokens_per_s(done: Run) -> float:
    """Return the tokens per second of prompts that were computed, and of what was drawn."""
    served = (
        one.arrival.num_prompt_tokens + one.num_output_tokens
        for one in done.records
        if one.num_output_tokens
    )
    return sum(served) / done.end_s


def least_ratio(alone_s: float, unheld_s: float, most_per_s: float, loss: float) -> float:
    """Say what a stream's time per token is at least, times that alone, for what may be lost.

    Args: `alone_s` and `unheld_s`: its time per token alone, and where nobody sits out.
    `most_per_s`: the tokens per second of all then. `loss`: which share of these may be lost.
    """
    alone_per_s = 1.0 / alone_s
    part = min(1.0, loss / (1.0 - alone_per_s / most_per_s))
    return alone_per_s / (part * alone_per_s + (1.0 - part) / unheld_s)


def _beside(
    machine: Machine, loss: float, options: LightSuiteOptions, flood: _Flood = _ROWS
) -> tuple[float, float]:
    flooded = _flooded(options, flood)
    return _measure(simulate(machine, _config(loss), flooded, until_s=options.duration_s))


def _config(loss: float, *, levels_prompts: bool = False) -> SchedulerConfig:
    preset = PRESETS["mixed"]
    fairness = replace(preset.fairness, max_throughput_loss=loss, levels_prompts=levels_prompts)
    return replace(preset, fairness=fairness)


def _alone(options: LightSuiteOptions, flood: _Flood) -> Workload:
    answer = _request(_LIGHT, _NUM_PROMPT_TOKENS, sum(_OUTPUTS) // 2)
    arrivals = [answer.at(at_s) for at_s in _starts(options, flood)]
    return Workload(name=_LIGHT, arrivals=arrivals, duration_s=options.duration_s)


def _flooded(options: LightSuiteOptions, flood: _Flood) -> Workload:
    """Have a stream at all times, each cut where the next one begins, beside a flood."""
    stream = _request(_LIGHT, _NUM_PROMPT_TOKENS, _ENDLESS)
    stream = replace(stream, cancel_after_s=flood.stream_s)
    return Workload(
        name=_FLOOD,
        arrivals=[stream.at(at_s) for at_s in _starts(options, flood)],
        duration_s=options.duration_s,
        backlog=_endless(random.Random(options.seed), flood),
        backlog_depth=flood.depth,
    )


def _starts(options: LightSuiteOptions, flood: _Flood) -> Sequence[float]:
    num_streams = int((options.duration_s - _SETTLED_S) / flood.stream_s)
    return [_SETTLED_S + number * flood.stream_s for number in range(num_streams)]


def _endless(drawn: random.Random, flood: _Flood) -> Iterator[Arrival]:
    while True:
        output = drawn.randint(*flood.outputs)
        yield replace(_request(_FLOOD, flood.num_prompt_tokens, output), band=flood.band)


def _request(tenant_id: str, num_prompt_tokens: int, num_output_tokens: int) -> Arrival:
    return Arrival(
        at_s=0.0,
        tenant_id=tenant_id,
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=num_output_tokens,
    )


def _measure(done: Run) -> tuple[float, float]:
    """Return the streams' median time per token, and the tokens per second of all."""
    light = [one.tpot_s for one in done.records if one.arrival.tenant_id == _LIGHT]
    num_tokens = sum(record.num_output_tokens for record in done.records)
    return median(tpot_s for tpot_s in light if tpot_s is not None), num_tokens / done.end_s


def _show(
    name: str, tpot_s: float, alone_s: float, least: float, per_s: float, result: SuiteResult
) -> None:
    result.samples[name] = {"tpot_s": tpot_s, "tokens_per_s": per_s}
    times = f"{1e3 * tpot_s:.2f} ms", number(tpot_s / alone_s), number(least)
    result.rows.append((name, *times, f"{per_s:,.0f}"))


def _first_tokens_s(done: Run) -> list[float]:
    """Say what first tokens took, but for the first request: nobody came before it lately."""
    light = (one for one in done.records if one.arrival.tenant_id == _LIGHT)
    return [one.ttft_s for one in light if one.has_begun][1:]
