"""Who runs in which batch, seen from the plans, in virtual time: a step takes a second."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from batch_run import VirtualRun
from fakes import make_engine, make_request
from scheduler.batching.batch_scheduler import BatchScheduler
from scheduler.batching.dynamic import Dynamic
from scheduler.batching.former import Former
from scheduler.batching.sorted_window import SortedWindow
from scheduler.batching.static import Static

ROOMY = {"max_num_seqs": 16, "num_blocks": 256, "max_num_batched_tokens": 256}


def run_former(
    former: Former,
    arrivals: Sequence[tuple[float, int, int]],
    *,
    pads: bool = False,
    **sizes: int,
) -> list[list[str]]:
    """Offer (arrival, prompt, output) and return who ran together, batch after batch."""
    engine = make_engine(**{**ROOMY, **sizes})
    run = VirtualRun(BatchScheduler(engine.info, former, pads=pads), engine)
    for number, (arrival_s, num_prompt_tokens, num_output_tokens) in enumerate(arrivals):
        run.offer_at(
            make_request(
                str(number),
                prompt=[1] * num_prompt_tokens,
                max_tokens=num_output_tokens,
                arrival_s=arrival_s,
            )
        )
    run.finish()
    return run.batches


def test_static_waits_until_a_batch_is_full() -> None:
    """Requests run in arrival order, so many at a time; the last ones go after the timeout."""
    arrivals = [(float(n), 3, 2) for n in range(5)]
    former = Static(batch_size=2, timeout_s=30)
    assert run_former(former, arrivals) == [["0", "1"], ["2", "3"], ["4"]]


def test_static_goes_at_the_timeout() -> None:
    """The oldest waits for the timeout and no longer, though the batch is not full."""
    arrivals = [(0.0, 3, 2), (9.0, 3, 2), (11.0, 3, 2), (12.0, 3, 2)]
    former = Static(batch_size=4, timeout_s=10)
    assert run_former(former, arrivals) == [["0", "1"], ["2", "3"]]


def test_nothing_joins_a_batch() -> None:
    """A short row's place stays empty until the longest row has ended."""
    arrivals = [(0.0, 3, 2), (0.0, 3, 30), (1.0, 3, 2), (1.0, 3, 2)]
    assert run_former(Static(batch_size=2, timeout_s=1), arrivals) == [["0", "1"], ["2", "3"]]


@pytest.mark.parametrize(("pads", "together"), [(False, 3), (True, 2)])
def test_batch_holds_what_all_its_rows_may_come_to(pads: bool, together: int) -> None:
    """A batch ends where the next row's blocks, padded if need be, would not be there."""
    # Three rows of 4, 4 and 2 blocks; padded, of 4 and at most one more each.
    arrivals = [(0.0, 8, 8), (0.0, 8, 8), (0.0, 4, 4)]
    batches = run_former(Static(batch_size=3, timeout_s=1), arrivals, pads=pads, num_blocks=10)
    assert len(batches[0]) == together


def test_padded_rows_stay_within_the_context() -> None:
    """The longest prompt and the longest output of a padded batch fit the model together."""
    arrivals = [(0.0, 60, 4), (0.0, 4, 60)]
    former = Static(batch_size=2, timeout_s=1)
    assert run_former(former, arrivals, pads=True) == [["0"], ["1"]]
    assert run_former(former, arrivals, pads=False) == [["0", "1"]]


def test_dynamic_batches_are_of_one_bucket() -> None:
    """Short and long prompts run apart; the bucket with the oldest request goes first."""
    arrivals = [(0.0, n, 2) for n in (4, 20, 5, 21, 8, 22)]
    former = Dynamic(batch_size=3, timeout_s=60, max_batch_tokens=999, bucket_tokens=(8, 32))
    assert run_former(former, arrivals) == [["0", "2", "4"], ["1", "3", "5"]]


def test_dynamic_full_bucket_passes_an_older_one() -> None:
    """A bucket that is full goes though another has an older request, which has its timeout."""
    arrivals = [(0.0, 20, 2), (1.0, 4, 2), (2.0, 4, 2)]
    former = Dynamic(batch_size=2, timeout_s=60, max_batch_tokens=999, bucket_tokens=(8, 32))
    assert run_former(former, arrivals) == [["1", "2"], ["0"]]


def test_dynamic_batch_has_a_token_cap() -> None:
    """Prompts count as the longest among them; one beyond the cap runs alone."""
    arrivals = [(0.0, n, 2) for n in (10, 5, 5, 25, 5)]
    former = Dynamic(batch_size=8, timeout_s=1, max_batch_tokens=20, bucket_tokens=())
    assert run_former(former, arrivals) == [["0", "1"], ["2"], ["3"], ["4"]]


def test_sorted_window_makes_even_batches() -> None:
    """A window is cut by output length, the shortest first, before the next one is looked at."""
    outputs = (9, 2, 8, 1, 3, 7)
    arrivals = [(0.0, 3, output) for output in outputs]
    former = SortedWindow(
        batch_size=2, window_size=4, timeout_s=60, length_of=lambda r: r.params.max_tokens
    )
    assert run_former(former, arrivals) == [["3", "1"], ["2", "0"], ["4", "5"]]


def test_sorted_window_forgets_whom_it_lost() -> None:
    """A request cancelled while its window runs is left out, and the rest of it goes on."""
    engine = make_engine(**ROOMY)
    former = SortedWindow(
        batch_size=1, window_size=3, timeout_s=60, length_of=lambda r: r.params.max_tokens
    )
    run = VirtualRun(BatchScheduler(engine.info, former), engine)
    for number in (1, 2, 3):
        run.offer_at(make_request(str(number), max_tokens=number))
    run.turn()
    run.cancel("2")
    run.finish()
    assert run.batches == [["1"], ["3"]]
