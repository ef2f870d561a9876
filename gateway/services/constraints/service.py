"""From what a request asks of its answer to what the engine asks with every token.

A grammar that this tenant used lately is kept compiled. Any other is first tried in a child
process, with a deadline and a bound on its memory, and then compiled here, which takes as long and
no longer. Both happen on a pool of threads of their own, fair between tenants: one that sends
what takes a second each waits for itself.
"""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final
from uuid import UUID

import numpy as np
from llguidance import LLTokenizer

from engine.contract import Capability, EngineInfo, TokenConstraint
from engine.text import Tokenizer
from gateway.errors import ConstraintRefused, UnsupportedParameter
from gateway.services.constraints.checkers import NUM_CHILDREN, Checkers, Words
from gateway.services.constraints.kept import GrammarKey, KeptGrammars
from gateway.services.constraints.matching import (
    GrammarConstraint,
    GrammarRefused,
    compile_grammar,
    read_vocabulary,
)
from gateway.services.constraints.spec import ConstraintSpec
from gateway.services.fair_pool import FairPool
from gateway.services.one_flight import OneFlight

# Of grammars that wait to be compiled.
_MAX_WAITING_BYTES: Final = 16 << 20
_MAX_TENANT_BYTES: Final = 1 << 20
# What a small matcher takes at least, and what a long text makes of itself.
_LEAST_BYTES: Final = 128 << 10
_BYTES_A_CHAR: Final = 16


@dataclass(frozen=True)
class Vocabulary:
    """Hold the tokens of a model as grammars need them, each form made when first asked for."""

    tokenizer: Tokenizer
    info: EngineInfo
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @cached_property
    def words(self) -> Words:
        """What a child process reads; takes a moment for a large one."""
        text, info = self.tokenizer.to_json(), self.info
        ends = sorted(i for i in info.eos_token_ids if i < info.vocab_size)
        named = f"{info.vocab_size} {ends} {text}"
        name = hashlib.sha256(named.encode()).hexdigest()
        return Words(name, text, info.vocab_size, ends)

    @cached_property
    def tokens(self) -> LLTokenizer:
        words = self.words
        return read_vocabulary(words.tokenizer, words.vocab_size, words.end_token_ids)

    def made(self) -> tuple[Words, LLTokenizer]:
        """Return both, made once whoever asks."""
        with self._lock:
            return self.words, self.tokens


class Constraints:
    """Compile constraints for models; `close` once nothing more is asked of it."""

    def __init__(self, checkers: Checkers | None = None, kept: KeptGrammars | None = None) -> None:
        self._checkers = checkers or Checkers()
        self._kept = kept or KeptGrammars()
        # The time of a child is not the thread's: by the clock on the wall, then.
        self._pool = FairPool(
            NUM_CHILDREN,
            max_waiting_bytes=_MAX_WAITING_BYTES,
            max_tenant_bytes=_MAX_TENANT_BYTES,
            clock=time.monotonic,
        )
        self._under_way: OneFlight[tuple[UUID, GrammarKey], TokenConstraint] = OneFlight()
        self._vocabularies: dict[int, Vocabulary] = {}

    async def compile(
        self, tenant_id: UUID, tokenizer: Tokenizer, info: EngineInfo, spec: ConstraintSpec
    ) -> TokenConstraint:
        """Return what a spec allows, at its beginning.

        Raises: `ConstraintRefused`: it cannot be compiled; `UnsupportedParameter`: this engine
        takes none; `TenantLimited`, `Overloaded`: too many wait.
        """
        has_end = any(token_id < info.vocab_size for token_id in info.eos_token_ids)
        if Capability.GRAMMAR not in info.capabilities or not has_end:
            raise UnsupportedParameter(
                f"This engine cannot do what '{spec.param}' asks; leave it out.", param=spec.param
            )
        vocabulary = self._vocabulary(tokenizer, info)
        key = GrammarKey(str(id(vocabulary)), spec.digest)
        kept = self._kept.get(tenant_id, key)
        if kept is not None:
            return kept
        return await self._under_way.ask(
            (tenant_id, key), partial(self._make, tenant_id, vocabulary, key, spec)
        )

    def close(self) -> None:
        """End the children, and begin nothing more."""
        self._checkers.close()
        self._pool.close()

    def _vocabulary(self, tokenizer: Tokenizer, info: EngineInfo) -> Vocabulary:
        found = self._vocabularies.get(id(tokenizer))
        if found is None:
            # It holds the tokenizer, whose id is no other's therefore.
            found = self._vocabularies[id(tokenizer)] = Vocabulary(tokenizer, info)
        return found

    async def _make(
        self, tenant_id: UUID, vocabulary: Vocabulary, key: GrammarKey, spec: ConstraintSpec
    ) -> TokenConstraint:
        constraint, num_bytes = await self._pool.run(
            tenant_id, partial(self._compile, vocabulary, spec), size_bytes=len(spec.grammar)
        )
        self._kept.put(tenant_id, key, constraint, num_bytes)
        return constraint

    def _compile(
        self, vocabulary: Vocabulary, spec: ConstraintSpec
    ) -> tuple[GrammarConstraint, int]:
        words, tokens = vocabulary.made()
        try:
            grown_bytes = self._checkers.check(words, spec.grammar, param=spec.param)
        except ConstraintRefused as refused:
            if not spec.beyond:
                raise
            above = ", ".join(f"'{name}'" for name in spec.beyond)
            raise ConstraintRefused(
                f"{refused} (No answer is as large as {above} says.)", param=spec.param
            ) from None
        try:
            matcher = compile_grammar(tokens, spec.grammar)
        except GrammarRefused as refused:
            raise ConstraintRefused(
                f"'{spec.param}' is not supported: {refused}", param=spec.param
            ) from None
        num_bytes = max(_LEAST_BYTES + _BYTES_A_CHAR * len(spec.grammar), grown_bytes)
        first = np.zeros(-(-vocabulary.info.vocab_size // 32), np.int32)
        return GrammarConstraint(matcher).begin(first), num_bytes + first.nbytes
