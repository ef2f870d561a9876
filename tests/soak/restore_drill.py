"""A server backed up under load, and restored elsewhere: rows, sums, keys, files, caps.

Clients of two tenants ask again and again. Once the ledger has so many rows, one of them stops and
gets a quota of tokens of which little is left. Then the server is backed up by its own command,
while the other asks, and goes on for a while, so that the two ledgers must differ. The backup is
restored into another data directory and compared there, row by row, before a server starts on it.
That server gets what the first one got, and asks the quota for all that it has left.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import asyncpg
import httpx

from gateway.services.local_access import read_local_access
from gateway.store.diagnosis import running_sockets
from gateway.store.embedded import EmbeddedServers
from gateway.store.postgres_server import DATABASE, SUPERUSER, socket_url
from tests.live_server import SLUICE, Server, sluice_env, start_server
from tests.soak.fleet import FLAGS, completion, until
from tests.soak.steady_load import Caller, SteadyLoad

CAPPED, FREE = "acme", "globex"
_PROMPT, _OUTPUT = 16, 4
TOKENS: Final = _PROMPT + _OUTPUT
_CLIENTS: Final = 6
_LEFT_REQUESTS: Final = 50
_QUIET: Final = {"SLUICE_LOG_REQUESTS": "false"}
_AFTER_S: Final = 1.0
_FILE: Final = b'{"custom_id": "kept", "method": "POST", "url": "/v1/completions"}\n'
_ROWS: Final = "SELECT * FROM usage_events ORDER BY request_id"
_HOURLY: Final = (
    "SELECT coalesce(sum(requests), 0), "
    "coalesce(sum(input_tokens + output_tokens), 0), coalesce(sum(nano_usd), 0) FROM usage_hourly"
)


@dataclass
class Drill:
    """Hold what was seen; `…_apart` are differences that must be 0.

    `missing` are answers that had come before the backup began and have no row in the restored
    ledger, once its server has read the journal; `unlike` are rows that the first server's ledger
    has not, or has otherwise. `journal_rows` came by the journal.
    """

    asked: int = 0
    failed: list[str] = field(default_factory=list)
    rows_dumped: int = 0
    rows_at_end: int = 0
    rows_restored: int = 0
    journal_rows: int = 0
    sums_apart: int = 0
    hourly_apart: int = 0
    missing: int = 0
    unlike: int = 0
    cap: int = 0
    used_at_restore: int = 0
    used_at_end: int = 0
    refused_code: str = ""
    keys_refused: int = 0
    files_unlike: int = 0
    audit_faults: int = -1
    open_modes: list[str] = field(default_factory=list)
    manifest: dict[str, Any] = field(default_factory=dict)

    @property
    def overshoot_tokens(self) -> int:
        return max(0, self.used_at_end - self.cap)

    @property
    def cap_left_tokens(self) -> int:
        return max(0, self.cap - self.used_at_end)


async def restore_drill(directory: Path, *, num_rows: int) -> Drill:
    """Run it; `directory` is the test's own."""
    result = Drill()
    first, second = directory / "first", directory / "second"
    server = await asyncio.to_thread(start_server, first, *FLAGS, **_QUIET)
    try:
        load, answered, file_id = await _back_up_under_load(server, directory, num_rows, result)
        kept = await _rows(await _connect(first))
    finally:
        assert await asyncio.to_thread(server.stop) == 0
    result.rows_at_end = len(kept)
    secret = first / "secrets" / "root"
    options = ("--data-dir", str(second), "--secret", str(secret))
    await _sluice("db", "restore", str(directory / "backup"), *options)
    await _compare_dump(second, kept, result)
    restored = await asyncio.to_thread(start_server, second, *FLAGS, **_QUIET)
    try:
        await _use_restored(restored, server, load, answered, file_id, result)
    finally:
        assert await asyncio.to_thread(restored.stop) == 0
    return result


async def _back_up_under_load(
    server: Server, directory: Path, num_rows: int, result: Drill
) -> tuple[SteadyLoad, set[str], str]:
    """Return the load, the requests answered before the backup began, and a file's id."""
    env = {"SLUICE_DATA_DIR": str(server.data_dir)}
    file_id = await _upload(server)
    load = SteadyLoad([_port(server)])
    connection = await _connect(server.data_dir)
    capped, free = ([caller] * _CLIENTS for caller in _callers(server))
    async with load.running(free[:1], rate=1, streams=free):
        async with load.running(capped[:1], rate=1, streams=capped):

            async def enough() -> bool:
                return await _num_rows(connection) >= num_rows

            await until(enough, timeout_s=60 + num_rows / 5)
        await asyncio.sleep(_AFTER_S)
        result.cap = await _used(connection) + _LEFT_REQUESTS * TOKENS
        quota = {"monthly_tokens": result.cap}
        await _admin(server.data_dir, "PATCH", f"/quotas/tenant/{CAPPED}", quota)
        answered = {one.request_id for one in load.asked if one.is_whole}
        backup = str(directory / "backup")
        said = await _sluice("db", "backup", backup, "--json", **env)
        await asyncio.sleep(_AFTER_S)
    await connection.close()
    result.manifest = json.loads(said)
    result.rows_dumped = result.manifest["ledger"]["rows"]
    result.asked = len(load.asked)
    result.failed = [f"{one.status} {one.code}" for one in load.asked if one.status != 200]
    result.open_modes = await asyncio.to_thread(_open_modes, Path(backup))
    return load, answered, file_id


