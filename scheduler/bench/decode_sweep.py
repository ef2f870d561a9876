"""How fast batches decode, beside transformers.

The peer's rounds alternate with ours, and a ratio is the median over rounds of one round's ratio,
above 1 where Sluice is ahead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from scheduler.bench.drive import BenchError, Job, Step, median_step_s
from scheduler.bench.gpu_goals import at_least_on_gpu, decode_goal
from scheduler.bench.part import Part, Row
from scheduler.bench.report import Figure, at_least
from scheduler.bench.setup import Bench

_NUM_TOKENS = 64
# On a GPU contexts are of 1,024 tokens halfway, as in the formula that the goals come from.
_NUM_PROMPT_TOKENS_GPU = 992
_CONTINUOUS_BATCHING_GOAL = 4.0

# By (shape, dtype, compiled operators): batch → how much faster than transformers' `generate`.
_RATIO_GOALS: Mapping[tuple[str, str, bool], Mapping[int, float]] = {
    ("llama_30m", "fp32", False): {1: 1.1, 8: 1.4, 32: 1.25},
    ("llama_30m", "bf16", False): {1: 1.6, 8: 1.8, 32: 1.8},
    ("llama_30m", "fp32", True): {1: 1.6, 8: 1.9, 32: 1.5},
    ("llama_30m", "bf16", True): {1: 2.6, 8: 2.8, 32: 2.4},
    ("qwen3_0_5b", "bf16", False): {1: 1.3, 8: 1.5},
    ("qwen3_0_5b", "bf16", True): {1: 1.3, 8: 1.5},
}


def decode_sweep(bench: Bench) -> Iterator[Part]:
    """Run batches of equal requests, 64 tokens in and 64 out, beside transformers' `generate`.

    On a GPU 992 come in, and all rows decode together for 64 steps: so many more tokens go out as
    steps go by before the last prompt is in.

    Its continuous batching is compared at the largest batch of 16 or more, where it has something
    to batch: warm in the same rounds, and as its documentation calls it in two rounds at the end,
    for these take ten times as long, and most of the memory. Raises: `BenchError`: a batch is
    larger than what the engine runs at once.
    """
    batches = bench.options.batches
    return _sweep(bench, batches or ((1, 8, 32, 128, 256) if bench.options.on_gpu else (1, 8, 32)))


def compare_peer(bench: Bench) -> Iterator[Part]:
    """State only how much faster than transformers the largest batch is, in the same rounds.

    Raises: `BenchError`: there is no peer, or the batch is larger than what the engine runs.
    """
    if bench.peer is None:
        raise BenchError("there is no peer: install transformers, and let its weights be saved")
    batches = bench.options.batches or ((256,) if bench.options.on_gpu else (32,))
    for part in _sweep(bench, batches):
        ratios = {key: figure for key, figure in part.figures.items() if key.endswith("_ratio")}
        yield Part(ratios, part.samples, part.rows)


def _sweep(bench: Bench, batches: Sequence[int]) -> Iterator[Part]:
    if max(batches) > bench.info.max_num_seqs:
        raise BenchError(f"batches go up to the engine's {bench.info.max_num_seqs} rows")
    part = Part()
    for batch in batches:
        rates = _sweep_batch(bench, batch, part, continuous=batch == max(batches) >= 16)
        yield part
        if rates.warm:
            _compare_plain_batching(bench, batch, part)
            yield part


def _prompts(bench: Bench, batch: int) -> list[list[int]]:
    num_tokens = _NUM_PROMPT_TOKENS_GPU if bench.options.on_gpu else _NUM_TOKENS
    return [bench.prompt(num_tokens) for _ in range(batch)]


def _num_output_tokens(bench: Bench, batch: int) -> int:
    """Count the tokens of a request: all of them are to decode at once for `_NUM_TOKENS` steps."""
    if not bench.options.on_gpu:
        return _NUM_TOKENS
    prompts = batch * _NUM_PROMPT_TOKENS_GPU
    return _NUM_TOKENS + -(-prompts // bench.info.max_num_batched_tokens)


@dataclass(slots=True)
class _Rates:
    """Gather output tokens/s, a value a round."""

    own: list[float] = field(default_factory=list)
    static: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    equal_share: list[float] = field(default_factory=list)


def _sweep_batch(bench: Bench, batch: int, part: Part, *, continuous: bool) -> _Rates:
    rates, steps = _Rates(), list[Step]()
    num_output_tokens = _num_output_tokens(bench, batch)
    num_tokens = batch * num_output_tokens
    for number in range(bench.options.rounds + 1):
        if number == 1:  # the first round warms all of them
            rates, steps = _Rates(), list[Step]()
        prompts = _prompts(bench, batch)
        run = bench.driver().run(_jobs(prompts, num_output_tokens))
        steps += run.decode_steps(batch)
        rates.own.append(run.output_tokens_per_s)
        if bench.peer is None:
            continue
        elapsed_s, tokens = bench.peer.generate(prompts, num_output_tokens)
        rates.static.append(num_tokens / elapsed_s)
        rates.equal_share += map(_share_equal, run.tokens, tokens)
        if continuous:
            elapsed_s, _ = bench.peer.generate_batch(prompts, num_output_tokens, warm=True)
            rates.warm.append(num_tokens / elapsed_s)
    share = median(
        bench.work.decode(s.num_decodes, s.num_context_tokens).floor_s(bench.ceilings) / s.wall_s
        for s in steps
    )
    contexts = int(median(s.num_context_tokens for s in steps))
    goal = decode_goal(bench, batch, contexts)
    step_ms = median_step_s(steps) * 1000
    name = f"decode_{bench.subject}_b{batch}"
    part.figures |= {
        f"{name}_output_tokens_per_s": Figure(median(rates.own), "tokens/s"),
        f"{name}_step_ms": Figure(step_ms, "ms"),
        f"{name}_roofline_share": at_least_on_gpu(bench, share, goal, "share"),
    }
    part.samples[f"b{batch}"] = {"output_tokens_per_s": rates.own}
    _compare(bench, batch, rates, part)
    part.rows.append(
        Row(
            f"batch {batch}",
            median(rates.own),
            median(rates.static) if rates.static else None,
            median(rates.warm) if rates.warm else None,
            share,
            f"{step_ms:.2f} ms a step",
        )
    )
    return rates


def _compare(bench: Bench, batch: int, rates: _Rates, part: Part) -> None:
    """Add what the peer's rounds say."""
    if bench.peer is None:
        return
    sample = part.samples[f"b{batch}"]
    goal = _RATIO_GOALS.get((bench.slug, bench.dtype_name, bench.uses_native), {}).get(batch)
    part.figures[_ratio_name(bench, batch)] = _ratio(rates.own, rates.static, goal)
    sample["transformers_output_tokens_per_s"] = rates.static
    # Random weights leave near-ties, so that rounding alone decides some tokens.
    sample["tokens_equal_to_transformers_share"] = sum(rates.equal_share) / len(rates.equal_share)
    if not rates.warm:
        return
    warm_name = _ratio_name(bench, batch, peer="transformers_cb_warm")
    part.figures[warm_name] = _ratio(rates.own, rates.warm, None)
    sample["transformers_cb_warm_output_tokens_per_s"] = rates.warm


