"""Random histories of the counters in a real Valkey against a model; and what breaks them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from redis import Redis

from gateway.store.quota_counters import SCRIPT
from tests.gateway.store.quota_machine import QuotaMachine
from tests.histories import kept_if_it_fails, num_histories, seeds

# Enough to find each of the mutants.
_EXAMPLES = num_histories(60)
_KEPT = Path(__file__).with_name("failing_seeds.txt")

MUTANTS = {
    "tombstone": ("  call('SET', P .. 'r:' .. id, TOMBSTONE, 'PX', TOMBSTONE_MS)\n", ""),
    "reaper": ("  for i = 1, #expired do", "  for i = 1, 0 do"),
    "correction": (
        "    for i = 1, #used do more[i] = used[i] - charged[2][i] end",
        "    for i = 1, #used do more[i] = used[i] end",
    ),
    "held": ("local left = limit - used - held", "local left = limit - used"),
    "release": ("max(values[held] - was, 0)", "values[held]"),
    "rate": ("values[at] = values[at] - was + is", "values[at] = values[at] - was"),
    "soft": ("each > 0 and (entry.kind == RATE or entry.is_hard)", "each > 0"),
}


def _run(
    redis_url: str, script: str, examples: int, phases: Sequence[Phase], drawn: int | None = None
) -> None:
    with Redis.from_url(redis_url) as redis:
        machine = type("Machine", (QuotaMachine,), {"redis": redis, "script": script})
        if drawn is not None:
            machine = seed(drawn)(machine)
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=40,
                deadline=None,
                phases=phases,
                derandomize=drawn is None and examples <= 200,
                suppress_health_check=list(HealthCheck),
            ),
        )


@pytest.mark.histories
@pytest.mark.parametrize("drawn", seeds(_KEPT))
def test_every_history_agrees_with_the_model(redis_url: str, drawn: int | None) -> None:
    """Held, used and refused are what a dictionary would say, whatever comes in between."""
    with kept_if_it_fails(drawn, _KEPT):
        _run(redis_url, SCRIPT, _EXAMPLES, list(Phase), drawn)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_script_without_one_of_its_guards_is_found_out(redis_url: str, name: str) -> None:
    """Each guard of the script is needed: a history exists that goes wrong without it."""
    before, after = MUTANTS[name]
    assert SCRIPT.count(before) >= 1
    with pytest.raises(Exception) as failure:  # noqa: PT011  whatever the first wrong answer causes
        # Any history will do: none is made short.
        _run(redis_url, SCRIPT.replace(before, after), 200, [Phase.generate])
    assert _is_wrong_answer(failure.value)


def _is_wrong_answer(error: Any) -> bool:
    """Tell a model that disagrees from a test that is broken."""
    if isinstance(error, BaseExceptionGroup):
        return any(_is_wrong_answer(each) for each in error.exceptions)
    return isinstance(error, AssertionError)
