"""The migrations against a real PostgreSQL, as an owner who is no superuser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, insert, inspect, text
from sqlalchemy.exc import DBAPIError, IntegrityError

import migrations
from gateway.domain.quota import MAX_AMOUNT, Metric
from gateway.errors import StartupFailed
from gateway.store import sign_in_tables
from gateway.store.database import Database
from gateway.store.migrate import HEAD, READABLE_FROM, Schema, downgrade, schema_of, upgrade
from gateway.store.tables import quotas
from gateway.store.untagged import SqlUntaggedTokens

pytestmark = pytest.mark.anyio

# Of all modules that declare tables.
metadata = sign_in_tables.metadata


@pytest.fixture
async def empty(empty_database_url: str) -> AsyncIterator[Database]:
    """Open a database with nothing in it."""
    database = Database(empty_database_url)
    yield database
    await database.close()


async def test_up_down_and_up_again(empty: Database) -> None:
    """Every table comes, goes, and comes again."""
    await upgrade(empty)
    assert await _tables(empty) >= set(metadata.tables)
    await downgrade(empty, "base")
    assert await _tables(empty) == {"alembic_version"}
    await upgrade(empty)
    assert await _tables(empty) >= set(metadata.tables)


async def test_0002_suits_the_code_before_it(empty: Database) -> None:
    """Rows of the older code stay, its inserts still work, and down and up again lose none."""
    tenant, key = "00000000-0000-0000-0000-00000000000", "10000000-0000-0000-0000-00000000000"

    async def insert_as_before(number: int) -> None:
        async with empty.as_itself() as connection:
            await connection.execute(
                text(f"""
                INSERT INTO tenants (id, organisation_id, name, weight)
                VALUES ('{tenant}{number}', '{tenant}0', 't{number}', 2)""")
            )
            await connection.execute(
                text(f"""
                INSERT INTO keys (id, tenant_id, kid, name)
                VALUES ('{key}{number}', '{tenant}{number}', 'k{number}', 'n')""")
            )

    await upgrade(empty)
    await downgrade(empty, "0001")
    async with empty.as_itself() as connection:
        # The owner is bound by the policies as everyone is, and has none that lets it write.
        for table in ("tenants", "keys"):
            await connection.execute(text(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY"))
        await connection.execute(
            text(f"INSERT INTO organisations (id, name) VALUES ('{tenant}0', 'o')")
        )
    await insert_as_before(1)
    for _ in range(2):
        await upgrade(empty)
        async with empty.as_itself() as connection:
            slos = await connection.execute(
                text("SELECT ttft_ms, tpot_ms, max_gap_ms FROM tenants")
            )
            assert {tuple(row) for row in slos} == {(None, None, None)}
            tiers = await connection.scalars(text("SELECT max_tier FROM keys"))
            assert set(tiers) == {"default"}
        await downgrade(empty, "0001")
    await upgrade(empty)
    await insert_as_before(2)


async def test_0003_suits_the_code_before_it(empty: Database) -> None:
    """Keys and tokens of the older code stay and mean what they meant; so do its inserts."""
    tenant, key = "00000000-0000-0000-0000-00000000000", "10000000-0000-0000-0000-00000000000"

    async def insert_as_before(number: int) -> None:
        async with empty.platform() as connection:
            await connection.execute(
                text(f"""
                INSERT INTO tenants (id, organisation_id, name, weight, ttft_ms)
                VALUES ('{tenant}{number}', '{tenant}0', 't{number}', 2, 500)""")
            )
            await connection.execute(
                text(f"""
                INSERT INTO keys (id, tenant_id, kid, name, max_tier)
                VALUES ('{key}{number}', '{tenant}{number}', 'k{number}', 'n', 'flex')""")
            )
            await connection.execute(
                text(f"""
                INSERT INTO admin_tokens (id, kid, pepper_id, mac)
                VALUES ('{key}{number}', 'a{number}', 'p', decode(repeat('00', 32), 'hex'))""")
            )

    await upgrade(empty)
    await downgrade(empty, "0002")
    async with empty.platform() as connection:
        await connection.execute(
            text(f"INSERT INTO organisations (id, name) VALUES ('{tenant}0', 'o')")
        )
    await insert_as_before(1)
    for number in (2, 3):
        await upgrade(empty)
        await insert_as_before(number)
        async with empty.platform() as connection:
            rows = await connection.execute(
                text("SELECT models, cidrs, allows_batch, admin_read FROM keys")
            )
            assert {tuple(row) for row in rows} == {(None, None, True, False)}
            roles = await connection.execute(text("SELECT role, tenant_id FROM admin_tokens"))
            assert {tuple(row) for row in roles} == {("owner", None)}
        await downgrade(empty, "0002")
    async with empty.platform() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM keys")) == 3


async def test_0005_suits_the_code_before_it(empty: Database) -> None:
    """Keys and tokens of the older code have no tag, those that it inserts afterwards neither."""
    tenant, key = "00000000-0000-0000-0000-00000000000", "10000000-0000-0000-0000-00000000000"

    async def insert_as_before(number: int) -> None:
        mac = f"decode(repeat('0{number}', 32), 'hex')"
        async with empty.platform() as connection:
            for statement in (
                f"INSERT INTO keys (id, tenant_id, kid, name) "
                f"VALUES ('{key}{number}', '{tenant}1', 'k{number}', 'n')",
                f"INSERT INTO key_secrets (id, key_id, tenant_id, pepper_id, mac) "
                f"VALUES ('{key}{number}', '{key}{number}', '{tenant}1', 'p', {mac})",
                f"INSERT INTO admin_tokens (id, kid, pepper_id, mac) "
                f"VALUES ('{key}{number}', 'a{number}', 'p', {mac})",
            ):
                await connection.execute(text(statement))

    await upgrade(empty)
    await downgrade(empty, "0003")
    async with empty.platform() as connection:
        await connection.execute(
            text(f"INSERT INTO organisations (id, name) VALUES ('{tenant}0', 'o')")
        )
        await connection.execute(
            text(
                "INSERT INTO tenants (id, organisation_id, name, weight) "
                f"VALUES ('{tenant}1', '{tenant}0', 't', 2)"
            )
        )
    await insert_as_before(1)
    for number in (2, 3):
        await upgrade(empty)
        await insert_as_before(number)
        macs, _ = await SqlUntaggedTokens(empty).made_since(None)
        assert sorted(macs) == sorted([bytes([n]) * 8 for n in range(1, number + 1)] * 2)
        await downgrade(empty, "0003")


async def test_0006_marks_what_only_operators_have_set(empty: Database) -> None:
    """Restrictions of a key, and its limits, that no tenant's owner ever touched are operators'."""
    tenant = "00000000-0000-0000-0000-000000000001"
    keys = [f"10000000-0000-0000-0000-00000000000{number}" for number in (1, 2)]
    await upgrade(empty)
    await downgrade(empty, "0003")
    async with empty.platform() as connection:
        await connection.execute(text(f"INSERT INTO organisations VALUES ('{tenant}', 'o')"))
        await connection.execute(
            text(f"""
            INSERT INTO tenants (id, organisation_id, name, weight)
            VALUES ('{tenant}', '{tenant}', 't', 2)""")
        )
        for key in keys:
            await connection.execute(
                text(f"""
                INSERT INTO keys (id, tenant_id, kid, name, max_tier, models, cidrs)
                VALUES ('{key}', '{tenant}', '{key}', 'n', 'flex', '{{m}}', NULL)""")
            )
            await connection.execute(
                text(f"""
                INSERT INTO quotas (scope_kind, scope_id, is_override, tenant_id, rpm,
                    budget_nano_usd) VALUES ('key', '{key}', false, '{tenant}', 5, 7)""")
            )
        await connection.execute(
            text(f"""
            INSERT INTO audit_log (organisation_id, seq, at, actor, actor_role, action, object_kind,
                object_id, previous_hash, hash)
            SELECT '{tenant}', number, now(), 'ann', role, 'x', kind, id, '', ''
            FROM (VALUES (1, 'operator', 'key', '{keys[0]}'),
                (2, 'tenant-owner', 'key', '{keys[1]}'),
                (3, 'tenant-owner', 'quota', 'key:{keys[1]}')) AS told (number, role, kind, id)""")
        )
    await upgrade(empty)
    async with empty.platform() as connection:
        of_keys = text("SELECT operator_set FROM keys ORDER BY id")
        assert list(await connection.scalars(of_keys)) == [["max_tier", "models"], []]
        of_limits = text("SELECT operator_set FROM quotas ORDER BY scope_id")
        budget = ["budget_hard", "budget_nano_usd", "budget_window"]
        assert list(await connection.scalars(of_limits)) == [[*budget, "rpm"], []]
        bounds = text("SELECT max_tier, models, cidrs, max_keys FROM tenants")
        assert [tuple(row) for row in await connection.execute(bounds)] == [
            ("priority", None, None, None)
        ]


async def test_0008_takes_no_more_records_without_a_key(empty: Database) -> None:
    """Those of the code before stay as they are; its next ones are refused until it is down."""
    zero = "00000000-0000-0000-0000-000000000000"

    async def insert_as_before(number: int) -> None:
        async with empty.platform() as connection:
            await connection.execute(
                text(f"""
                INSERT INTO audit_log (organisation_id, seq, at, actor, actor_role, action,
                    object_kind, object_id, previous_hash, hash)
                VALUES ('{zero}', {number}, now(), 'ann', 'owner', 'x', 'key', 'k', '', '')""")
            )

    await upgrade(empty)
    await downgrade(empty, "0006")
    await insert_as_before(1)
    await upgrade(empty)
    with pytest.raises(DBAPIError, match="newer sluice"):
        await insert_as_before(2)
    await downgrade(empty, "0006")
    await insert_as_before(2)
    await upgrade(empty)
    async with empty.platform() as connection:
        kept = await connection.execute(text("SELECT seq, pepper_id FROM audit_log ORDER BY seq"))
        assert [tuple(row) for row in kept] == [(1, None), (2, None)]


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO tenants (id, organisation_id, name, weight, ttft_ms) "
        "VALUES (gen_random_uuid(), gen_random_uuid(), 't', 1, 0)",
        "INSERT INTO tenants (id, organisation_id, name, weight, max_gap_ms) "
        "VALUES (gen_random_uuid(), gen_random_uuid(), 't', 1, 'Infinity')",
        "INSERT INTO keys (id, tenant_id, kid, name, max_tier) "
        "VALUES (gen_random_uuid(), gen_random_uuid(), 'k', 'n', 'batch')",
    ],
)
async def test_the_database_refuses_bad_promises_and_tiers(
    database: Database, statement: str
) -> None:
    """What the services check, the tables check too."""
    with pytest.raises(IntegrityError, match="violates check constraint"):
        async with database.platform() as connection:
            await connection.execute(text(statement))


async def test_the_migrations_make_what_the_tables_declare(empty: Database) -> None:
    """Alembic finds no difference between the migrated schema and `tables`."""
    await upgrade(empty)
    async with empty.as_itself() as connection:
        differences = await connection.run_sync(_differences)
    assert differences == []


@pytest.mark.parametrize("metric", Metric)
async def test_the_database_refuses_amounts_that_no_limit_has(
    database: Database, metric: Metric
) -> None:
    """Each limit's column holds what counters count exactly, and nothing below 0."""
    for amount in (-1, MAX_AMOUNT + 1):
        place = {"scope_kind": "platform", "scope_id": UUID(int=0), "is_override": False}
        with pytest.raises(IntegrityError, match=f"ck_quotas_{metric.value}"):
            async with database.platform() as connection:
                await connection.execute(insert(quotas).values({**place, metric.value: amount}))


