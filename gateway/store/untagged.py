"""The tokens of keys and of admins that carry no tag, by the beginnings of their MACs."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Final

from sqlalchemy import func, select, union_all

from gateway.store.database import Database
from gateway.store.tables import admin_tokens, key_secrets

# What nobody can find a token for without the root secret, and many of which are little.
_MAC_BYTES: Final = 8


class SqlUntaggedTokens:
    """Implement `UntaggedTokenStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def made_since(self, at: datetime | None) -> tuple[Collection[bytes], datetime]:
        made = [
            select(func.substring(table.c.mac, 1, _MAC_BYTES)).where(
                ~table.c.is_tagged, *(() if at is None else (table.c.created_at >= at,))
            )
            for table in (key_secrets, admin_tokens)
        ]
        async with self._database.platform() as connection:
            now = (await connection.execute(select(func.now()))).scalar_one()
            macs = (await connection.scalars(union_all(*made))).all()
        return macs, now
