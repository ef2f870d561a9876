"""Draw the next token of every row at once, on a CPU; `engine.kernels.draw` does so on a GPU.

**Draw.** Gumbel-max: the token with the largest logit / temperature + noise is a sample of the
softmax. The noise of a token is a hash of (seed, position, token id) alone, no generator has
state; so a draw is the same whatever the batch, the slot, the chunking or a preemption.
SplitMix64 turns (seed, position) into two 32-bit words per row; two rounds of a 32-bit
multiply-xorshift hash mix them with the token id.

**Filters.** In the order of vLLM and Hugging Face: temperature, top-k, top-p, min-p. All three
keep the tokens above some logit, so they reduce to one threshold per row; tokens that tie with
it stay, which leaves nothing to the order of a sort. The likeliest token always survives.

**Edits.** Biases, masked end tokens, penalties and the masks of constraints change the logits
first, whether the row is greedy or not; the modules that make them say how.

**Cost.** A greedy batch takes an argmax and nothing else; rows without top-k and top-p are never
sorted; where every filtered row has a top-k, only that many logits are. The compiled operator makes
noise for the few tokens that may win, and is one call, masks and all where they are the only edits:
each of torch's gives up the interpreter and has to get it back, which takes longest when the event
loop is busiest.

**Failure.** A row with a logit that is NaN or infinite, or with edits that make one so or leave
nothing to draw, is reported and harms no other row.

Sources: Gumbel-max, Maddison et al. 2014; SplitMix64, Steele et al. 2014; the 32-bit constants,
Wellons' hash-prospector (lowbias32).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.sampling.constraints import TokenMasks, hide
from engine.sampling.logit_bias import BiasEntries, add_bias
from engine.sampling.penalties import PenaltyEntries, penalise

_U64 = np.uint64


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRows:
    """Hold the sampling parameters of a batch, one entry a row, in `SamplingParams`' meaning.

    `positions`: the index in its sequence of the token to draw. `seeds`: any 64 bits.
    """

    temperature: NDArray[np.float32]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    seeds: NDArray[np.uint64]
    positions: NDArray[np.int64]

    def select(self, rows: NDArray[np.intp]) -> SamplingRows:
        """Keep some rows."""
        return SamplingRows(
            temperature=self.temperature[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            min_p=self.min_p[rows],
            seeds=self.seeds[rows],
            positions=self.positions[rows],
        )


@dataclass(frozen=True, slots=True)
class LogitEdits:
    """Say what changes a batch's logits before anything is drawn, in this order."""

    bias: BiasEntries | None
    penalties: PenaltyEntries | None
    masks: TokenMasks | None = None

    @staticmethod
    def with_masks(edits: LogitEdits | None, masks: TokenMasks) -> LogitEdits:
        """Add masks to what else changes the logits."""
        if edits is None:
            return LogitEdits(None, None, masks)
        return LogitEdits(edits.bias, edits.penalties, masks)

    @property
    def masks_alone(self) -> TokenMasks | None:
        """Return the masks where nothing else changes the logits."""
        return self.masks if self.bias is None and self.penalties is None else None

    def rows(self) -> NDArray[np.int64]:
        """Name the rows that are changed, each once."""
        all_parts = (self.bias, self.penalties, self.masks)
        parts = [part.rows for part in all_parts if part is not None]
        return np.unique(np.concatenate(parts))

    def apply(self, logits: Tensor, *, native: bool = False) -> None:
        """Change the logits in place; [num_rows, vocab_size]."""
        if self.bias is not None:
            add_bias(logits, self.bias)
        if self.penalties is not None:
            penalise(logits, self.penalties)
        if self.masks is not None:
            hide(logits, self.masks, native=native)


