"""Predicts how long outputs will be from how long those of similar requests were.

A cell keeps the last outputs of its kind, sorted, so that a quantile is one look and one that
exceeds what was generated is a bisection. Cells go from the particular to the general: tenant and
size of the prompt, tenant, size of the prompt, everybody; the first one that has seen enough
answers. Prompt sizes are told apart by powers of two. It knows no models and no texts.

Where nothing is known, lengths count as spread evenly up to a part of what may be generated.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, defaultdict
from math import ceil
from typing import Protocol


class Lengths(Protocol):
    """Predict output lengths; the model below learns, a simulator may know."""

    def observe(self, tenant_id: str, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Learn from a request that came to its end; one that was cut short says nothing."""
        ...

    def quantile(
        self,
        tenant_id: str,
        num_prompt_tokens: int,
        q: float,
        *,
        generated: int = 0,
        max_tokens: int,
    ) -> float:
        """Return the length that an output stays within with probability `q`, in tokens.

        Of those outputs that go beyond `generated`; it is the whole length, never above
        `max_tokens`.
        """
        ...


class LengthModel:
    """Learn output lengths per tenant and prompt size; see the module.

    A cell remembers `window` outputs and answers from `min_samples` on, of which at least
    `min_tail` must be longer than what was generated. Of tenants, the `max_tenants` that finished
    something last are remembered: 2 KB a cell, and few have more than five. Where nothing is
    known, the quantile q is q × `prior_share` of the way from what is generated to `max_tokens`.
    """

    def __init__(
        self,
        *,
        window: int = 200,
        min_samples: int = 20,
        min_tail: int = 5,
        max_tenants: int = 2048,
        prior_share: float = 0.5,
        max_prior: int = 4096,
    ) -> None:
        self._window = window
        self._min_samples = min_samples
        self._min_tail = min_tail
        self._max_tenants = max_tenants
        self._prior_share = prior_share
        self._max_prior = max_prior
        # The least lately heard of first; None is the cell of the whole tenant.
        self._tenants: OrderedDict[str, _Cells] = OrderedDict()
        self._everybody = _Cells(_Cell)

    def observe(self, tenant_id: str, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Learn from a request that came to its end; one that was cut short says nothing."""
        cells = self._tenants.get(tenant_id)
        if cells is None:
            cells = self._tenants[tenant_id] = _Cells(_Cell)
            if len(self._tenants) > self._max_tenants:
                self._tenants.popitem(last=False)
        else:
            self._tenants.move_to_end(tenant_id)
        bucket = num_prompt_tokens.bit_length()
        for cell in (cells[bucket], cells[None], self._everybody[bucket], self._everybody[None]):
            cell.add(num_output_tokens, self._window)

    def quantile(
        self,
        tenant_id: str,
        num_prompt_tokens: int,
        q: float,
        *,
        generated: int = 0,
        max_tokens: int,
    ) -> float:
        """Return the length that an output stays within with probability `q`, in tokens.

        Of those outputs that go beyond `generated`; it is the whole length, never above
        `max_tokens`.
        """
        bucket = num_prompt_tokens.bit_length()
        for cells in (self._tenants.get(tenant_id), self._everybody):
            if cells is None:
                continue
            for key in (bucket, None):
                cell = cells.get(key)
                if cell is None or len(cell.lengths) < self._min_samples:
                    continue
                lengths = cell.lengths
                start = bisect_right(lengths, generated) if generated else 0
                num_longer = len(lengths) - start
                if num_longer >= self._min_tail:
                    # The rank that the next of n + 1 stays within with probability q.
                    rank = min(max(ceil(q * (num_longer + 1)), 1), num_longer)
                    return float(min(lengths[start + rank - 1], max_tokens))
        left = max(min(max_tokens - generated, self._max_prior), 0)
        return min(generated + max(q * self._prior_share * left, 1.0), float(max_tokens))


class _Cell:
    """Keep the last lengths: in the order they came, from `_oldest` round, and sorted."""

    __slots__ = ("_arrived", "_oldest", "lengths")

    def __init__(self) -> None:
        self.lengths: array[int] = array("i")
        self._arrived: array[int] = array("i")
        self._oldest = 0

    def add(self, length: int, window: int) -> None:
        if len(self._arrived) < window:
            self._arrived.append(length)
        else:
            oldest = self._arrived[self._oldest]
            del self.lengths[bisect_left(self.lengths, oldest)]
            self._arrived[self._oldest] = length
            self._oldest = (self._oldest + 1) % window
        insort(self.lengths, length)


_Cells = defaultdict[int | None, _Cell]
