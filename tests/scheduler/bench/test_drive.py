"""The driver under the benches, on a simulated engine."""

from __future__ import annotations

import random

import pytest

from fakes import make_engine
from scheduler.bench.drive import BenchError, Driver, Job, percentile


def make_driver() -> Driver:
    return Driver(
        make_engine(max_model_len=256, max_num_batched_tokens=64, num_blocks=64, block_size=16)
    )


def test_run_counts_what_was_asked_for() -> None:
    """Every request gets exactly its tokens, with a time to the first and a gap for the rest."""
    jobs = [Job(prompt=[5] * n, num_output_tokens=n) for n in (1, 7, 40, 3, 9, 2)]
    run = make_driver().run(jobs)
    assert [len(tokens) for tokens in run.tokens] == [1, 7, 40, 3, 9, 2]
    assert (run.num_prompt_tokens, run.num_output_tokens) == (62, 62)
    assert len(run.gaps_s) == 62 - len(jobs)
    assert all(0 < ttft_s <= run.wall_s for ttft_s in run.ttft_s)
    assert sum(step.wall_s for step in run.steps) <= run.wall_s


def test_job_waits_for_its_step() -> None:
    """A job that is to come after some steps is not computed before them."""
    late = Job(prompt=[5] * 30, num_output_tokens=1, after_steps=6)
    run = make_driver().run([Job(prompt=[5] * 3, num_output_tokens=20), late])
    assert [step.num_prefill_tokens for step in run.steps] == [3, 0, 0, 0, 0, 0, 30, *[0] * 13]
    assert len(run.decode_steps(1)) == 18


def test_job_whose_step_never_comes_is_run_at_the_end() -> None:
    """A job that waits for more steps than there are runs once nothing else does."""
    run = make_driver().run([Job(prompt=[5], num_output_tokens=2, after_steps=99)])
    assert run.num_output_tokens == 2


def test_cache_lives_as_long_as_the_driver() -> None:
    """The second prompt with the same beginning computes only its end; a new driver starts over."""
    prefix = random.Random(1).choices(range(100), k=48)
    driver = make_driver()
    for prefilled in (50, 2):
        run = driver.run([Job(prompt=[*prefix, 1, 2], num_output_tokens=1)])
        assert sum(step.num_prefill_tokens for step in run.steps) == prefilled
    run = make_driver().run([Job(prompt=[*prefix, 1, 2], num_output_tokens=1)])
    assert sum(step.num_prefill_tokens for step in run.steps) == 50


def test_decode_contexts_are_counted() -> None:
    """A step's context is what its rows attend to, their own tokens included."""
    run = make_driver().run([Job(prompt=[5] * 10, num_output_tokens=4)])
    assert [step.num_context_tokens for step in run.steps] == [0, 11, 12, 13]


def test_job_that_does_not_fit() -> None:
    """A job beyond the engine's context is a failure in one line."""
    with pytest.raises(BenchError, match=r"does not fit the engine: .* context of 256"):
        make_driver().run([Job(prompt=[5] * 250, num_output_tokens=20)])


def test_percentile() -> None:
    """A percentile is one of the values; that of 1 is the largest."""
    values = [float(n) for n in range(100)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1)) == (
        50,
        99,
        99,
    )
    assert percentile([3.0], 0.99) == 3
