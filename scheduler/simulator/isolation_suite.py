"""What one tenant's flood does to another that stays within its share.

Two tenants of equal weight send Azure's conversations to Llama-3-8B on one A100. The victim asks
for three tenths of the capacity throughout; the other one for a tenth, then for ten and a hundred
times that. Then both flood, one of them through one key and through fifty. To show that the goal
can be missed, the flood is also served in the order of arrival. Last come the contests, in which
the other tenant goes for steps, slots and memory (`scheduler.simulator.contests`), each in all its
variants, under the default preset.

A request that has no token when the run ends has waited until then, at the least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler.config import PRESETS, FairnessConfig, SchedulerConfig
from scheduler.figure import Figure, at_least, at_most
from scheduler.simulator.capacity import measure_capacity
from scheduler.simulator.contests import CONTESTS, VARIANTS, VICTIM, Contest, contested
from scheduler.simulator.contests import victim as victim_arrivals
from scheduler.simulator.fairness import service_of_tenants
from scheduler.simulator.metrics import measure, num_served_tokens, quantiles, ratio
from scheduler.simulator.records import Record, Run
from scheduler.simulator.report import number, seconds
from scheduler.simulator.run import simulate
from scheduler.simulator.setup import Machine, load_machine
from scheduler.simulator.suite import OnRun, SuiteResult
from scheduler.simulator.synthetic import azure_lengths, poisson
from scheduler.simulator.workload import Arrival, Workload

_DEFAULT_PRESET = PRESETS["mixed"]
_VICTIM_LOAD = 0.3
_OTHER_LOAD = 0.1
_FACTORS = (1, 10, 100)
_TTFT_GOAL_S = 2.5
_NUM_KEYS = 50
_KEYS_GAIN = 0.05
_FLOOD_LOAD = 1.5
_SLOW_FACTOR = 100
NUM_RUNS = 1 + len(_FACTORS) + 1 + 2 + 1 + len(CONTESTS) * len(VARIANTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationSuiteOptions:
    """Size the suite: the floods last `duration_s`, each contest `contest_s`."""

    duration_s: float = 300.0
    contest_s: float = 240.0
    variants: Sequence[str] = tuple(VARIANTS)
    seed: int = 42

    @property
    def num_runs(self) -> int:
        """Count the runs that are made."""
        return NUM_RUNS - len(CONTESTS) * (len(VARIANTS) - len(self.variants))


_DEFAULTS = IsolationSuiteOptions()


def run(on_run: OnRun, options: IsolationSuiteOptions = _DEFAULTS) -> SuiteResult:
    """Run the victim alone, beside each flood, the two floods of keys, and the contests."""
    result = SuiteResult(
        header=("", "victim TTFT p50", "p99", "its refusals", "other's refusals", "tokens/s")
    )
    machine = replace(load_machine("a100-llama-3-8b"), depth=1)
    sample = _sender("victim", 5.0, options)
    capacity = measure_capacity(machine, _config(), sample)
    capacity_rps = capacity * len(sample.arrivals) / sample.num_tokens
    victim = _sender("victim", _VICTIM_LOAD * capacity_rps, options)
    alone = simulate(machine, _config(), _mix([victim]), until_s=options.duration_s)
    alone_s = _show("alone", alone, result)
    on_run("alone")
    result.figures["victim_alone_ttft_p99_s"] = Figure(alone_s, "s")
    bound_s = _bound_s(machine, alone, capacity)
    result.figures["fairness_bound_s"] = Figure(bound_s, "s")
    for factor in _FACTORS:
        other = _sender("other", factor * _OTHER_LOAD * capacity_rps, options)
        done = simulate(machine, _config(), _mix([victim, other]), until_s=options.duration_s)
        p99_s = _show(f"other {factor}×", done, result)
        on_run(f"{factor}×")
        result.figures[f"victim_ttft_p99_at_{factor}x_s"] = at_most(p99_s, _TTFT_GOAL_S, "s")
        result.figures[f"victim_ttft_p99_at_{factor}x_over_alone"] = Figure(
            p99_s / alone_s, "ratio"
        )
        refused = result.samples[f"other {factor}×"]["victim_refused"]
        result.figures[f"victim_refused_at_{factor}x"] = at_most(refused, 0, "requests")
    _run_in_order_of_arrival(machine, victim, capacity_rps, options, result)
    on_run("in the order of arrival")
    shares = {
        keys: _share_of_flood(machine, capacity_rps, options, keys, result, on_run)
        for keys in (1, _NUM_KEYS)
    }
    gain = shares[_NUM_KEYS] / shares[1] - 1
    result.figures["service_gain_of_50_keys"] = at_most(gain, _KEYS_GAIN, "share")
    _run_contests(options, result, on_run)
    return result


def _run_in_order_of_arrival(
    machine: Machine,
    victim: Workload,
    capacity_rps: float,
    options: IsolationSuiteOptions,
    result: SuiteResult,
) -> None:
    """Show what becomes of the victim where nobody has a share."""
    other = _sender("other", _SLOW_FACTOR * _OTHER_LOAD * capacity_rps, options)
    config = SchedulerConfig(fairness=FairnessConfig(policy="fcfs"), prefix_caching=False)
    done = simulate(machine, config, _mix([victim, other]), until_s=options.duration_s)
    p99_s = _show(f"other {_SLOW_FACTOR}×, fcfs", done, result)
    result.figures[f"fcfs_victim_ttft_p99_at_{_SLOW_FACTOR}x_s"] = at_least(
        p99_s, 2 * _TTFT_GOAL_S, "s"
    )


def _run_contests(options: IsolationSuiteOptions, result: SuiteResult, on_run: OnRun) -> None:
    """Run every contest in its variants, and the victim alone on the same machine."""
    machine = load_machine("a100-llama-3-8b")
    duration_s = options.contest_s
    sample = Workload(
        name="victim", arrivals=victim_arrivals(5.0, duration_s), duration_s=duration_s
    )
    capacity = measure_capacity(machine, _DEFAULT_PRESET, sample)
    rate = _VICTIM_LOAD * capacity * len(sample.arrivals) / sample.num_tokens
    arrivals = victim_arrivals(rate, duration_s)
    alone = replace(sample, arrivals=arrivals)
    done = simulate(machine, _DEFAULT_PRESET, alone, until_s=duration_s)
    result.figures["contested_victim_alone_ttft_p99_s"] = Figure(
        _show("default preset, alone", done, result), "s"
    )
    on_run("default preset, alone")
    for contest in CONTESTS:
        for variant in options.variants:
            workload = contested(contest, variant, rate, duration_s)
            small = replace(machine, num_blocks=contest.num_blocks or machine.num_blocks)
            _show_contest(
                contest,
                variant,
                simulate(small, _DEFAULT_PRESET, workload, until_s=duration_s),
                result,
            )
            on_run(workload.name)


def _show_contest(contest: Contest, variant: str, done: Run, result: SuiteResult) -> None:
    """State the figures of one contest that have goals."""
    name = f"{contest.name}/{variant}"
    p99_s = _show(name, done, result)
    figures = measure(done)
    by_tenant = {of["tenant"]: of for of in figures["tenants"]}
    own = by_tenant[VICTIM]
    values = {
        "ttft_p99_s": p99_s,
        "tpot_p99_s": own["tpot_s"]["p99"],
        "refused_share": own["rejected"] / own["requests"],
        "service_share": own["service_share"],
        "token_share": _token_share(done),
        "service_of_entitled": ratio(own["service_share"] or 0.0, own["entitled_share"] or 0.0),
    }
    result.samples[name] |= {
        **values,
        "entitled_share": own["entitled_share"],
        "victim_preemptions": own["preemptions"],
        "preemptions": figures["preemptions"],
        "tokens_per_s": figures["tokens_per_s"],
    }
    slug = contest.name if variant == "plain" else f"{contest.name}_{variant}"
    for goals, state in ((contest.at_most, at_most), (contest.at_least, at_least)):
        for key, bound in goals.items():
            unit = "s" if key.endswith("_s") else "share"
            # A victim that has nothing to be measured by was not served at all.
            value = values[key] if values[key] is not None else done.end_s
            result.figures[f"{slug}_victim_{key}"] = state(value, bound, unit)


def _token_share(done: Run) -> float:
    """Say what part the victim had of all that was computed, in tokens at their prices."""
    prices = done.prices
    own = [record for record in done.records if record.arrival.tenant_id == VICTIM]
    own_prompts = sum(r.arrival.num_prompt_tokens - r.num_cached_tokens for r in own if r.has_begun)
    own_outputs = sum(record.num_output_tokens for record in own)
    outputs = sum(record.num_output_tokens for record in done.records)
    total = prices.input * done.num_prefill_tokens + prices.output * outputs
    return (prices.input * own_prompts + prices.output * own_outputs) / total


def _config() -> SchedulerConfig:
    return SchedulerConfig(fairness=FairnessConfig(policy="vtc"), prefix_caching=False)


def _bound_s(machine: Machine, done: Run, capacity_tokens_per_s: float) -> float:
    """Give the time that the paper allows a tenant within its share to wait for one other.

    That is 2 U over the capacity, U the most that can be served before a counter tells: the
    longest prompt, or all that rows or memory hold of outputs.
    """
    prices = done.prices
    longest_prompt = max(record.arrival.num_prompt_tokens for record in done.records)
    longest_output = max(record.arrival.num_output_tokens for record in done.records)
    num_kv_tokens = machine.num_blocks * machine.block_size
    outputs = min(num_kv_tokens, machine.max_num_seqs * longest_output)
    return 2 * max(prices.input * longest_prompt, prices.output * outputs) / capacity_tokens_per_s


def _sender(
    tenant_id: str, rate: float, options: IsolationSuiteOptions, *, num_keys: int = 1
) -> Workload:
    def make(index: int, at_s: float, prompt: int, output: int) -> Arrival:
        return Arrival(
            at_s=at_s,
            tenant_id=tenant_id,
            key_id=f"{tenant_id}-{index % num_keys}",
            num_prompt_tokens=prompt,
            num_output_tokens=output,
        )

    return poisson(
        tenant_id,
        rate=rate,
        duration_s=options.duration_s,
        lengths=azure_lengths(),
        # Each tenant draws for itself, or both would send the same.
        seed=options.seed + len(tenant_id),
        make=make,
    )


def _mix(senders: Sequence[Workload]) -> Workload:
    arrivals = sorted((a for sender in senders for a in sender.arrivals), key=lambda a: a.at_s)
    duration_s = max(sender.duration_s for sender in senders)
    return Workload(name="isolation", arrivals=arrivals, duration_s=duration_s)


def _share_of_flood(
    machine: Machine,
    capacity_rps: float,
    options: IsolationSuiteOptions,
    num_keys: int,
    result: SuiteResult,
    on_run: OnRun,
) -> float:
    """Return the other tenant's service over the victim's where both flood."""
    rate = _FLOOD_LOAD * capacity_rps
    senders = [
        _sender("victim", rate, options),
        _sender("other", rate, options, num_keys=num_keys),
    ]
    done = simulate(machine, _config(), _mix(senders), until_s=options.duration_s)
    _show(f"both flood, {num_keys} keys", done, result)
    on_run(f"{num_keys} keys")
    service = dict(zip(done.tenant_ids, service_of_tenants(done), strict=True))
    share = float(service["other"] / service["victim"])
    result.samples[f"both flood, {num_keys} keys"]["other_over_victim"] = share
    if num_keys == 1:
        tokens_per_s = sum(map(num_served_tokens, done.records)) / done.end_s
        result.figures["both_flood_tokens_per_s"] = Figure(tokens_per_s, "tokens/s")
    return share


def _show(name: str, done: Run, result: SuiteResult) -> float:
    """Add a row and a sample; returns the 99th percentile of the victim's TTFT."""
    victim = [record for record in done.records if record.arrival.tenant_id == "victim"]
    ttft_s = quantiles(_waited_s(record, done.end_s) for record in victim if record.reject is None)
    refused = [
        sum(r.reject is not None for r in done.records if (r.arrival.tenant_id == "victim") is own)
        for own in (True, False)
    ]
    served = sum(map(num_served_tokens, done.records))
    result.samples[name] = {
        "victim_ttft_s": ttft_s,
        "victim_requests": len(victim),
        "victim_refused": refused[0],
        "other_refused": refused[1],
    }
    result.rows.append(
        (
            name,
            seconds(ttft_s["p50"]),
            seconds(ttft_s["p99"]),
            number(refused[0]),
            number(refused[1]),
            number(served / done.end_s),
        )
    )
    assert ttft_s["p99"] is not None, "the victim is taken in in every run"
    return ttft_s["p99"]


def _waited_s(record: Record, end_s: float) -> float:
    """Say how long a request waited for its first token, or has by now."""
    return record.ttft_s if record.has_begun else end_s - record.arrival.at_s
