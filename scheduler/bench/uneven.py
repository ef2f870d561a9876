"""How a batch decodes in which one context is much longer than the others."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from scheduler.bench.drive import BenchError, Job, median_step_s
from scheduler.bench.part import Part, Row
from scheduler.bench.report import Figure
from scheduler.bench.setup import Bench

_NUM_LONG_TOKENS = 32_768
_NUM_SHORT_TOKENS = 1024
_NUM_SHORT = 127
# Steps in which all rows decode.
_NUM_STEPS = 32


def uneven(bench: Bench) -> Part:
    """Decode a context of 32,768 tokens beside 127 of 1,024, or as many as the engine holds.

    How many and how long are times `scale`.

    A step reads little more than one of equal rows, and must not wait for the longest.
    """
    sizes = _choose_sizes(bench)
    num_rows = 1 + sizes.num_short
    steps = []
    for number in range(bench.options.rounds + 1):
        lens = [sizes.num_long_tokens, *[sizes.num_short_tokens] * sizes.num_short]
        run = bench.driver().run(
            [Job(prompt=bench.prompt(n), num_output_tokens=sizes.num_output_tokens) for n in lens]
        )
        if number:  # the first round warms up
            steps += run.decode_steps(num_rows)
    if not steps:
        raise BenchError(f"{num_rows} rows never decoded together")
    share = median(
        bench.work.decode(s.num_decodes, s.num_context_tokens).floor_s(bench.ceilings) / s.wall_s
        for s in steps
    )
    step_ms = median_step_s(steps) * 1000
    name = f"{bench.subject}_uneven"
    return Part(
        {
            f"{name}_decode_step_ms": Figure(step_ms, "ms"),
            f"{name}_decode_roofline_share": Figure(share, "share"),
        },
        {
            "num_long_tokens": sizes.num_long_tokens,
            "num_short": sizes.num_short,
            "num_short_tokens": sizes.num_short_tokens,
        },
        [
            Row(
                f"{sizes.num_long_tokens:,} beside {sizes.num_short} of {sizes.num_short_tokens:,}",
                num_rows / step_ms * 1000,
                share_of_ceiling=share,
                note=f"{step_ms:.2f} ms a step",
            )
        ],
    )


@dataclass(frozen=True, slots=True)
class _Sizes:
    num_long_tokens: int
    num_short_tokens: int
    num_short: int
    num_output_tokens: int


def _choose_sizes(bench: Bench) -> _Sizes:
    """Fit the batch into the engine; the first row goes on until the last prompt is computed."""
    info, scale = bench.info, bench.options.scale
    room = info.num_blocks * info.block_size
    num_short_tokens = min(max(1, round(_NUM_SHORT_TOKENS * scale)), info.max_model_len // 8)
    most = min(max(1, round(_NUM_SHORT * scale)), info.max_num_seqs - 1)
    # Prompts are computed in what decodes leave of a step.
    rest = max(info.max_num_batched_tokens - most, 1)
    num_output_tokens = _NUM_STEPS + most * num_short_tokens // rest + 2
    num_long_tokens = min(
        round(_NUM_LONG_TOKENS * scale), info.max_model_len - num_output_tokens, room // 2
    )
    each = -(-(num_short_tokens + num_output_tokens) // info.block_size) * info.block_size
    left = room - num_long_tokens - num_output_tokens - info.block_size
    num_short = min(most, left // each)
    if num_short < 1 or num_long_tokens <= num_short_tokens:
        raise BenchError("the engine has no room for a long context beside short ones")
    return _Sizes(num_long_tokens, num_short_tokens, num_short, num_output_tokens)
