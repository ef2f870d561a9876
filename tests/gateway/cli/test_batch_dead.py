"""`sluice batch dead`, against a real admin API."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from sqlalchemy import text

from gateway.settings import Settings
from gateway.store.database import Database
from tests.gateway.cli.admin_server import Server

_BATCH = """
    INSERT INTO batches (id, tenant_id, key_id, endpoint, state, input_file_id,
        completion_window_s, num_items, expires_at)
    SELECT :id, id, :id, '/v1/completions', 'in_progress', :id, 60, 3, now() + interval '1 hour'
    FROM tenants WHERE name = 'acme'
"""
_ITEMS = """
    INSERT INTO batch_items (batch_id, line, tenant_id, custom_id, place, offset_bytes, size_bytes,
        num_deaths, dead_at, run_after)
    SELECT id, line, tenant_id, 'item-' || line, line, 0, 1, 3, now(), 'infinity'
    FROM batches, generate_series(1, 3) AS line WHERE id = :id
"""


async def _dead_batch(settings: Settings) -> str:
    """Have a batch of acme's be there whose three items killed their workers."""
    assert settings.database_url is not None
    database, batch_id = Database(settings.database_url.get_secret_value()), uuid4()
    async with database.platform() as connection:
        for statement in (_BATCH, _ITEMS):
            await connection.execute(text(statement), {"id": batch_id})
    await database.close()
    return f"batch_{batch_id.hex}"


def test_an_operator_lists_and_requeues(server: Server, settings: Settings) -> None:
    """Lines are printed one by one; what does not wait any longer is not found."""
    assert server.sluice("batch", "dead", "list").stderr == "Nothing waits for an operator.\n"
    batch = asyncio.run(_dead_batch(settings))
    head, *rows = server.lines("batch", "dead", "list", "--tenant", "acme")
    assert head == "tenant\tbatch\tline\tcustom_id\tdeaths\tsince"
    assert [row.split("\t")[:5] for row in rows] == [
        ["acme", batch, str(line), f"item-{line}", "3"] for line in (1, 2, 3)
    ]
    assert server.lines("batch", "dead", "requeue", batch, "--line", "3", "--line", "1") == [
        "1",
        "3",
    ]
    assert [one["line"] for one in server.ask("batch", "dead", "list", "--batch", batch)] == [2]
    assert server.ask("batch", "dead", "requeue", batch) == {"batch": batch, "lines": [2]}
    for arguments in ((batch,), (batch, "--line", "2"), (f"batch_{'0' * 32}",)):
        done = server.sluice("batch", "dead", "requeue", *arguments)
        assert (done.returncode, done.stdout) == (3, "")
