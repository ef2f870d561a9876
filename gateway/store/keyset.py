"""Pages by keyset: a page goes on after what the last row was ordered by, whatever was inserted.

A long page is read in short ones: a driver makes objects of all rows that a statement returns in
one go, and with a thousand of them nothing else has the event loop for 30 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar
from uuid import UUID

from sqlalchemy import Column, Row, Select, literal, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.page import Page, PageRequest
from gateway.errors import InvalidRequest

T = TypeVar("T")

_READ: Final[dict[type, Callable[[str], Any]]] = {
    str: str,
    int: int,
    UUID: UUID,
    datetime: datetime.fromisoformat,
}
_INT_MAX: Final = 2**63 - 1
# As many rows as are read in a few milliseconds.
_TOGETHER: Final = 100


@dataclass(frozen=True, slots=True)
class Keyset:
    """Order a list by columns that together are unique; each is selected by the query it pages."""

    columns: Sequence[Column[Any]]
    descending: bool = False

    async def page(
        self,
        connection: AsyncConnection,
        query: Select[*tuple[Any, ...]],
        request: PageRequest,
        read: Callable[[Row[*tuple[Any, ...]]], T],
    ) -> Page[T]:
        """Run a query for one page. Raises: `InvalidRequest`: `after` is no cursor of this list."""
        data: list[T] = []
        after = request.after
        while True:
            limit = min(request.limit - len(data), _TOGETHER)
            rows = await self._rows(connection, query, after, limit + 1)
            data += [read(row) for row in rows[:limit]]
            if len(rows) <= limit:
                return Page(data)
            last = rows[limit - 1]._mapping
            after = tuple(_text(last[column]) for column in self.columns)
            if len(data) == request.limit:
                return Page(data, after)

    async def _rows(
        self,
        connection: AsyncConnection,
        query: Select[*tuple[Any, ...]],
        after: Sequence[str] | None,
        limit: int,
    ) -> Sequence[Row[*tuple[Any, ...]]]:
        order = [column.desc() if self.descending else column for column in self.columns]
        query = query.order_by(*order).limit(limit)
        if after is not None:
            query = query.where(self._beyond(after))
        return (await connection.execute(query)).all()

    def _beyond(self, after: Sequence[str]) -> Any:  # a condition
        kinds = [column.type.python_type for column in self.columns]
        try:
            values = [_READ[kind](text) for kind, text in zip(kinds, after, strict=True)]
        except ValueError:
            raise _no_cursor() from None
        for value in values:
            if isinstance(value, str) and not value.isprintable():
                raise _no_cursor()
            if isinstance(value, int) and abs(value) > _INT_MAX:
                raise _no_cursor()
            if isinstance(value, datetime) and value.tzinfo is None:
                raise _no_cursor()
        here = tuple_(*self.columns)
        there = tuple_(
            *(
                literal(value, column.type)
                for value, column in zip(values, self.columns, strict=True)
            )
        )
        return here < there if self.descending else here > there


def _text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _no_cursor() -> InvalidRequest:
    return InvalidRequest("'after' must be a 'next' that this list gave.", param="after")
