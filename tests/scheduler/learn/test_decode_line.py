"""What a step and a row cost, from steps of few rows and of many."""

from __future__ import annotations

import random

import pytest

from scheduler.learn.decode_line import DecodeLine

FIXED_S, ROW_S, CONTEXT_S = 2e-3, 50e-6, 0.25e-6


def took_s(num_rows: int, num_contexts: int) -> float:
    return FIXED_S + ROW_S * num_rows + CONTEXT_S * num_contexts


def seen(*sizes: int, each: int = 40, noise: float = 0.0) -> DecodeLine:
    line, draw = DecodeLine(), random.Random(0)
    for _ in range(each):
        for num_rows in sizes:
            slower = draw.uniform(1 - noise, 1 + noise)
            observe(line, num_rows, slower * took_s(num_rows, 64 * num_rows))
    return line


def observe(line: DecodeLine, num_rows: int, took: float, *, contexts: int = 64) -> None:
    """Let the line see a step after some of the same size, with prompts."""
    for _ in range(4):
        line.observe(num_rows, 0, 1.0, decodes=False)
    line.observe(num_rows, contexts * num_rows, took, decodes=True)


def test_steps_that_are_alike_tell_nothing() -> None:
    """One size, or two that are close, say neither what a step costs nor what a row does."""
    assert DecodeLine().costs(ROW_S, 0.0) is None
    assert seen(140).costs(ROW_S, 0.0) is None
    assert seen(120, 140).costs(ROW_S, 0.0) is None


def test_two_sizes_tell_them_apart() -> None:
    """Of rows and contexts the proportion is the caller's, and the whole is what was seen."""
    costs = seen(35, 140).costs(2 * ROW_S, 2 * CONTEXT_S)
    assert costs == pytest.approx((FIXED_S, ROW_S, CONTEXT_S))


def test_each_size_counts_the_same() -> None:
    """A thousand noisy steps of a size move the line no more than forty do."""
    line = seen(35, 140)
    for _ in range(1_000):
        observe(line, 140, 1.1 * took_s(140, 64 * 140))
    fixed_s, row_s, _ = line.costs(ROW_S, CONTEXT_S) or pytest.fail("it was told")
    assert fixed_s == pytest.approx(FIXED_S, rel=0.25)
    assert row_s == pytest.approx(1.1 * ROW_S, rel=0.1)


def test_noise_and_hiccups_are_borne() -> None:
    """Steps that are a fifth off, and one in twenty that takes a second, leave it about right."""
    line = seen(4, 35, 140, each=100, noise=0.2)
    for _ in range(5):
        observe(line, 35, 1.0)
        for _ in range(19):
            observe(line, 35, took_s(35, 64 * 35))
    fixed_s, row_s, _ = line.costs(ROW_S, CONTEXT_S) or pytest.fail("it was told")
    assert fixed_s == pytest.approx(FIXED_S, rel=0.3)
    assert row_s == pytest.approx(ROW_S, rel=0.3)


def test_what_steps_before_drew_is_not_charged_to_a_size() -> None:
    """What the three before drew is handed out meanwhile: only steps after their like count."""
    line, before = DecodeLine(), [140] * 3
    for number in range(400):
        num_rows = 140 if number % 10 < 5 else 35
        took = took_s(num_rows, 64 * num_rows) + 40e-6 * max(before)
        line.observe(num_rows, 64 * num_rows, took, decodes=True)
        before = [*before[1:], num_rows]
    costs = line.costs(ROW_S, CONTEXT_S) or pytest.fail("it was told")
    # A row's part of it is in what a row and its contexts cost.
    assert costs[0] == pytest.approx(FIXED_S)
    assert costs[1] + 64 * costs[2] == pytest.approx(ROW_S + 64 * CONTEXT_S + 40e-6)


def test_steps_with_prompts_say_nothing_of_rows() -> None:
    """They only say how many rows the next step had before it."""
    line = DecodeLine()
    for _ in range(40):
        for num_rows in (35, 140):
            for _ in range(5):
                line.observe(num_rows, 64 * num_rows, 1.0, decodes=False)
    assert line.costs(ROW_S, CONTEXT_S) is None


def test_what_was_long_ago_is_forgotten() -> None:
    """Small steps of a quiet hour ago say nothing of a machine that is busy now."""
    line = seen(1, 140)
    for _ in range(1_700):
        observe(line, 140, took_s(140, 64 * 140))
    assert line.costs(ROW_S, CONTEXT_S) is None
    observe(line, 1, 0.01)
    assert line._sizes[1].took_s == 0.01


def test_nothing_is_negative() -> None:
    """Steps that get shorter with more rows cost the same each, and a row nothing."""
    line = DecodeLine()
    observe(line, 10, 0.02, contexts=0)
    observe(line, 100, 0.01, contexts=0)
    fixed_s, row_s, context_s = line.costs(ROW_S, -1.0) or pytest.fail("it was told")
    assert row_s == context_s == 0.0
    assert fixed_s > 0.0
    # Nor is a step without rows: they cost in proportion at the most.
    line = DecodeLine()
    observe(line, 10, 0.001, contexts=0)
    observe(line, 100, 0.1, contexts=0)
    assert (line.costs(ROW_S, 0.0) or (-1.0,))[0] >= 0.0


def test_a_row_is_worth_some_context_at_least() -> None:
    """Where a row is thought to cost nothing, 128 tokens of context are as much."""
    _, row_s, context_s = seen(35, 140).costs(-1e-5, 1e-7) or pytest.fail("it was told")
    assert context_s == pytest.approx(row_s / 128)


def test_what_was_found_is_found_anew_with_what_it_hangs_on() -> None:
    """The same question after another step, and another question after the same one."""
    line = seen(8, 140)
    first = line.costs(ROW_S, CONTEXT_S)
    assert line.costs(ROW_S, CONTEXT_S) == first
    observe(line, 140, 2 * took_s(140, 64 * 140))
    later = line.costs(ROW_S, CONTEXT_S)
    assert later != first
    assert line.costs(ROW_S, 0.0) != later
