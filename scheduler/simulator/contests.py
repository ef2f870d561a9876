"""What tenants do to each other where they meet after the queue: attacks on one victim.

The victim sends Azure's conversations and asks for three tenths of what Llama-3-8B makes of them
on one A100. Beside it one other tenant does something that a step, the slots or the memory pay for
rather than the queue, or an organisation comes as two hundred tenants; a `Contest` says what, and
how long the victim may wait all the same. The `VARIANTS` do it by other ways: through many keys, in
bursts, by prompts that are cancelled half computed, and while others are sent back to the queue
again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scheduler.request import Band, Slo
from scheduler.simulator.synthetic import azure_lengths, poisson
from scheduler.simulator.workload import Arrival, Workload

VICTIM = "victim"
OTHER = "other"
_VICTIM_SEED = 7
_LONG_PROMPT = 100_000
_NUM_KEYS = 50
_NUM_SYBILS = 200
_BURST_S = 30.0
# About half of such a prompt is computed by then.
_CANCEL_AFTER_S = 8.0
_STORM_S = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Describe an attack: `other` says what the other tenant sends in so many seconds.

    The victim is of `band` and promised `slo`. `num_blocks` and `max_num_seqs` say of the machine
    what is not as the profile has it. What is at most and at least to come of it is in `at_most`
    and `at_least`, by figures of the victim: `ttft_p99_s`, `tpot_p99_s`, `refused_share`,
    `service_share`, `token_share` (the same in tokens and not in time), `service_of_entitled`
    (what it had of its fair share).
    """

    name: str
    other: Callable[[float], list[Arrival]]
    at_most: Mapping[str, float]
    at_least: Mapping[str, float]
    band: Band = Band.DEFAULT
    slo: Slo = field(default_factory=Slo)
    num_blocks: int | None = None


def _sent(every_s: float, duration_s: float, arrival: Arrival) -> list[Arrival]:
    return [arrival.at(n * every_s) for n in range(int(duration_s / every_s))]


def long_prompts(every_s: float, duration_s: float) -> list[Arrival]:
    """Send prompts that fill forty steps each."""
    prompt = Arrival(
        at_s=0.0, tenant_id=OTHER, num_prompt_tokens=_LONG_PROMPT, num_output_tokens=16
    )
    return _sent(every_s, duration_s, prompt)


def _long_outputs(duration_s: float) -> list[Arrival]:
    """Ask for as much as there may be, and draw two thousand tokens of it."""
    answer = Arrival(
        at_s=0.0,
        tenant_id=OTHER,
        num_prompt_tokens=200,
        num_output_tokens=2_000,
        max_tokens=120_000,
    )
    return _sent(0.1, duration_s, answer)


def _cached_prefix(duration_s: float) -> list[Arrival]:
    """Ask about one long document again and again: little is computed, much is read."""
    question = Arrival(
        at_s=0.0,
        tenant_id=OTHER,
        num_prompt_tokens=_LONG_PROMPT + 200,
        num_output_tokens=200,
        block_ids=(0,),
        block_tokens=_LONG_PROMPT,
    )
    return _sent(2.0, duration_s, question)


def _longer_than_learned(duration_s: float) -> list[Arrival]:
    """Draw little for a while, so that little is expected and many are let in; then draw much."""
    taught_s = duration_s / 4
    answer = Arrival(
        at_s=0.0,
        tenant_id=OTHER,
        num_prompt_tokens=100,
        num_output_tokens=16,
        max_tokens=8_192,
    )
    arrivals = _sent(0.1, duration_s, answer)
    return [a if a.at_s < taught_s else replace(a, num_output_tokens=4_000) for a in arrivals]


def _sybils(duration_s: float) -> list[Arrival]:
    """Ask for three times what there is, as so many tenants of one owner."""
    arrival = Arrival(
        at_s=0.0,
        tenant_id=OTHER,
        organisation_id="crowd",
        num_prompt_tokens=1_000,
        num_output_tokens=200,
    )
    arrivals = _sent(0.05, duration_s, arrival)
    return [replace(a, tenant_id=f"sybil-{n % _NUM_SYBILS}") for n, a in enumerate(arrivals)]


