"""The sampler: distributions, filters, independence of the batch, failing rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.sampling import sampler
from engine.sampling.logit_bias import BiasEntries
from engine.sampling.penalties import PenaltyEntries
from engine.sampling.sampler import LogitEdits, SamplingRows

P_MIN = 0.001


class _How:
    """Hold whether the compiled operators draw."""

    is_native = False


@pytest.fixture(autouse=True, params=["torch", "compiled"])
def how(request: pytest.FixtureRequest, native_library: bool) -> None:
    """Have each test run by both; where nothing is compiled, by torch twice."""
    _How.is_native = request.param == "compiled" and native_library


def sample(
    logits: Tensor, rows: SamplingRows, edits: LogitEdits | None = None
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    # The engine's are contiguous.
    return sampler.sample(logits.contiguous(), rows, edits, native=_How.is_native)


def make_rows(num_rows: int, **changes: Any) -> SamplingRows:
    """Make rows with the same parameters, or given ones, at position 0 with seeds 0, 1, …"""

    def column(name: str, default: Any, dtype: Any) -> Any:
        return np.broadcast_to(np.asarray(changes.get(name, default), dtype), num_rows).copy()

    return SamplingRows(
        temperature=column("temperature", 1.0, np.float32),
        top_k=column("top_k", 0, np.int64),
        top_p=column("top_p", 1.0, np.float32),
        min_p=column("min_p", 0.0, np.float32),
        seeds=column("seeds", np.arange(num_rows), np.uint64),
        positions=column("positions", 0, np.int64),
    )


def draw(logits: Tensor, **changes: Any) -> list[int]:
    token_ids, failed = sample(logits, make_rows(len(logits), **changes))
    assert not failed.any()
    return [int(t) for t in token_ids]


def chi_squared_p(counts: np.ndarray[Any, Any], probabilities: np.ndarray[Any, Any]) -> float:
    """Give the probability of counts at least this far from the expectation."""
    kept = probabilities > 0
    assert counts[~kept].sum() == 0, "a token that is excluded was drawn"
    expected = probabilities[kept] * counts.sum()
    statistic = float(((counts[kept] - expected) ** 2 / expected).sum())
    half_freedom = torch.tensor((kept.sum() - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half_freedom, torch.tensor(statistic / 2).double()))


LOGITS = torch.tensor([2.0, 1.5, 1.0, 0.7, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0])


def filtered(
    temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> np.ndarray[Any, Any]:
    """Compute the wanted distribution over LOGITS, token by token, as the definitions say."""
    p = torch.softmax(LOGITS.double() / temperature, 0).numpy()
    if top_k:
        p = np.where(np.arange(len(p)) < top_k, p, 0)
    p = p / p.sum()
    before = np.cumsum(p) - p
    p = np.where((before < top_p) | (np.arange(len(p)) == 0), p, 0)
    p = np.where(p >= min_p * p.max(), p, 0)
    return np.asarray(p / p.sum())


@pytest.mark.parametrize("along", ["seeds", "positions"])
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 3},
        {"top_p": 0.8},
        {"min_p": 0.2},
        {"temperature": 1.7, "top_k": 6, "top_p": 0.85, "min_p": 0.15},
    ],
    ids=str,
)
def test_draws_follow_the_distribution(params: dict[str, Any], along: str) -> None:
    """Over many seeds, and over many positions of one seed, draws pass a chi-squared test."""
    n = 20_000
    varied = {along: np.arange(n), ("positions" if along == "seeds" else "seeds"): 42}
    tokens = draw(LOGITS.expand(n, -1), **params, **varied)
    counts = np.bincount(tokens, minlength=len(LOGITS))
    assert chi_squared_p(counts, filtered(**params)) > P_MIN


def test_draws_of_neighbouring_positions_are_independent() -> None:
    """Pairs of draws at adjacent positions of one seed fill their table evenly."""
    n = 20_000
    tokens = np.array(draw(torch.zeros(2 * n, 4), seeds=7, positions=np.arange(2 * n)))
    pairs = tokens[0::2] * 4 + tokens[1::2]
    assert chi_squared_p(np.bincount(pairs, minlength=16), np.full(16, 1 / 16)) > P_MIN


def test_draws_of_neighbouring_seeds_are_independent() -> None:
    """Pairs of draws of adjacent seeds at one position fill their table evenly."""
    n = 20_000
    tokens = np.array(draw(torch.zeros(2 * n, 4), positions=11))
    pairs = tokens[0::2] * 4 + tokens[1::2]
    assert chi_squared_p(np.bincount(pairs, minlength=16), np.full(16, 1 / 16)) > P_MIN


def test_draws_do_not_depend_on_the_batch() -> None:
    """Any subset of rows in any order draws the same tokens, whatever the neighbours' filters."""
    generator = torch.Generator().manual_seed(0)
    n = 64
    logits = torch.randn(n, 200, generator=generator) * 3
    rng = np.random.default_rng(0)
    rows = SamplingRows(
        temperature=rng.choice([0.0, 0.3, 1.0, 1.9], n).astype(np.float32),
        top_k=rng.choice([0, 1, 20, 500], n),
        top_p=rng.choice([0.5, 0.95, 1.0], n).astype(np.float32),
        min_p=rng.choice([0.0, 0.1], n).astype(np.float32),
        seeds=rng.integers(0, 2**64, n, dtype=np.uint64),
        positions=rng.integers(0, 5000, n),
    )
    together, _ = sample(logits, rows)
    for size in (1, 3, 17, 64):
        order = rng.permutation(n)[:size]
        apart, _ = sample(logits[torch.from_numpy(order)], rows.select(order))
        assert apart.tolist() == together[order].tolist()


