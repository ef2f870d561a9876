"""Drawing on the device: the kernels and their twin against the sampler of the CPU engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.kernels.draw import draw
from engine.kernels.operations import DrawColumns
from engine.kernels.twins import draw as twin
from engine.sampling import sampler
from engine.sampling.sampler import SamplingRows, sample

Draw = Callable[[Tensor, DrawColumns, Tensor, Tensor, Tensor], Tensor]
NUM_POSITIONS = 5000
# Small parts, so that small vocabularies have several, and from 10 rows on several a program.
DRAWS = [
    pytest.param(partial(draw, part=128, group=8, likely=16, held=64, many_rows=10), id="kernel"),
    pytest.param(twin.draw, id="twin"),
]


class Batch:
    """Rows of random logits that draw in every way, in slots of no order."""

    def __init__(
        self, vocab_size: int, num_rows: int, device: torch.device, *, has_ties: bool
    ) -> None:
        generator = np.random.default_rng(vocab_size + has_ties)
        self.rows = SamplingRows(
            temperature=generator.choice([0, 0.3, 1, 2], num_rows).astype(np.float32),
            top_k=generator.choice([0, 0, 1, 5, 50], num_rows),
            top_p=generator.choice([1, 0.9, 0.5, 0.01], num_rows).astype(np.float32),
            min_p=generator.choice([0, 0, 0.05, 1], num_rows).astype(np.float32),
            seeds=generator.integers(0, 2**64, num_rows, dtype=np.uint64),
            positions=generator.integers(0, NUM_POSITIONS, num_rows),
        )
        logits = generator.normal(0, 3, (num_rows, vocab_size)).astype(np.float32)
        self.logits = torch.from_numpy(logits.round() if has_ties else logits).to(device)
        slots = generator.permutation(num_rows)
        self.slots = torch.from_numpy(slots.astype(np.int32)).to(device)
        self.positions = torch.from_numpy(self.rows.positions.astype(np.int32)).to(device)

        def column(values: NDArray[np.generic]) -> Tensor:
            by_slot = np.zeros(num_rows + 1, values.dtype)
            by_slot[slots] = values
            return torch.from_numpy(by_slot).to(device)

        self.columns = DrawColumns(
            temperature=column(self.rows.temperature),
            top_k=column(self.rows.top_k.astype(np.int32)),
            top_p=column(self.rows.top_p),
            min_p=column(self.rows.min_p),
            seeds=column(self.rows.seeds.view(np.int64)),
        )

    def ask(self, **columns: NDArray[np.float32] | float) -> None:
        """Let the rows draw otherwise; by field of `DrawColumns`."""
        for name, values in columns.items():
            getattr(self.rows, name)[:] = values
            column = torch.from_numpy(getattr(self.rows, name))
            wanted = getattr(self.columns, name)
            wanted[self.slots.long()] = column.to(wanted.device, wanted.dtype)

    def noise(self) -> Tensor:
        """Make the noise of every token, as the sampler does."""
        return sampler._gumbel_noise(self.rows, self.logits.shape[1]).to(self.logits.device)

    def draw(self, how: Draw, rows: slice = slice(None)) -> list[int]:
        """Draw, and see that each token is stored in its place and nothing else is."""
        sizes = (len(self.slots) + 1, NUM_POSITIONS)
        stored = torch.full(sizes, -7, dtype=torch.int32, device=self.logits.device)
        slots, positions = self.slots[rows], self.positions[rows]
        drawn = how(self.logits[rows], self.columns, slots, positions, stored)
        assert torch.equal(stored[slots, positions], drawn.clamp(min=0))
        assert int((stored != -7).sum()) == len(slots)
        return drawn.tolist()

    def sample(self) -> list[int]:
        """Draw with the CPU engine's sampler; -1 where a row fails."""
        token_ids, failed = sample(self.logits.float().cpu().clone(), self.rows)
        return [int(token) for token in np.where(failed, -1, token_ids)]


@pytest.mark.parametrize("how", DRAWS)
@pytest.mark.parametrize(
    ("vocab_size", "has_ties"), [(1, False), (100, True), (700, False), (700, True)]
)
def test_tokens_are_the_samplers(
    how: Draw, vocab_size: int, has_ties: bool, device: torch.device
) -> None:
    """Greedy, plain and filtered rows of one batch draw what the CPU engine's sampler draws."""
    batch = Batch(vocab_size, 16, device, has_ties=has_ties)
    before = batch.logits.clone()
    assert batch.draw(how) == batch.sample()
    assert torch.equal(batch.logits, before)


def test_twin_draws_the_samplers_tokens_in_large_batches(device: torch.device) -> None:
    """Thousands of rows agree, over a vocabulary that real filters cut."""
    batch = Batch(500, 4000, device, has_ties=False)
    assert batch.draw(twin.draw) == batch.sample()


@pytest.mark.parametrize("how", DRAWS)
def test_rows_that_cannot_draw_fail_alone(how: Draw, device: torch.device) -> None:
    """NaN, infinity and rows where nothing is left draw -1; hidden tokens are no fault."""
    batch = Batch(300, 12, device, has_ties=False)
    wanted = batch.sample()
    for row, poison in ((0, torch.nan), (1, torch.inf), (4, torch.nan), (5, torch.inf)):
        batch.logits[row, 299] = poison
    for row in (2, 6):
        batch.logits[row] = -torch.inf
    batch.rows.temperature[:2] = 0
    batch.columns.temperature[batch.slots[:2].long()] = 0
    for row in (0, 1, 2, 4, 5, 6):
        wanted[row] = -1
    # Hiding what is not drawn changes nothing, where no filter counts what is hidden.
    batch.columns.top_p[batch.slots[8].long()] = 1
    batch.rows.top_p[8] = 1
    wanted[8] = batch.sample()[8]
    batch.logits[8, batch.logits[8] < batch.logits[8, wanted[8]]] = -torch.inf
    assert batch.draw(how) == wanted


