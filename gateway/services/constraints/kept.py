"""Compiled grammars that are kept, by tenant: none shares one with another, or could time it.

The least recently used go first: a tenant's own where it is above its bytes, and where all
together are above theirs, those of whoever has the most. What answers add to one is counted too.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from engine.contract import TokenConstraint

MAX_TENANT_BYTES: Final = 32 << 20
MAX_BYTES: Final = 128 << 20


class GrammarKey(NamedTuple):
    """Name a grammar and what it was compiled for."""

    vocabulary: str
    digest: bytes


class Wears(TokenConstraint, Protocol):
    """Tell whether a constraint has been used so much that another is to be compiled, and what it
    takes more by now than when it was."""

    @property
    def is_worn(self) -> bool: ...
    @property
    def grown_bytes(self) -> int: ...


@dataclass(slots=True)
class _Kept:
    constraint: Wears
    compiled_bytes: int
    # As it was last looked at.
    num_bytes: int = 0


@dataclass(slots=True)
class _Shelf:
    kept: OrderedDict[GrammarKey, _Kept] = field(default_factory=OrderedDict)
    # As they were last looked at.
    num_bytes: int = 0


class KeptGrammars:
    """Keep compiled grammars within bounds of bytes; used on one thread.

    A tenant's are looked at whenever it asks for one: those that are worn go, and the others count
    what they have grown to.
    """

    def __init__(
        self, *, max_tenant_bytes: int = MAX_TENANT_BYTES, max_bytes: int = MAX_BYTES
    ) -> None:
        self._max_tenant_bytes = max_tenant_bytes
        self._max_bytes = max_bytes
        self._shelves: dict[UUID, _Shelf] = {}
        self.num_bytes = 0

    def get(self, tenant_id: UUID, key: GrammarKey) -> TokenConstraint | None:
        """Return what is kept for a tenant, unless it is worn; it is the last to go from now on."""
        shelf = self._shelves.get(tenant_id)
        if shelf is None:
            return None
        found = shelf.kept.get(key)
        if found is not None:
            shelf.kept.move_to_end(key)
        self._look_at(shelf)
        self._hold_to_bounds(tenant_id)
        return None if found is None or found.constraint.is_worn else found.constraint

    def put(self, tenant_id: UUID, key: GrammarKey, constraint: Wears, num_bytes: int) -> None:
        """Keep one for a tenant, compiled to so many bytes; one above all bounds is not kept."""
        if num_bytes > self._max_tenant_bytes:
            return
        shelf = self._shelves.setdefault(tenant_id, _Shelf())
        self._look_at(shelf)
        if key not in shelf.kept:
            shelf.kept[key] = new = _Kept(constraint, num_bytes)
            self._count(shelf, new, num_bytes + constraint.grown_bytes)
        self._hold_to_bounds(tenant_id)

    def _look_at(self, shelf: _Shelf) -> None:
        """Let go of what is worn, and count what the others have grown to."""
        for key, one in list(shelf.kept.items()):
            if one.constraint.is_worn:
                del shelf.kept[key]
                self._count(shelf, one, 0)
            else:
                self._count(shelf, one, one.compiled_bytes + one.constraint.grown_bytes)

    def _hold_to_bounds(self, tenant_id: UUID) -> None:
        shelf = self._shelves[tenant_id]
        while shelf.num_bytes > self._max_tenant_bytes:
            self._drop_oldest(tenant_id)
        while self.num_bytes > self._max_bytes:
            self._drop_oldest(max(self._shelves, key=lambda one: self._shelves[one].num_bytes))
        if not shelf.kept:
            self._shelves.pop(tenant_id, None)

    def _drop_oldest(self, tenant_id: UUID) -> None:
        shelf = self._shelves[tenant_id]
        _, oldest = shelf.kept.popitem(last=False)
        self._count(shelf, oldest, 0)
        if not shelf.kept:
            del self._shelves[tenant_id]

    def _count(self, shelf: _Shelf, one: _Kept, num_bytes: int) -> None:
        self.num_bytes += num_bytes - one.num_bytes
        shelf.num_bytes += num_bytes - one.num_bytes
        one.num_bytes = num_bytes
