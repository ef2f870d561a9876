"""What sums of the ledger have to be: those of hours what rows add up to, those of days what hours
do. Rows that a retention dropped are in sums alone.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import text

from gateway.store.database import Database

_COLUMNS: Final = "input_tokens, cached_tokens, output_tokens, nano_usd"
_KEY: Final = "organisation_id, tenant_id, key_id, model, tier, is_batch"
_SUMS: Final = ", ".join(f"sum({name})::bigint AS {name}" for name in _COLUMNS.split(", "))
_NOTHING: Final = "(0, 0, 0, 0, 0)"
# What is in the one and not in the other, both ways.
_APART: Final = """
    WITH truth AS ({truth}), kept AS ({kept})
    (SELECT * FROM truth EXCEPT SELECT * FROM kept)
    UNION ALL (SELECT * FROM kept EXCEPT SELECT * FROM truth)
"""
_HOURS_APART: Final = text(
    _APART.format(
        truth=f"SELECT date_trunc('hour', at, 'UTC') AS hour, {_KEY}, {_SUMS}, count(*) "
        "FROM usage_events GROUP BY 1, 2, 3, 4, 5, 6, 7",
        kept=f"SELECT hour, {_KEY}, {_COLUMNS}, requests FROM usage_hourly "
        f"WHERE ({_COLUMNS}, requests) <> {_NOTHING}",
    )
)
DAYS_APART: Final = _APART.format(
    truth=f"SELECT * FROM (SELECT date_trunc('day', hour, 'UTC') AS day, {_KEY}, {_SUMS}, "
    "sum(requests)::bigint AS requests FROM usage_hourly GROUP BY 1, 2, 3, 4, 5, 6, 7) AS days "
    f"WHERE ({_COLUMNS}, requests) <> {_NOTHING}",
    kept=f"SELECT * FROM (SELECT day, {_KEY}, {_SUMS}, sum(requests)::bigint AS requests "
    "FROM usage_daily GROUP BY 1, 2, 3, 4, 5, 6, 7) AS days "
    f"WHERE ({_COLUMNS}, requests) <> {_NOTHING}",
)


async def assert_sums_agree(database: Database) -> None:
    """Compare rows with hours and hours with days, whoever they are of."""
    async with database.platform() as connection:
        assert (await connection.execute(_HOURS_APART)).all() == [], "rows and hours"
        assert (await connection.execute(text(DAYS_APART))).all() == [], "hours and days"


async def assert_days_agree(database: Database) -> None:
    """Compare hours with days alone."""
    async with database.platform() as connection:
        assert (await connection.execute(text(DAYS_APART))).all() == []
