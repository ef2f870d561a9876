"""How long a very long prompt takes, and how fast it goes on from there."""

from __future__ import annotations

from statistics import median

from scheduler.bench.drive import BenchError, Job, median_step_s
from scheduler.bench.part import Part, Row
from scheduler.bench.report import Figure
from scheduler.bench.setup import Bench

_NUM_TOKENS = 65_536
_NUM_OUTPUT_TOKENS = 33


def long_prompt(bench: Bench) -> Part:
    """Run one prompt of 65,536 tokens times `scale`, or as many as fit, and 33 tokens after it.

    The prompt is nobody's in the cache, and the round before has seen every size of step.
    """
    room = bench.info.max_model_len - _NUM_OUTPUT_TOKENS
    num_tokens = min(max(1, round(_NUM_TOKENS * bench.options.scale)), room)
    if num_tokens < 1:
        raise BenchError(f"a context of {bench.info.max_model_len} tokens has no long prompt")
    job = Job(prompt=bench.prompt(num_tokens), num_output_tokens=_NUM_OUTPUT_TOKENS)
    ttft_s: list[float] = []
    steps_s: list[float] = []
    shares: list[float] = []
    for number in range(bench.options.rounds + 1):
        run = bench.driver().run([job])
        if not number:  # the first round warms up
            continue
        decodes = run.decode_steps(1)
        ttft_s.append(run.ttft_s[0])
        steps_s.append(median_step_s(decodes))
        shares += [
            bench.work.step(s.features, s.num_draws).floor_s(bench.ceilings) / s.wall_s
            for s in decodes
        ]
    prefill_s, step_s, decode_share = median(ttft_s), median(steps_s), median(shares)
    prefill_share = bench.work.prefill(num_tokens).floor_s(bench.ceilings) / prefill_s
    name = f"{bench.subject}_64k"
    return Part(
        {
            f"{name}_ttft_s": Figure(prefill_s, "s"),
            f"{name}_prefill_tokens_per_s": Figure(num_tokens / prefill_s, "tokens/s"),
            f"{name}_prefill_roofline_share": Figure(prefill_share, "share"),
            f"{name}_decode_step_ms": Figure(step_s * 1000, "ms"),
            f"{name}_decode_roofline_share": Figure(decode_share, "share"),
        },
        {"num_prompt_tokens": num_tokens, "ttft_s": ttft_s, "decode_step_s": steps_s},
        [
            Row(f"{num_tokens:,} tokens", num_tokens / prefill_s, share_of_ceiling=prefill_share),
            Row(
                "then decode",
                1 / step_s,
                share_of_ceiling=decode_share,
                note=f"{step_s * 1000:.2f} ms a step",
            ),
        ],
    )