CONTESTS: Sequence[Contest] = (
    Contest(
        name="long_prompt_every_20s",
        other=lambda duration_s: long_prompts(20.0, duration_s),
        at_most={"ttft_p99_s": 2.5},
        at_least={},
    ),
    Contest(
        name="long_prompt_every_1s",
        other=lambda duration_s: long_prompts(1.0, duration_s),
        at_most={"ttft_p99_s": 2.5},
        at_least={},
    ),
    Contest(
        name="long_prompt_beside_a_promise",
        other=lambda duration_s: long_prompts(1.0, duration_s),
        at_most={"refused_share": 0.25},
        # It asks for 0.28 of the time, so the first of these cannot be met.
        at_least={"service_share": 0.35, "token_share": 0.35, "service_of_entitled": 0.9},
        slo=Slo(ttft_s=2.0),
    ),
    Contest(
        name="long_outputs",
        other=_long_outputs,
        at_most={"ttft_p99_s": 8.0},
        at_least={},
    ),
    Contest(
        name="cached_prefix",
        other=_cached_prefix,
        at_most={"ttft_p99_s": 5.0, "tpot_p99_s": 0.1},
        at_least={},
    ),
    Contest(
        name="long_prompt_below_priority",
        other=lambda duration_s: long_prompts(1.0, duration_s),
        at_most={"ttft_p99_s": 1.5},
        at_least={},
        band=Band.PRIORITY,
    ),
    Contest(
        name="longer_than_learned",
        other=_longer_than_learned,
        at_most={"ttft_p99_s": 10.0},
        at_least={},
        num_blocks=4_096,
    ),
    Contest(
        name="tenants_of_one_owner",
        other=_sybils,
        at_most={"ttft_p99_s": 2.5},
        at_least={"service_of_entitled": 0.9},
    ),
)


def _through_keys(arrivals: Sequence[Arrival]) -> list[Arrival]:
    return [replace(a, key_id=f"key-{n % _NUM_KEYS}") for n, a in enumerate(arrivals)]


def _in_bursts(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Send what comes in a minute within the first half of it."""
    return [a.at(a.at_s - a.at_s % (2 * _BURST_S) / 2) for a in arrivals]


def _cancelled(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Give up every other request while it is under way."""
    return [
        replace(a, cancel_after_s=_CANCEL_AFTER_S) if n % 2 else a for n, a in enumerate(arrivals)
    ]


def _in_a_storm(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Let urgent requests displace the rows of a lower band every few seconds beside it."""
    last_s = arrivals[-1].at_s
    return [*arrivals, *_ballast(last_s), *_urgent(last_s)]


def _ballast(duration_s: float) -> Iterator[Arrival]:
    """Take the slots that are free with what goes below all others."""
    ballast = Arrival(
        at_s=0.0,
        tenant_id="ballast",
        band=Band.FLEX,
        num_prompt_tokens=64,
        num_output_tokens=1_000,
        max_tokens=1_000,
    )
    for at_s in range(0, int(duration_s), 8):
        yield from [ballast.at(float(at_s))] * 64


def _urgent(duration_s: float) -> Iterator[Arrival]:
    urgent = Arrival(
        at_s=0.0,
        tenant_id="urgent",
        band=Band.PRIORITY,
        num_prompt_tokens=200,
        num_output_tokens=16,
    )
    for n in range(int(duration_s / _STORM_S)):
        yield from [urgent.at(n * _STORM_S)] * 16


# What becomes of the arrivals beside the victim; plain, as they are.
VARIANTS: Mapping[str, Callable[[Sequence[Arrival]], list[Arrival]]] = {
    "plain": list,
    "50_keys": _through_keys,
    "bursts": _in_bursts,
    "cancelled": _cancelled,
    "storm": _in_a_storm,
}


def victim(rate: float, duration_s: float, contest: Contest | None = None) -> list[Arrival]:
    """Let the victim send for so long, as a contest has it."""
    band, slo = (Band.DEFAULT, Slo()) if contest is None else (contest.band, contest.slo)

    def make(index: int, at_s: float, prompt: int, output: int) -> Arrival:
        return Arrival(
            at_s=at_s,
            tenant_id=VICTIM,
            num_prompt_tokens=prompt,
            num_output_tokens=output,
            band=band,
            slo=slo,
        )

    workload = poisson(
        VICTIM,
        rate=rate,
        duration_s=duration_s,
        lengths=azure_lengths(),
        seed=_VICTIM_SEED,
        make=make,
    )
    return list(workload.arrivals)


def contested(contest: Contest, variant: str, rate: float, duration_s: float) -> Workload:
    """Mix the victim's requests with those of a contest."""
    arrivals = VARIANTS[variant](contest.other(duration_s))
    arrivals += victim(rate, duration_s, contest)
    arrivals.sort(key=lambda arrival: arrival.at_s)
    return Workload(name=f"{contest.name}/{variant}", arrivals=arrivals, duration_s=duration_s)
