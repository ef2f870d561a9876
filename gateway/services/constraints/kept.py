"""Compiled grammars that are kept, by tenant: none shares one with another, or could time it.

The least recently used go first: a tenant's own where it is above its bytes, and where all
together are above theirs, those of whoever has the most.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from engine.contract import TokenConstraint

MAX_TENANT_BYTES: Final = 16 << 20
MAX_BYTES: Final = 128 << 20


class GrammarKey(NamedTuple):
    """Name a grammar and what it was compiled for."""

    vocabulary: str
    digest: bytes


class Wears(TokenConstraint, Protocol):
    """Tell whether a constraint has been used so much that another is to be compiled."""

    @property
    def is_worn(self) -> bool: ...


@dataclass(slots=True)
class _Shelf:
    kept: OrderedDict[GrammarKey, tuple[Wears, int]]
    num_bytes: int = 0


class KeptGrammars:
    """Keep compiled grammars within bounds of bytes; used on one thread."""

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
        if shelf is None or key not in shelf.kept:
            return None
        shelf.kept.move_to_end(key)
        constraint, _ = shelf.kept[key]
        return None if constraint.is_worn else constraint

    def put(self, tenant_id: UUID, key: GrammarKey, constraint: Wears, num_bytes: int) -> None:
        """Keep one for a tenant, of so many bytes; one above all bounds is not kept.

        Those of it that are worn, which hold more than they did, are not any more.
        """
        if num_bytes > self._max_tenant_bytes:
            return
        shelf = self._shelves.setdefault(tenant_id, _Shelf(OrderedDict()))
        for worn in [one for one, (kept, _) in shelf.kept.items() if kept.is_worn]:
            self._drop(shelf, worn)
        if key in shelf.kept:
            return
        shelf.kept[key] = (constraint, num_bytes)
        shelf.num_bytes += num_bytes
        self.num_bytes += num_bytes
        while shelf.num_bytes > self._max_tenant_bytes:
            self._drop_oldest(tenant_id)
        while self.num_bytes > self._max_bytes:
            self._drop_oldest(max(self._shelves, key=lambda one: self._shelves[one].num_bytes))

    def _drop_oldest(self, tenant_id: UUID) -> None:
        shelf = self._shelves[tenant_id]
        self._drop(shelf, next(iter(shelf.kept)))
        if not shelf.kept:
            del self._shelves[tenant_id]

    def _drop(self, shelf: _Shelf, key: GrammarKey) -> None:
        _, num_bytes = shelf.kept.pop(key)
        shelf.num_bytes -= num_bytes
        self.num_bytes -= num_bytes
