"""What a step has for its requests: columns of the rows that go on, and outputs for the others.

Nearly every row of a step has drawn one token and goes on. An output for each is most of what
reporting a step costs, and whoever delivers them takes them apart again; as columns they are made
in a few operations, and read as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from scheduler.request import RequestOutput


class DrawnTokens:
    """Hold the one token that each of some rows has drawn, all of which go on, [rows].

    The counts are those of `RequestOutput`, which iterating makes for each row.
    """

    __slots__ = ("_num_cached", "_num_output", "_request_ids", "_token_ids")

    def __init__(
        self,
        request_ids: list[str],
        token_ids: NDArray[np.intc],
        num_cached_tokens: NDArray[np.intc],
        num_output_tokens: NDArray[np.intc],
    ) -> None:
        self._request_ids = request_ids
        self._token_ids = token_ids
        self._num_cached = num_cached_tokens
        self._num_output = num_output_tokens

    def __len__(self) -> int:
        return len(self._request_ids)

    def __iter__(self) -> Iterator[RequestOutput]:
        # The named tuple's own constructor takes thrice as long.
        fields = zip(
            self._request_ids,
            zip(self._token_ids.tolist(), strict=True),
            repeat(None),
            self._num_cached.tolist(),
            self._num_output.tolist(),
            repeat(None),
            repeat(None),
            repeat(None),
            repeat(0),
            repeat(None),
            repeat(None),
            strict=False,
        )
        return map(tuple.__new__, repeat(RequestOutput), fields)

    def rows(self) -> Iterator[tuple[str, int, int, int]]:
        """Go through requests, with their token and counts of cached and of output tokens."""
        return zip(
            self._request_ids,
            self._token_ids.tolist(),
            self._num_cached.tolist(),
            self._num_output.tolist(),
            strict=True,
        )


class Outputs:
    """Keep what requests have new, in the order in which it came; iterating makes an output each.

    `parts` are what it is made of.
    """

    __slots__ = ("parts",)

    def __init__(self, outputs: Iterable[RequestOutput] = ()) -> None:
        self.parts: list[list[RequestOutput] | DrawnTokens] = []
        self.add(outputs)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[RequestOutput]:
        return chain.from_iterable(self.parts)

    def add(self, outputs: Iterable[RequestOutput]) -> None:
        """Add outputs behind those that are there."""
        if isinstance(outputs, Outputs):
            self.parts += outputs.parts
        elif isinstance(outputs, DrawnTokens):
            self.parts.append(outputs)
        elif added := list(outputs):
            self.parts.append(added)
