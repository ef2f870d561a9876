"""Grammars as llguidance runs them: compiled for a vocabulary, and followed token by token.

The library raises nothing: a matcher that met a bound or a fault is in error for good, and allows
only the end of text, which would look like a short answer. So its error is read after it is made,
after a first mask, and with every step.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engine.errors import ConstraintFailed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Of its own work, in its own units: a mask of five milliseconds at most, of what is costly, and
# twenty megabytes of states a sequence.
_LIMITS: Final = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=50_000,
    step_max_items=7_500,
    max_items_in_row=2_000,
    max_lexer_states=16_384,
    max_grammar_size=200_000,
    # They would put what was written into errors.
    verbose_errors=False,
)
# Tokens that one matcher and its copies are told of before it is compiled anew. Where lengths have
# bounds each byte of a text may be a state, and so half of them are left to who begins last.
_MOST_TOLD: Final = 2_048
# Of the masks one in so many is timed; one that is quick makes no states, and what is slow makes at
# most so many bytes of them, up to what the bound on states allows, a KiB each. Measured were 170
# MiB a second on a slow processor; others are twice as fast.
_TIMED, _QUICK_S, _GROWN_BYTES_A_S = 4, 50e-6, 340 << 20
_MOST_GROWN_BYTES: Final = 18 << 20
# What was written may stand before what is wrong with it, however long.
_HEAD_CHARS, _TAIL_CHARS = 120, 180
# What is said of a schema without the keyword that it is said of.
_UNNAMED: Final = {
    "pattern": re.compile("^(regex parse error|Unable to determine if regex|look-?around)"),
    "patternProperties": re.compile("patternProperty regexes"),
    "$ref": re.compile("^(Resource |Invalid URI reference)"),
}


class GrammarRefused(Exception):
    """Tell whoever wrote a grammar what the library does not take of it."""


def read_vocabulary(tokenizer: str, vocab_size: int, end_token_ids: Collection[int]) -> LLTokenizer:
    """Read the JSON text of a tokenizer, for logits of `vocab_size`; takes up to a second."""
    return LLTokenizer(tokenizer, n_vocab=vocab_size, eos_token=sorted(end_token_ids))


def compile_grammar(vocabulary: LLTokenizer, grammar: str) -> LLMatcher:
    """Compile a document of `spec.ConstraintSpec` and try its first mask.

    Raises: `GrammarRefused`.
    """
    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=_LIMITS)
    if not matcher.is_error():
        fresh = matcher.deep_copy()
        fresh.compute_bitmask()
        if not fresh.is_error():
            return matcher
        matcher = fresh
    raise GrammarRefused(_reason(matcher.get_error(), has_ref="$ref" in grammar))


@dataclass(slots=True)
class _Use:
    """Count what all copies of a matcher were told, and note whether one has failed.

    `slow_s` is what the timed ones of their masks took of the processor, beyond what is quick.
    """

    num_tokens: int = 0
    num_masks: int = 0
    slow_s: float = 0.0
    has_failed: bool = False


class GrammarConstraint:
    """Implement `engine.contract.TokenConstraint`.

    `first` is what may come first, where that was computed before: in the step in which a sequence
    begins nobody knows yet what its masks take, and so nobody can make it wait.

    Copies share the states of the lexer, which grow with whatever any of them meets: beyond the
    bound on these all fail, for good. One that `is_worn` is to be compiled anew before that.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        first: NDArray[np.int32] | None = None,
        use: _Use | None = None,
    ) -> None:
        self._matcher = matcher
        self._first = first
        self._use = use or _Use()

    @property
    def is_worn(self) -> bool:
        """Tell whether who begins now should begin with another."""
        return self._use.has_failed or self._use.num_tokens >= _MOST_TOLD

    @property
    def grown_bytes(self) -> int:
        """Estimate from above what the states take that its masks have added.

        The library does not say, but states cost time as they are made. Where masks are slow for
        another cause this says too much, and a grammar is compiled again the sooner.
        """
        grown = int(self._use.slow_s * _TIMED * _GROWN_BYTES_A_S)
        return min(grown, _MOST_GROWN_BYTES)

    def begin(self, words: NDArray[np.int32]) -> GrammarConstraint:
        """Compute what may come first into `words`, and keep them. Raises: `ConstraintFailed`."""
        self.fill_mask(words, words.ctypes.data)
        self._first = words
        return self

    def fill_mask(self, words: NDArray[np.int32], address: int) -> None:
        if self._first is not None:
            words[:] = self._first
            return
        use = self._use
        use.num_masks += 1
        if use.num_masks % _TIMED:
            self._matcher.unsafe_compute_mask_ptr(address, words.nbytes)
        else:
            began_s = time.thread_time()
            self._matcher.unsafe_compute_mask_ptr(address, words.nbytes)
            use.slow_s += max(0.0, time.thread_time() - began_s - _QUICK_S)
        self._check()

    def accept(self, token_ids: Sequence[int]) -> None:
        self._first = None
        self._use.num_tokens += len(token_ids)
        if not self._matcher.consume_tokens(list(token_ids)):
            self._check()

    def copy(self) -> GrammarConstraint:
        return GrammarConstraint(self._matcher.deep_copy(), self._first, self._use)

    def _check(self) -> None:
        if self._matcher.is_error():
            self._use.has_failed = True
            raise ConstraintFailed(_reason(self._matcher.get_error()))


def _reason(error: str, *, has_ref: bool = False) -> str:
    """Say in one line what the library says in several, of what refers to schemas or does not."""
    lines = [line.strip() for line in error.splitlines()]
    kept = [line for line in lines if line and not line.startswith("<non-verbose")]
    text = " ".join(kept).replace("Unsatisfiable schema:", "no value is of the schema:", 1)
    for keyword, said in _UNNAMED.items():
        if said.search(text):
            text = f"'{keyword}': {text}"
    if text.startswith("NoExtension"):
        text = "no text fits it"
        text += "; does a '$ref' lead to itself?" if has_ref else "."
    if len(text) <= _HEAD_CHARS + _TAIL_CHARS:
        return text
    return f"{text[:_HEAD_CHARS]} … {text[-_TAIL_CHARS:]}"