def test_head_names_the_newest_revision() -> None:
    """The constant that lets a warm start skip Alembic is the newest revision."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD


async def test_gateways_that_start_together_migrate_once(empty_database_url: str) -> None:
    """Four upgrades at once all succeed."""
    databases = [Database(empty_database_url) for _ in range(4)]
    await asyncio.gather(*map(upgrade, databases))
    assert await _tables(databases[0]) >= set(metadata.tables)
    for database in databases:
        await database.close()


@pytest.mark.parametrize("says", [None, "'made by hand'", "'readable from 9998'"])
async def test_a_newer_schema_that_does_not_serve_this_release_is_refused(
    empty: Database, says: str | None
) -> None:
    """A start on it fails with one line, not with a guess."""
    await _become_newer(empty, says)
    with pytest.raises(StartupFailed, match=f"at 9999 of a newer Sluice than this .{HEAD}"):
        await upgrade(empty)


@pytest.mark.parametrize("oldest", [READABLE_FROM, HEAD])
async def test_a_newer_schema_that_serves_this_release_is_left_as_it_is(
    empty: Database, oldest: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A gateway of the release before starts again while the next takes its place."""
    await _become_newer(empty, f"'readable from {oldest}'")
    await upgrade(empty)
    async with empty.as_itself() as connection:
        assert await schema_of(connection) == Schema("9999", oldest)
    assert "which it still serves" in caplog.text