@torch.inference_mode()
def sample(
    logits: Tensor,
    rows: SamplingRows,
    edits: LogitEdits | None = None,
    *,
    native: bool = False,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Draw one token a row.

    Args: `logits`: float32, [num_rows, vocab_size]; left as it is but for `edits`. `native`: the
        compiled operators are loaded, and may be used.
    Returns: token ids, [num_rows]; and which rows failed, [num_rows]: their ids mean nothing.
    """
    random = np.flatnonzero(rows.temperature > 0)
    if native:
        return _sample_compiled(logits, rows, edits, is_greedy=len(random) == 0)
    # One pass: a sum is finite unless a term is not (or beyond any real logit's size).
    finite = torch.isfinite(logits.sum(dim=-1))
    if edits is not None:
        edits.apply(logits)
        edited = torch.from_numpy(edits.rows())
        # The largest is NaN where any is; a hidden token's minus infinity is none of its business.
        finite[edited] &= torch.isfinite(logits.index_select(0, edited).amax(dim=-1))
    if len(random) == 0:
        token_ids = _argmax(logits)
    elif len(random) == len(rows.temperature):
        token_ids = _draw(logits, rows)
    else:
        token_ids = _argmax(logits)
        index = torch.from_numpy(random)
        token_ids[index] = _draw(logits.index_select(0, index), rows.select(random))
    return token_ids.numpy(), ~finite.numpy()


def _sample_compiled(
    logits: Tensor, rows: SamplingRows, edits: LogitEdits | None, *, is_greedy: bool
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Do what `sample` does by the compiled operators."""
    if edits is None and is_greedy:
        token_ids, good = torch.ops.sluice.find_largest(logits)
        return token_ids.numpy(), ~good.numpy()
    low, high = _row_keys(rows.seeds, rows.positions)
    columns = [
        torch.from_numpy(column)
        for column in (rows.temperature, low, high, rows.top_k, rows.top_p, rows.min_p)
    ]
    if edits is not None and edits.masks_alone is not None:
        masks = edits.masks_alone
        token_ids, good = torch.ops.sluice.draw_masked(
            logits, *columns, torch.from_numpy(masks.rows), torch.from_numpy(masks.words)
        )
        return token_ids.numpy(), ~good.numpy()
    finite = None if edits is None else torch.isfinite(logits.sum(dim=-1))
    if edits is not None:
        edits.apply(logits, native=True)
    token_ids, good = torch.ops.sluice.draw(logits, *columns, edits is not None)
    failed = ~good.numpy()
    return token_ids.numpy(), failed if finite is None else failed | ~finite.numpy()


def _draw(logits: Tensor, rows: SamplingRows) -> Tensor:
    """Draw for rows of a temperature above 0; [num_rows]."""
    tempered = _temper(logits, rows.temperature)
    _truncate(tempered, rows)
    return _argmax(tempered.add_(_gumbel_noise(rows, logits.shape[-1])))


def _argmax(values: Tensor) -> Tensor:
    """Find the first of each row's largest values; [num_rows]."""
    # NumPy's is vectorised, and ten times faster than torch's.
    return torch.from_numpy(values.numpy().argmax(axis=-1))


def _temper(logits: Tensor, temperature: NDArray[np.float32]) -> Tensor:
    # Relative to the largest, so that a tiny temperature cannot overflow.
    relative = logits - logits.amax(dim=-1, keepdim=True)
    return relative.div_(torch.from_numpy(temperature)[:, None])


def _truncate(tempered: Tensor, rows: SamplingRows) -> None:
    """Set to -inf what top-k, top-p and min-p exclude; the largest entry of a row is 0."""
    vocab_size = tempered.shape[-1]
    by_rank = np.flatnonzero(((rows.top_k > 0) & (rows.top_k < vocab_size)) | (rows.top_p < 1))
    by_share = rows.min_p > 0
    if len(by_rank) == 0 and not by_share.any():
        return
    # p >= min_p * p_max, in logarithms; a min_p of 1 keeps exactly the largest, at 0.
    with np.errstate(divide="ignore"):
        threshold = torch.from_numpy(np.log(rows.min_p))
    if len(by_rank):
        index = torch.from_numpy(by_rank)
        part = tempered if len(by_rank) == len(tempered) else tempered.index_select(0, index)
        found = _rank_threshold(part, rows.top_k[by_rank], rows.top_p[by_rank])
        threshold[index] = torch.maximum(threshold[index], found)
    tempered.masked_fill_(tempered < threshold[:, None], float("-inf"))


def _rank_threshold(
    tempered: Tensor, top_k: NDArray[np.int64], top_p: NDArray[np.float32]
) -> Tensor:  # [num_rows]
    """Find the smallest logit of each row that top-k, then top-p keep."""
    vocab_size = tempered.shape[-1]
    kept = np.where(top_k > 0, np.minimum(top_k, vocab_size), vocab_size)
    ordered = _largest(tempered, int(kept.max()))
    last = torch.from_numpy(kept)[:, None] - 1
    if (top_p < 1).any():
        ranks = torch.arange(ordered.shape[-1])
        # Tokens that tie with the k-th survive top-k, so they count towards the mass too; they
        # are beyond `ordered` only where a tie crosses its end, and then weigh nothing here.
        beyond = (ranks > last) & (ordered < ordered.gather(1, last))
        probabilities = torch.softmax(ordered.masked_fill(beyond, float("-inf")), dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities
        nucleus = (before < torch.from_numpy(top_p)[:, None]).sum(dim=-1, keepdim=True) - 1
        unlimited = torch.from_numpy(top_p >= 1)[:, None]
        last = torch.where(unlimited, last, torch.minimum(last, nucleus.clamp_(min=0)))
    return ordered.gather(1, last).squeeze(1)


def _largest(values: Tensor, k: int) -> Tensor:
    """Order the k largest values of each row, descending; [num_rows, k]."""
    # torch sorts indices along; NumPy's vectorised sort of bare values is 20 times faster.
    ascending = np.sort(values.numpy(), axis=-1)[:, values.shape[-1] - k :]
    return torch.from_numpy(ascending[:, ::-1].copy())


def _gumbel_noise(rows: SamplingRows, vocab_size: int) -> Tensor:
    """Make noise from (seed, position, token id) alone; [num_rows, vocab_size]."""
    low, high = _row_keys(rows.seeds, rows.positions)
    bits = torch.arange(vocab_size, dtype=torch.int32)
    bits = bits ^ torch.from_numpy(low)[:, None]
    _mix(bits)
    bits += torch.from_numpy(high)[:, None]
    _mix(bits)
    bits &= 0x7FFFFFFF
    # Small values keep all 31 bits, and they make the largest noise: the draw of an unlikely
    # token is as exact as that of a likely one. Rounding may reach 1, where the logarithm ends.
    uniform = bits.float().add_(0.5).mul_(2.0**-31).clamp_(max=1 - 2.0**-24)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def _row_keys(
    seeds: NDArray[np.uint64], positions: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    key = _split_mix(_split_mix(seeds) + positions.astype(np.uint64))
    words = key.view(np.int32).reshape(-1, 2)
    return np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])


def _split_mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + _U64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U64(27))) * _U64(0x94D049BB133111EB)
    return x ^ (x >> _U64(31))


def _mix(bits: Tensor) -> None:
    """Hash int32 values in place; multiplication wraps."""
    bits ^= (bits >> 16) & 0xFFFF
    bits *= 0x7FEB352D
    bits ^= (bits >> 15) & 0x1FFFF
    bits *= _signed(0x846CA68B)
    bits ^= (bits >> 16) & 0xFFFF


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
