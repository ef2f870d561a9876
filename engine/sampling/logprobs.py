"""Log-probabilities of tokens, from the model's own logits.

They are a log-softmax of what the model computed, before any bias, penalty, temperature or
filter: what vLLM calls raw logprobs, and what an evaluation of the model wants.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.contract import TokenLogprobs

# Float32 values worked on at a time, so that a long prompt's logits are not copied as a whole.
_MAX_VALUES = 1 << 23


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobRows:
    """Name the rows of a batch whose drawn token is to be scored, and how many alternatives.

    Both: [num_scored].
    """

    rows: NDArray[np.int64]
    num_top: NDArray[np.int64]


def find_logprob_rows(asked: Mapping[int, int], slots: NDArray[np.int32]) -> LogprobRows | None:
    """Find the rows of a batch to score; `asked` has by slot how many alternatives. None: none."""
    if not asked:
        return None
    found = [(row, asked[slot]) for row, slot in enumerate(slots.tolist()) if slot in asked]
    if not found:
        return None
    rows, num_top = np.array(found, np.int64).T
    return LogprobRows(rows=rows, num_top=num_top)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRows:
    """Name prompt tokens to score, each by the logits of the token before it.

    `slots` and `lens`: whose they are, in order, and how many, [num_prompts].
    `logit_rows`: the computed tokens whose logits score them; `token_ids`: the prompt tokens
    themselves; `num_top`: how many alternatives each wants. All three: [num_scored].
    """

    slots: list[int]
    lens: list[int]
    logit_rows: NDArray[np.int64]
    token_ids: NDArray[np.int64]
    num_top: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Scores:
    """Hold what was measured of tokens, on the device; the likeliest ones as many as any wants.

    `logprobs`, `ranks`: [n]. `top_ids`, `top_logprobs`: [n, width].
    """

    logprobs: Tensor
    ranks: Tensor
    top_ids: Tensor
    top_logprobs: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> Scores:
        """Apply a function to every tensor."""
        return Scores(*(change(getattr(self, part.name)) for part in fields(self)))

    def read(self, token_ids: NDArray[np.int64], num_top: NDArray[np.int64]) -> list[TokenLogprobs]:
        """Put them into the contract's words; both [n].

        The likeliest are copied as bytes: as lists they would be as many objects as there are, at
        once and in one call, and have the collector look at all of them.
        """
        rows = zip(
            token_ids.tolist(),
            self.logprobs.tolist(),
            self.ranks.tolist(),
            self.top_ids.cpu().numpy().astype(np.int32),
            self.top_logprobs.cpu().numpy().astype(np.float32),
            num_top.tolist(),
            strict=True,
        )
        return [
            TokenLogprobs(
                token_id,
                logprob,
                rank,
                array("i", ids[:n].tobytes()),
                array("f", top[:n].tobytes()),
            )
            for token_id, logprob, rank, ids, top, n in rows
        ]


@torch.inference_mode()
def measure(logits: Tensor, token_ids: Tensor, width: int) -> Scores:
    """Measure one token a row and the `width` likeliest, without reading anything back.

    Args: `logits`: float32, [n, vocab_size]. `token_ids`: [n].
    """
    chosen = logits.gather(1, token_ids.long()[:, None])
    norms = logits.logsumexp(dim=-1, keepdim=True)
    largest = torch.topk(logits, min(width, logits.shape[-1]), dim=-1)
    return Scores(
        (chosen - norms).squeeze(1),
        (logits > chosen).sum(dim=-1) + 1,
        largest.indices,
        largest.values - norms,
    )


@torch.inference_mode()
def score_tokens(
    logits: Tensor,
    token_ids: NDArray[np.int64],
    num_top: NDArray[np.int64],
    *,
    native: bool = False,
) -> list[TokenLogprobs]:
    """Score one token a row, with the row's likeliest tokens, on a CPU.

    Args: `logits`: float32, [num_rows, vocab_size]. `token_ids`, `num_top`: [num_rows]. `native`:
        the compiled operators are loaded, and may be used.
    """
    if native and len(token_ids):
        found = torch.ops.sluice.score(logits, torch.from_numpy(token_ids), int(num_top.max()))
        return Scores(*found).read(token_ids, num_top)
    step = max(1, _MAX_VALUES // logits.shape[-1])
    scored: list[TokenLogprobs] = []
    for begin in range(0, len(token_ids), step):
        part = slice(begin, begin + step)
        scored += _score_part(logits[part], token_ids[part], num_top[part])
    return scored


def _score_part(
    logits: Tensor, token_ids: NDArray[np.int64], num_top: NDArray[np.int64]
) -> list[TokenLogprobs]:
    index = torch.from_numpy(token_ids)
    return measure(logits, index, int(num_top.max())).read(token_ids, num_top)
