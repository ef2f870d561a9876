"""`sluice requests` and `sluice top`, run against a running admin API."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from sqlalchemy import text

from gateway.domain.request_record import RequestRecord
from gateway.settings import Settings
from gateway.store.database import Database
from gateway.store.request_records import SqlRequestRecords
from tests.gateway.cli.admin_server import Server
from tests.gateway.request_records import request_record


async def _recorded(settings: Settings) -> RequestRecord:
    """Have a record of acme's be there."""
    assert settings.database_url is not None
    database = Database(settings.database_url.get_secret_value())
    async with database.platform() as connection:
        [row] = await connection.execute(
            text("SELECT id, organisation_id FROM tenants WHERE name = 'acme'")
        )
    details = {
        "sentence": "2 of its 2.5 s it waited for a slot.",
        "contributions": [{"cause": "queue", "seconds": 2.0}],
        "phases": [
            {"name": "sluice.auth", "begin_s": 0.0, "end_s": 0.1, "detail": {"cache": "db"}}
        ],
        "remarks": [{"name": "sluice.quota.extended", "at_s": 2.2, "detail": {}}],
        "generations": [
            {
                "queued_s": 0.1,
                "num_ahead": 3,
                "admitted_s": 2.1,
                "first_token_s": None,
                "ended_s": 2.5,
                "waits_s": {"slots": 2.0},
                "rests_s": {},
                "num_chunks": 1,
                "num_output_tokens": 4,
                "preemptions": [{"at_s": 2.3, "cause": "band", "resumed_s": 2.4}],
            }
        ],
        "route": "/v1/chat/completions",
    }
    record = request_record(
        tenant_id=row.id, organisation_id=row.organisation_id, at=datetime.now(UTC), details=details
    )
    await SqlRequestRecords(database).insert([record])
    await database.close()
    return record


def test_a_request_is_listed_and_explained(server: Server, settings: Settings) -> None:
    """The sentence first, then seconds by cause, then what happened when; one that is not there
    ends with 3.
    """
    assert "No request is kept" in server.sluice("requests", "list").stderr
    record = asyncio.run(_recorded(settings))
    name = f"req_{record.request_id.hex}"
    head, row = server.lines("requests", "list", "--tenant", "acme", "--cause", "queue", "--missed")
    assert head.split("\t")[:4] == ["at", "id", "tenant", "status"]
    assert row.split("\t")[1:4] == [name, "acme", "200"]
    assert server.ask("requests", "list", "--all", "--status", "200")[0]["id"] == name
    assert server.ask("requests", "list", "--kept") == []
    lines = server.lines("requests", "show", name)
    assert lines[0] == "2 of its 2.5 s it waited for a slot."
    assert [" ".join(line.split()) for line in lines[1:10]] == [
        "2.000 s queue",
        "0.000 sluice.auth 0.100 s cache=db",
        "0.100 queued behind 3",
        "2.100 admitted after slots 2.000 s",
        "2.200 sluice.quota.extended",
        "2.300 preempted: band",
        "2.400 resumed",
        "2.500 4 tokens",
        f"id {name}",
    ]
    assert "tenant\tacme" in lines
    assert server.ask("requests", "show", record.request_id.hex)["details"] == record.details
    assert server.sluice("requests", "show", f"req_{'0' * 32}").returncode == 3
    assert server.sluice("requests", "list", "--cause", "weather").returncode == 2


def test_top_shows_one_view(server: Server) -> None:
    """As text no wider than 80 and no longer than 24, and as the JSON that the server answers."""
    lines = server.lines("top", "--once")
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("acme") for line in lines)
    [view] = [server.ask("top", "--once")]
    assert set(view) == {
        "at",
        "window_s",
        "models",
        "bands",
        "ended",
        "first_tokens",
        "fairness",
        "shares",
        "slowest",
    }
    assert view["shares"][0] | {"received": 1.0} == {
        "model": "sim",
        "tenant": "acme",
        "band": "default",
        "weight": 2.0,
        "entitled": 1.0,
        "received": 1.0,
        "queued": 1,
        "running": 0,
    }
    assert view["bands"] == [{"band": "default", "queued": 1, "queued_tokens": 40, "running": 0}]
    assert server.sluice("top", "--interval", "0.1").returncode == 2
