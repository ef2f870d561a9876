"""The log-probabilities of many tokens, in columns.

An answer may hold a million of them. As objects, one for each token, they would be looked at by
the collector again and again and freed one by one in the end, in calls that nothing interrupts; as
columns they are a few objects, whatever their number.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import overload

from engine.contract import TokenLogprobs


class ScoredTokens(Sequence[TokenLogprobs]):
    """Hold the log-probabilities of tokens as they come; what is read of it is made anew."""

    __slots__ = ("_ends", "_logprobs", "_ranks", "_token_ids", "_top_ids", "_top_logprobs")

    def __init__(self) -> None:
        self._token_ids, self._ranks = array("i"), array("i")
        self._logprobs = array("d")
        # The likeliest tokens of all, one after the other, and where each one's end.
        self._top_ids, self._top_logprobs = array("i"), array("f")
        self._ends = array("q", [0])

    def extend(self, scored: Iterable[TokenLogprobs]) -> None:
        """Add those of the tokens that follow."""
        for entry in scored:
            self._token_ids.append(entry.token_id)
            self._logprobs.append(entry.logprob)
            self._ranks.append(entry.rank)
            self._top_ids += entry.top_ids
            self._top_logprobs += entry.top_logprobs
            self._ends.append(len(self._top_ids))

    def __len__(self) -> int:
        return len(self._token_ids)

    def __iter__(self) -> Iterator[TokenLogprobs]:
        return map(self._at, range(len(self)))

    @overload
    def __getitem__(self, index: int) -> TokenLogprobs: ...
    @overload
    def __getitem__(self, index: slice) -> list[TokenLogprobs]: ...
    def __getitem__(self, index: int | slice) -> TokenLogprobs | list[TokenLogprobs]:
        rows = range(len(self))[index]
        return self._at(rows) if isinstance(rows, int) else list(map(self._at, rows))

    def _at(self, row: int) -> TokenLogprobs:
        top = slice(self._ends[row], self._ends[row + 1])
        return TokenLogprobs(
            self._token_ids[row],
            self._logprobs[row],
            self._ranks[row],
            self._top_ids[top],
            self._top_logprobs[top],
        )


class ScoredPrompt(Sequence[TokenLogprobs | None]):
    """Hold the log-probabilities of a prompt's tokens as they come; the first token has none."""

    __slots__ = ("_scored",)

    def __init__(self) -> None:
        self._scored = ScoredTokens()

    def extend(self, scored: Iterable[TokenLogprobs]) -> None:
        """Add those of the tokens that follow."""
        self._scored.extend(scored)

    def __len__(self) -> int:
        return 1 + len(self._scored)

    def __iter__(self) -> Iterator[TokenLogprobs | None]:
        return chain((None,), self._scored)

    @overload
    def __getitem__(self, index: int) -> TokenLogprobs | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[TokenLogprobs | None]: ...
    def __getitem__(self, index: int | slice) -> TokenLogprobs | list[TokenLogprobs | None] | None:
        at = range(len(self))[index]
        if isinstance(at, int):
            return self._scored[at - 1] if at else None
        return [self[each] for each in at]