def test_temperature_zero_is_the_largest_logit() -> None:
    """Greedy rows take the largest logit, alone and beside sampled rows."""
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(1))
    best = logits.argmax(dim=-1).tolist()
    assert draw(logits, temperature=0.0) == best
    mixed = draw(logits, temperature=[0.0, 5.0, 0.0] * 3)
    assert [mixed[i] for i in (0, 2, 3, 5, 6, 8)] == [best[i] for i in (0, 2, 3, 5, 6, 8)]


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1e-30},
        {"temperature": 1e-6},
        {"temperature": 5.0, "top_k": 1},
        {"temperature": 5.0, "top_p": 0.0},
        {"temperature": 5.0, "top_p": 1e-9},
        {"temperature": 5.0, "min_p": 1.0},
    ],
    ids=str,
)
def test_the_likeliest_token_always_survives(params: dict[str, Any]) -> None:
    """Filters at their narrowest leave exactly the largest logit, never nothing."""
    logits = torch.randn(200, 64, generator=torch.Generator().manual_seed(2))
    assert draw(logits, **params) == logits.argmax(dim=-1).tolist()


def test_a_top_k_beyond_the_vocabulary_is_off() -> None:
    """A top-k of the vocabulary's size or more excludes nothing."""
    logits = torch.randn(100, 8, generator=torch.Generator().manual_seed(3))
    assert draw(logits, top_k=8) == draw(logits, top_k=10**9) == draw(logits)


def test_ties_at_the_threshold_stay_together() -> None:
    """Tokens with equal logits are kept or excluded as one, so no sort order shows."""
    logits = torch.tensor([0.0, 1.0, 1.0, 1.0]).expand(500, -1)
    assert set(draw(logits, top_k=1)) == {1, 2, 3}
    assert set(draw(logits, top_p=0.1)) == {1, 2, 3}


def test_noise_is_never_infinite() -> None:
    """Over millions of values the noise moves scores by a bounded amount: nothing is lost."""
    logits = torch.zeros(64, 50_000)
    logits[:, 123] = 60.0
    assert draw(logits) == [123] * 64


@pytest.mark.parametrize(
    ("seed", "token"), [(7124, 59), (20431, 30), (111560, 39), (186844, 23), (308559, 25)]
)
def test_the_least_noise_does_not_lose_the_only_token(seed: int, token: int) -> None:
    """Tokens whose hash is the largest there is, found by search, are still drawn when alone."""
    logits = torch.zeros(1, 128)
    logits[0, token] = 1.0
    assert draw(logits, seeds=seed, top_k=1) == [token]


def test_any_64_bit_seed_is_its_own() -> None:
    """Seeds draw differently if they differ in one bit, or share half of their hashed key."""
    # The last two, found by search, have the same low word after hashing.
    seeds = [0, *(1 << bit for bit in range(64)), 33832, 352574]
    logits = torch.zeros(len(seeds), 1 << 16)
    assert len(set(draw(logits, seeds=seeds))) == len(seeds)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("whole_row", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_is_reported(
    bad: float, whole_row: bool, temperature: float
) -> None:
    """A NaN or an infinity fails its row; the other rows draw what they draw without it."""
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(4))
    rows = make_rows(3, temperature=temperature, top_p=0.9, top_k=5, min_p=0.01)
    good, _ = sample(logits, rows)
    logits[1, 0 if not whole_row else slice(None)] = bad
    token_ids, failed = sample(logits, rows)
    assert failed.tolist() == [False, True, False]
    assert (token_ids[[0, 2]] == good[[0, 2]]).all()


def test_logits_are_left_as_they_are() -> None:
    """Sampling does not write into the caller's logits."""
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(6))
    before = logits.clone()
    draw(logits, temperature=0.7, top_k=3, top_p=0.8, min_p=0.1)
    assert torch.equal(logits, before)


def test_draws_follow_the_edited_distribution() -> None:
    """With a bias, a masked token and penalties, draws pass the test for the edited logits."""
    n = 20_000
    edited = LOGITS.clone()
    edited[0] = -math.inf
    edited[6] = (edited[6] + 2.0) / 1.5 - 2 * 0.4 - 0.3
    rows = np.arange(n)
    bias = BiasEntries(
        rows=np.repeat(rows, 2),
        token_ids=np.tile([0, 6], n),
        values=np.tile(np.array([-np.inf, 2.0], np.float32), n),
    )
    penalties = PenaltyEntries(
        rows=rows,
        token_ids=np.full(n, 6, np.int32),
        counts=np.full(n, 2, np.float32),
        repetition=np.full(n, 1.5, np.float32),
        frequency=np.full(n, 0.4, np.float32),
        presence=np.full(n, 0.3, np.float32),
    )
    logits = LOGITS.expand(n, -1).clone()
    tokens, failed = sample(logits, make_rows(n), LogitEdits(bias, penalties))
    assert not failed.any()
    counts = np.bincount(tokens, minlength=len(LOGITS))
    assert chi_squared_p(counts, torch.softmax(edited.double(), 0).numpy()) > P_MIN
    greedy, _ = sample(
        LOGITS.expand(n, -1).clone(), make_rows(n, temperature=0.0), LogitEdits(bias, penalties)
    )
    assert set(greedy.tolist()) == {int(edited.argmax())}
