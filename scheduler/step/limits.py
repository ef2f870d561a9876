"""How much a step may hold: what the engine takes, or less once a step has found no memory.

A step that is too large for the memory there is costs all rows their KV, so its size is not
tried again: what is halved stays so. Prompts go first, since their chunks can be of any size;
where the step only decoded, or its chunk is the smallest already, rows go. A sequence that finds
no memory alone, with the smallest chunk, is what is too large, not the batch: it is ended, and
the steps of the others are again what they were at first.
"""

from __future__ import annotations

from engine.contract import EngineInfo

# Smaller chunks of a prompt would not save memory that counts.
_LEAST_TOKENS = 16


class StepLimits:
    """Bound the tokens and the rows of a step; never more rows than tokens, so all may decode.

    `num_shrinks` counts how often a step was too large.
    """

    def __init__(self, info: EngineInfo) -> None:
        self._info = info
        self.max_num_tokens = self.max_num_rows = 0
        self.num_shrinks = 0
        self.restore()

    def shrink(self, num_tokens: int, num_rows: int, *, decodes: bool) -> bool:
        """Keep steps below one that found no memory; `decodes` tells that it did nothing else.

        Returns: False where there is no smaller one; the limits are those of the engine then.
        """
        if num_tokens > _LEAST_TOKENS and not decodes:
            self.max_num_tokens = max(_LEAST_TOKENS, num_tokens // 2)
            self.max_num_rows = min(self.max_num_rows, self.max_num_tokens)
        elif num_rows > 1:
            self.max_num_rows = num_rows // 2
        else:
            self.restore()
            return False
        self.num_shrinks += 1
        return True

    def restore(self) -> None:
        """Go back to what the engine takes."""
        self.max_num_tokens = self._info.max_num_batched_tokens
        self.max_num_rows = min(self._info.max_num_seqs, self.max_num_tokens)