async def test_a_schema_says_from_which_release_on_it_can_be_used(empty: Database) -> None:
    """It is written with the upgrade, and gone with a step down."""
    for revision, expected in ((HEAD, Schema(HEAD, READABLE_FROM)), ("0001", Schema("0001"))):
        await upgrade(empty)
        if revision != HEAD:
            await downgrade(empty, revision)
        async with empty.as_itself() as connection:
            assert await schema_of(connection) == expected


async def test_older_releases_find_what_they_know(empty: Database) -> None:
    """Since the oldest release that is served, no column went, changed or became obligatory."""
    await upgrade(empty)
    after = await _columns(empty), await _grants(empty)
    await downgrade(empty, READABLE_FROM)
    before = await _columns(empty), await _grants(empty)
    assert before[1] - after[1] == set(), "what they may do"
    assert {name: after[0].get(name) for name in before[0]} == before[0]
    tables = {table for table, _ in before[0]}
    obligatory = {
        name
        for name, (_, may_be_null, has_default) in after[0].items()
        if name[0] in tables and name not in before[0] and not (may_be_null or has_default)
    }
    assert obligatory == set(), "they insert rows without it"


async def test_every_table_of_tenants_forces_row_level_security(database: Database) -> None:
    """A table with a tenant column has row-level security, enabled and forced."""
    async with database.as_itself() as connection:
        unprotected = await connection.scalars(
            text(
                "SELECT DISTINCT c.relname "
                "FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid "
                "WHERE c.relkind = 'r' AND (a.attname = 'tenant_id' OR c.relname = 'tenants') "
                "AND NOT (c.relrowsecurity AND c.relforcerowsecurity)"
            )
        )
        assert unprotected.all() == []


