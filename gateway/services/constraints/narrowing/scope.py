"""What the rewriting of one schema has in common: where references lead, and how much it may make.

What is left of a schema with others beside it multiplies, and this runs before anything may be
killed. So there is a bound on the parts that are looked at; beyond it schemas stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final, NamedTuple

Schema = dict[str, Any]

# A part is a schema, or some letters of a value in one.
MOST_PARTS: Final = 3_000
_LETTERS: Final = 64
_MOST_FOLLOWED: Final = 8
# In which `if` is a word without a meaning; what is not of a schema hangs on which words have one.
_OLD_DRAFTS: Final = ("draft-03", "draft-04", "draft-06")


class TooMuch(Exception):
    """Give up: the rewriting is above its bound."""


class CannotBeHeld(Exception):
    """Tell that answers cannot be held to a keyword as it is written; it would go unnoticed."""

    def __init__(self, keyword: str, why: str) -> None:
        super().__init__(f"'{keyword}' {why}")


class Scope:
    """Hold the whole schema and what is left of the bound."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._num_left = MOST_PARTS
        self._followed: list[str] = []
        # Keywords whose bounds nothing that is ever written can meet.
        self.beyond: set[str] = set()
        said = root.get("$schema")
        self.is_old = isinstance(said, str) and any(draft in said for draft in _OLD_DRAFTS)

    def spend(self, *values: Any) -> None:
        """Count a schema with some of its values, which are none. Raises: `TooMuch`."""
        self._num_left -= 1 + sum(map(_size, values))
        if self._num_left < 0:
            raise TooMuch

    @contextmanager
    def followed(self, reference: Any) -> Iterator[Any]:
        """Give what a reference leads to in this schema; None: elsewhere, nowhere, in a circle, or
        by too many others."""
        is_circle = reference in self._followed or len(self._followed) >= _MOST_FOLLOWED
        if not isinstance(reference, str) or is_circle:
            yield None
            return
        self._followed.append(reference)
        try:
            yield self._found(reference)
        finally:
            self._followed.pop()

    def _found(self, reference: str) -> Any:
        if reference == "#":
            return self._root
        if not reference.startswith("#/") or "%" in reference:
            return None
        place: Any = self._root
        for step in reference[2:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(place, Mapping) or name not in place:
                return None
            place = place[name]
        return place


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value) // _LETTERS
    if isinstance(value, Mapping):
        return len(value) + sum(map(_size, value.values()))
    return len(value) + sum(map(_size, value)) if isinstance(value, list) else 0


def any_of(schemas: list[Any]) -> Any:
    """Write what takes what one of some schemas takes; of none, nothing."""
    if not schemas:
        return False
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


class Instead(NamedTuple):
    """Say what stands for some keywords of a schema: they are left out, `schemas` must hold as
    well, and `keywords` are written."""

    without: frozenset[str]
    schemas: Sequence[Any] = ()
    keywords: Mapping[str, Any] = MappingProxyType({})
