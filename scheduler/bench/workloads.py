"""What the engine bench measures beside the decode sweep; a function is one workload.

Every request is as long as it is asked to be (end tokens are ignored), and greedy but in `nano`.
Prompts are random token ids, new ones each round, so that no round finds another's in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

from scheduler.bench.drive import Job, Run, percentile
from scheduler.bench.gpu_goals import at_least_on_gpu, prefill_goal
from scheduler.bench.part import Part, Row
from scheduler.bench.report import Figure, at_least
from scheduler.bench.setup import Bench

_SHARED_PREFIX_TOKENS = 1000
_NANO_REQUESTS = 256
_NANO_TOKENS = (100, 1024)
_SHARED_PREFIX_GOAL = 6.7
# On a GPU, output tokens/s by model.
_NANO_GOALS = {"qwen3_0_6b": 27_000}
_1K1K_GOALS = {"qwen3_8b": 9_000}
_1K1K_REQUESTS = 256
_1K1K_TOKENS = 1024
_WARM_UP_TOKENS = 32


def prefill(bench: Bench) -> Iterator[Part]:
    """Compute prompts of 512 tokens (8,192 on a GPU), one token drawn from each."""
    num_prompts, num_tokens = (8, 8192) if bench.options.on_gpu else (4, 512)
    num_tokens = min(num_tokens, bench.info.max_model_len - 1)

    def jobs() -> list[Job]:
        return [
            Job(prompt=bench.prompt(num_tokens), num_output_tokens=1) for _ in range(num_prompts)
        ]

    return _each_round(bench, jobs, partial(_state_prefill, bench, num_prompts, num_tokens))


def _state_prefill(bench: Bench, num_prompts: int, num_tokens: int, runs: list[Run]) -> Part:
    rates = [run.num_prompt_tokens / run.wall_s for run in runs]
    work = bench.work.prefill(num_tokens)
    floor_s = num_prompts * work.floor_s(bench.ceilings)
    wall_s = median(run.wall_s for run in runs)
    share = floor_s / wall_s
    matmul_share = num_prompts * work.flop / wall_s / bench.ceilings.flop_per_s
    name = f"prefill_{bench.subject}"
    return Part(
        {
            f"{name}_tokens_per_s": Figure(median(rates), "tokens/s"),
            f"{name}_roofline_share": Figure(share, "share"),
            f"{name}_matmul_share": at_least_on_gpu(
                bench, matmul_share, prefill_goal(bench, num_tokens), "share"
            ),
        },
        {"tokens_per_s": rates, "num_prompts": num_prompts, "num_prompt_tokens": num_tokens},
        [
            Row(
                f"{num_prompts} × {num_tokens}",
                median(rates),
                share_of_ceiling=share,
                note="prompt tokens",
            )
        ],
    )


def mixed(bench: Bench) -> Iterator[Part]:
    """Let eight rows decode while a prompt of 512 tokens comes in every eighth step, eight times.

    What counts is that the rows keep going: the longest gaps between their tokens.
    """

    def jobs() -> list[Job]:
        decoding = [Job(prompt=bench.prompt(64), num_output_tokens=128) for _ in range(8)]
        coming = [
            Job(prompt=bench.prompt(512), num_output_tokens=16, after_steps=8 * number)
            for number in range(1, 9)
        ]
        return decoding + coming

    return _each_round(bench, jobs, partial(_state_mixed, bench))


def _state_mixed(bench: Bench, runs: list[Run]) -> Part:
    rates = [run.output_tokens_per_s for run in runs]
    gaps_ms = [percentile(run.gaps_s, 0.99) * 1000 for run in runs]
    name = f"mixed_{bench.subject}"
    return Part(
        {
            f"{name}_output_tokens_per_s": Figure(median(rates), "tokens/s"),
            f"{name}_gap_p99_ms": Figure(median(gaps_ms), "ms"),
        },
        {
            "output_tokens_per_s": rates,
            "gap_p99_ms": gaps_ms,
            "gap_p50_ms": [percentile(run.gaps_s, 0.5) * 1000 for run in runs],
        },
        [
            Row(
                "8 decode, 8 × 512 come",
                median(rates),
                note=f"gap p99 {median(gaps_ms):.1f} ms",
            )
        ],
    )


def shared_prefix(bench: Bench) -> Iterator[Part]:
    """Time first tokens behind a shared 1,000-token prefix: the first request, then four others.

    The followers come one at a time, after the first has finished; each ends in 16 tokens of its
    own.
    """
    firsts: list[float] = []
    followers: list[float] = []
    speedups: list[float] = []
    for number in range(bench.options.rounds + 1):
        driver, prefix = bench.driver(), bench.prompt(_SHARED_PREFIX_TOKENS)
        ttft_s = [
            driver.run([Job(prompt=prefix + bench.prompt(16), num_output_tokens=2)]).ttft_s[0]
            for _ in range(5)
        ]
        if number:
            firsts.append(ttft_s[0])
            followers.append(median(ttft_s[1:]))
            speedups.append(ttft_s[0] / median(ttft_s[1:]))
            yield _state_shared_prefix(bench, firsts, followers, speedups)


def _state_shared_prefix(
    bench: Bench, firsts: list[float], followers: list[float], speedups: list[float]
) -> Part:
    is_standard = bench.subject == "llama_30m"
    name = "shared_prefix" if is_standard else f"shared_prefix_{bench.subject}"
    goal = at_least(median(speedups), _SHARED_PREFIX_GOAL, "ratio")
    return Part(
        {f"{name}_ttft_speedup": goal},
        {"first_ttft_s": firsts, "follower_ttft_s": followers, "speedup": speedups},
        [
            Row(
                "1,000 tokens shared",
                None,
                note=f"first token {median(speedups):.1f}× sooner than the first's",
            )
        ],
    )


def nano(bench: Bench) -> Iterator[Part]:
    """Run 256 requests at once, 100 to 1,024 tokens in and out, both times `scale`.

    Source: the bench of nano-vllm, its bench.py: lengths, temperature, no end tokens.
    """
    scale = bench.options.scale
    num_requests = max(1, round(_NANO_REQUESTS * scale))
    low, high = (max(1, round(n * scale)) for n in _NANO_TOKENS)

    def jobs() -> list[Job]:
        return [
            Job(
                prompt=bench.prompt(bench.draw.randint(low, high)),
                num_output_tokens=bench.draw.randint(low, high),
                temperature=0.6,
            )
            for _ in range(num_requests)
        ]

    return _each_round(bench, jobs, partial(_state_nano, bench, num_requests, (low, high)))


def _state_nano(bench: Bench, num_requests: int, lengths: tuple[int, int], runs: list[Run]) -> Part:
    low, high = lengths
    rates = [run.output_tokens_per_s for run in runs]
    return Part(
        {
            f"nano_{bench.subject}_output_tokens_per_s": at_least_on_gpu(
                bench, median(rates), _NANO_GOALS.get(bench.subject), "tokens/s"
            )
        },
        {"output_tokens_per_s": rates, "num_requests": num_requests, "num_tokens": [low, high]},
        [Row(f"{num_requests} × {low}–{high} in and out", median(rates))],
    )


def one_k_one_k(bench: Bench) -> Iterator[Part]:
    """Run 256 requests at once, 1,024 tokens in and 1,024 out, both times `scale`."""
    num_requests = max(1, round(_1K1K_REQUESTS * bench.options.scale))
    num_tokens = max(2, round(_1K1K_TOKENS * bench.options.scale))

    def jobs(num_output_tokens: int) -> list[Job]:
        return [
            Job(prompt=bench.prompt(num_tokens), num_output_tokens=num_output_tokens)
            for _ in range(num_requests)
        ]

    # A round takes half a minute on a large model: what warms up need not be a whole one.
    return _each_round(
        bench,
        partial(jobs, num_tokens),
        partial(_state_1k1k, bench, num_requests, num_tokens),
        warm_up=partial(jobs, min(num_tokens, _WARM_UP_TOKENS)),
    )


def _state_1k1k(bench: Bench, num_requests: int, num_tokens: int, runs: list[Run]) -> Part:
    rates = [run.output_tokens_per_s for run in runs]
    shares = [_share_of_floor(bench, run) for run in runs]
    name = f"{bench.subject}_1k1k"
    goal = _1K1K_GOALS.get(bench.subject) if bench.options.scale == 1 else None
    return Part(
        {
            f"{name}_output_tokens_per_s": at_least_on_gpu(bench, median(rates), goal, "tokens/s"),
            f"{name}_roofline_share": Figure(median(shares), "share"),
        },
        {"output_tokens_per_s": rates, "num_requests": num_requests, "num_tokens": num_tokens},
        [
            Row(
                f"{num_requests} × {num_tokens} in and out",
                median(rates),
                share_of_ceiling=median(shares),
            )
        ],
    )


def _share_of_floor(bench: Bench, run: Run) -> float:
    """Return the least time that the steps of a run could take, over the time that it took."""
    floors_s = (
        bench.work.step(step.features, step.num_draws).floor_s(bench.ceilings) for step in run.steps
    )
    return sum(floors_s) / run.wall_s


def _each_round(
    bench: Bench,
    jobs: Callable[[], list[Job]],
    state: Callable[[list[Run]], Part],
    *,
    warm_up: Callable[[], list[Job]] | None = None,
) -> Iterator[Part]:
    """Run new jobs a round, each with an empty cache, and state the rounds so far after each.

    One before them warms up, with `warm_up` where that is less.
    """
    bench.driver().run((warm_up or jobs)())
    runs: list[Run] = []
    for _ in range(bench.options.rounds):
        runs.append(bench.driver().run(jobs()))
        yield state(runs)