async def _become_newer(database: Database, says: str | None) -> None:
    """Let a database be at a revision that nobody knows, with what it says of those before."""
    await upgrade(database)
    async with database.as_itself() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        await connection.execute(text(f"COMMENT ON TABLE alembic_version IS {says or 'NULL'}"))


async def _columns(database: Database) -> dict[tuple[str, str], tuple[str, bool, bool]]:
    """Return of each column its type, whether it may be null, and whether it fills itself."""
    async with database.as_itself() as connection:
        rows = await connection.execute(
            text(
                "SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), "
                "NOT a.attnotnull, a.atthasdef OR a.attidentity <> '' "
                "FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
                "WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v') "
                "AND NOT c.relispartition AND a.attnum > 0 AND NOT a.attisdropped"
            )
        )
        return {(row[0], row[1]): (row[2], row[3], row[4]) for row in rows}


async def _grants(database: Database) -> set[tuple[str, ...]]:
    """Return who may do what with which column."""
    async with database.as_itself() as connection:
        rows = await connection.execute(
            text(
                "SELECT g.grantee, g.table_name, g.column_name, g.privilege_type "
                "FROM information_schema.column_privileges g "
                "JOIN pg_class c ON c.oid = to_regclass(g.table_name) AND NOT c.relispartition "
                "WHERE g.table_schema = 'public'"
            )
        )
        return {tuple(row) for row in rows}


async def _tables(database: Database) -> set[str]:
    async with database.as_itself() as connection:
        return set(await connection.run_sync(lambda sync: inspect(sync).get_table_names()))


def _differences(connection: Connection) -> list[object]:
    # A partition is made of its parent, not declared.
    options = {"include_name": lambda name, kind, parents: not _is_partition(name, parents)}
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))


def _is_partition(name: str | None, parents: dict[str, str | None]) -> bool:
    table = parents.get("table_name") or name or ""
    return table.startswith(("usage_events_", "request_records_"))