def _compare_plain_batching(bench: Bench, batch: int, part: Part) -> None:
    """Add rounds beside the peer's continuous batching as its documentation calls it."""
    assert bench.peer is not None
    bench.peer.stop_batching()
    num_output_tokens = _num_output_tokens(bench, batch)
    plain = []
    for _ in range(min(2, bench.options.rounds)):
        prompts = _prompts(bench, batch)
        run = bench.driver().run(_jobs(prompts, num_output_tokens))
        elapsed_s, _ = bench.peer.generate_batch(prompts, num_output_tokens, warm=False)
        plain.append((run.output_tokens_per_s, batch * num_output_tokens / elapsed_s))
    on_gpu = bench.options.on_gpu
    has_goal = bench.subject == ("qwen3_0_6b" if on_gpu else "llama_30m")
    goal = _CONTINUOUS_BATCHING_GOAL if has_goal else None
    own, peer = zip(*plain, strict=True)
    part.figures[_ratio_name(bench, batch, peer="transformers_cb")] = _ratio(own, peer, goal)
    part.samples[f"b{batch}"]["transformers_cb_output_tokens_per_s"] = peer


def _jobs(prompts: Sequence[list[int]], num_output_tokens: int) -> list[Job]:
    return [Job(prompt=prompt, num_output_tokens=num_output_tokens) for prompt in prompts]


def _ratio_name(bench: Bench, batch: int, *, peer: str = "transformers") -> str:
    shape = "" if bench.slug == "llama_30m" else f"{bench.slug}_"
    torch_alone = "torch_" if bench.options.native == "off" else ""
    return f"{peer}_{shape}{torch_alone}b{batch}_{bench.dtype_name}_ratio"


def _ratio(own: Sequence[float], peer: Sequence[float], goal: float | None) -> Figure:
    value = median(a / b for a, b in zip(own, peer, strict=True))
    return Figure(value, "ratio") if goal is None else at_least(value, goal, "ratio")


def _share_equal(own: Sequence[int], peer: Sequence[int]) -> float:
    """Return how much of a text is the same up to the first token that differs."""
    same = next((i for i, pair in enumerate(zip(own, peer, strict=True)) if pair[0] != pair[1]), -1)
    return 1.0 if same < 0 else same / len(own)