@pytest.mark.parametrize("how", DRAWS)
def test_the_first_of_the_largest_wins(how: Draw, device: torch.device) -> None:
    """Greedy rows take the first of equal logits, within a group, a part and over several."""
    batch = Batch(700, 4, device, has_ties=False)
    batch.columns.temperature.zero_()
    for row, ties in enumerate(([10, 13, 600], [255, 256], [511, 699], [699])):
        batch.logits[row, ties] = 20.0
    assert batch.draw(how) == [10, 255, 511, 699]


@pytest.mark.parametrize("how", DRAWS)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_noise_decides_where_logits_do_not(how: Draw, device: torch.device) -> None:
    """Equal logits, and logits that a temperature makes equal, draw by noise; a tiny one by logit.

    Nearly every token could win then, or all that tie do.
    """
    batch = Batch(700, 10, device, has_ties=True)
    batch.ask(top_k=0, top_p=1, min_p=0)
    batch.logits[:4] = 3.25
    temperatures = np.array([1e-30, 1e-3, 1, 1e4, 1e4, 1e9, 1e-3, 1e-6, 1e-30, 60], np.float32)
    batch.ask(temperature=temperatures)
    assert batch.draw(how) == batch.sample()


@pytest.mark.parametrize("how", DRAWS)
@pytest.mark.parametrize("others", [[9, 40], [200, 300], [300, 699]])
def test_what_is_nearly_equal_is_told_apart(
    how: Draw, others: list[int], device: torch.device
) -> None:
    """Two tokens of one part or of two, nearer to each other than bounds can tell."""
    first, second = others
    batch = Batch(700, 8, device, has_ties=False)
    batch.ask(temperature=1, top_k=0, top_p=1, min_p=0)
    noise = batch.noise()
    batch.logits.fill_(-40)
    wanted = []
    for row in range(8):
        # They alternate, and shrink to little more than a float can tell.
        difference = (-1) ** row * 1e-4 / 2 ** (row // 2)
        batch.logits[row, first] = 0
        batch.logits[row, second] = noise[row, first] - noise[row, second] + difference
        wanted.append(second if difference > 0 else first)
    assert batch.draw(how) == wanted


@pytest.mark.parametrize("how", DRAWS)
def test_a_loose_bound_wins_nothing(how: Draw, device: torch.device) -> None:
    """A token whose little noise is bounded badly loses to one of its part that has more."""
    batch = Batch(250, 6, device, has_ties=False)
    batch.ask(temperature=1, top_k=0, top_p=1, min_p=0)
    noise = batch.noise()
    batch.logits.fill_(-40)
    wanted = []
    for row in range(6):
        ids = noise[row].argsort()
        loose, tight = int(ids[row]), int(ids[240])
        batch.logits[row, loose] = 0
        # Its value is above the other's by a tenth of how far that is below its bound, or below.
        lead = 0.1 if row % 2 else -0.1
        batch.logits[row, tight] = noise[row, loose] - noise[row, tight] + lead
        wanted.append(tight if lead > 0 else loose)
    assert batch.draw(how) == wanted


@pytest.mark.parametrize("how", DRAWS)
def test_a_row_draws_the_same_in_any_batch(how: Draw, device: torch.device) -> None:
    """A token depends on its row alone, not on what else is drawn, nor on how rows are parted."""
    batch = Batch(700, 6, device, has_ties=False)
    together = batch.draw(how)
    for row in (1, 4):
        one = slice(row, row + 1)
        assert batch.draw(how, one) == together[one]
    assert batch.draw(partial(draw, part=256, group=4, likely=32, held=32)) == together


@pytest.mark.parametrize("how", DRAWS)
def test_half_precision_logits_are_read_as_they_are(how: Draw, device: torch.device) -> None:
    """From bfloat16 logits the token is that of the same numbers in float32."""
    batch = Batch(300, 10, device, has_ties=False)
    batch.logits = batch.logits.bfloat16()
    assert batch.draw(how) == batch.sample()


@pytest.mark.parametrize("how", DRAWS)
def test_logits_may_be_part_of_a_wider_tensor(how: Draw, device: torch.device) -> None:
    """Rows that lie apart, as where a vocabulary is padded, are read where they are."""
    batch = Batch(300, 6, device, has_ties=False)
    wanted = batch.sample()
    wide = torch.full((6, 320), torch.nan, device=device)
    wide[:, :300] = batch.logits
    batch.logits = wide[:, :300]
    assert batch.draw(how) == wanted


def test_no_rows_are_no_work(device: torch.device) -> None:
    """An empty batch draws nothing."""
    batch = Batch(20, 0, device, has_ties=False)
    assert batch.draw(draw) == []


@pytest.mark.gpu
def test_real_vocabularies_are_drawn_from(device: torch.device) -> None:
    """Compiled, and with parts of their real size, the kernels draw the twin's tokens."""
    if device.type != "cuda":
        pytest.skip("too much for the interpreter")
    batch = Batch(151_936, 256, device, has_ties=False)
    differing = sum(a != b for a, b in zip(batch.draw(draw), batch.draw(twin.draw), strict=True))
    # A float's rounding may decide between two tokens, or where the mass of top-p ends.
    assert differing <= 1