async def _compare_dump(data_dir: Path, kept: dict[Any, Any], result: Drill) -> None:
    """Compare what was restored with the manifest, and with the first ledger, row by row."""
    with EmbeddedServers(data_dir, valkey=False) as servers:
        connection = await asyncpg.connect(servers.database_url(SUPERUSER))
        rows = {row["request_id"]: tuple(row) for row in await connection.fetch(_ROWS)}
        total = _sums([dict(row) for row in await connection.fetch(_ROWS)])
        hourly = [int(value) for value in await connection.fetchrow(_HOURLY)]
        await connection.close()
    result.rows_restored = len(rows)
    result.unlike = sum(kept.get(request_id) != row for request_id, row in rows.items())
    said = result.manifest["ledger"]
    manifest = [said["rows"], said["input_tokens"] + said["output_tokens"], said["nano_usd"]]
    result.sums_apart = sum(abs(a - b) for a, b in zip(total, manifest, strict=True))
    result.hourly_apart = sum(abs(a - b) for a, b in zip(total, hourly, strict=True))


async def _use_restored(
    server: Server,
    before: Server,
    load: SteadyLoad,
    answered: set[str],
    file_id: str,
    result: Drill,
) -> None:
    """Serve from what was restored, up to the quota's end."""
    connection = await _connect(server.data_dir)

    try:
        await until(lambda: _has(connection, answered), timeout_s=10)
    except TimeoutError:
        result.missing = len(answered - await _ids(connection))
    result.used_at_restore = await _used(connection)
    calls = SteadyLoad([_port(server)])
    for caller in _callers(before):
        result.keys_refused += (await calls.ask(caller, 0)).status != 200
    # Together they would refuse each other the last of it, by what they hold.
    while (last := await calls.ask(_callers(before)[0], 0)).status == 200:
        assert len(calls.asked) < 10 * _LEFT_REQUESTS, "the cap does not hold"
    result.refused_code = last.code

    whole = {one.request_id for one in calls.asked if one.is_whole}
    await until(lambda: _has(connection, whole), timeout_s=20)
    result.journal_rows = await _num_rows(connection) - result.rows_restored - len(whole)
    result.used_at_end = await _used(connection)
    await connection.close()
    async with httpx.AsyncClient(base_url=server.api, headers=_bearer(before)) as client:
        content = (await client.get(f"/files/{file_id}/content")).content
    result.files_unlike = int(content != _FILE)
    verdict = await _admin(server.data_dir, "GET", "/audit/verify")
    result.audit_faults = sum(verdict[f"{what}_seq"] is not None for what in ("broken", "lost"))


def _open_modes(backup: Path) -> list[str]:
    paths = (backup, *backup.rglob("*"))
    return [path.name for path in paths if path.stat().st_mode & 0o077]


async def _admin(data_dir: Path, method: str, path: str, body: Any = None) -> Any:
    access = read_local_access(data_dir)
    assert access is not None, "its server runs"
    headers = {"authorization": f"Bearer {access.local_token}"}
    async with httpx.AsyncClient(timeout=30, headers=headers) as client:
        answer = await client.request(method, f"{access.admin}/admin/v1{path}", json=body)
    assert answer.is_success, answer.text
    return answer.json()


async def _upload(server: Server) -> str:
    async with httpx.AsyncClient(base_url=server.api, headers=_bearer(server)) as client:
        files = {"file": ("kept.jsonl", _FILE)}
        answer = await client.post("/files", data={"purpose": "batch"}, files=files)
        return str(answer.json()["id"])


async def _rows(connection: asyncpg.Connection) -> dict[Any, Any]:
    rows = {row["request_id"]: tuple(row) for row in await connection.fetch(_ROWS)}
    await connection.close()
    return rows


async def _ids(connection: asyncpg.Connection) -> set[str]:
    return {row[0].hex for row in await connection.fetch("SELECT request_id FROM usage_events")}


async def _has(connection: asyncpg.Connection, ids: set[str]) -> bool:
    return ids <= await _ids(connection)


async def _num_rows(connection: asyncpg.Connection) -> int:
    return int(await connection.fetchval("SELECT count(*) FROM usage_events"))


async def _used(connection: asyncpg.Connection) -> int:
    return int(
        await connection.fetchval(
            "SELECT coalesce(sum(input_tokens + output_tokens), 0) FROM usage_events "
            "WHERE tenant_id = (SELECT id FROM tenants WHERE name = $1)",
            CAPPED,
        )
    )


def _sums(rows: list[dict[str, Any]]) -> list[int]:
    tokens = sum(row["input_tokens"] + row["output_tokens"] for row in rows)
    return [len(rows), tokens, sum(row["nano_usd"] for row in rows)]


async def _connect(data_dir: Path) -> asyncpg.Connection:
    sockets = running_sockets(data_dir)
    assert sockets is not None, "its server runs"
    return await asyncpg.connect(socket_url(sockets, SUPERUSER, DATABASE))


def _callers(server: Server) -> list[Caller]:
    keys = {entry["tenant"]: entry["key"] for entry in server.banner["keys"]}
    body = completion(_PROMPT, _OUTPUT)
    return [Caller(name, keys[name], body) for name in (CAPPED, FREE)]


def _port(server: Server) -> int:
    return httpx.URL(server.api).port or 0


def _bearer(server: Server) -> dict[str, str]:
    return {"authorization": f"Bearer {server.key}"}


async def _sluice(*arguments: str, **env: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(str(SLUICE), *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=sluice_env(**env),
        # No sluice.toml of anybody's.
        cwd="/",
    )
    out, told = await process.communicate()
    assert process.returncode == 0, told.decode()
    return out.decode()
