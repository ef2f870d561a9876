"""PostgreSQL that is starting or full under two gateways that serve, and under one that starts."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import httpx
import pytest

from gateway.credentials import KEY_PREFIX, new_token
from gateway.store.postgres_server import DATABASE, LOGIN
from gateway.store.secrets import open_secrets
from tests.faults.postgres import FULL, STARTING, PostgresProxy
from tests.faults.replica import is_ready
from tests.passable import passable_directory
from tests.soak.fleet import Fleet, completion, running_fleet, until

CODES = (STARTING, FULL)
KNOWN, UNKNOWN = 30, 5
GRACE_S = 4.0
# Asked every five seconds, the store is known to be silent for as long as the grace by then.
UNREADY_S = GRACE_S + 5.0
# Long enough that it still runs when the database goes.
LONG = completion(16, 150)
LONG_RUNS = "SELECT count(*) FROM usage_events WHERE output_tokens = 150"


@dataclass
class Refused:
    """Hold what was seen while PostgreSQL answered with one code; statuses of two gateways."""

    known: Counter[int] = field(default_factory=Counter)
    unknown: Counter[int] = field(default_factory=Counter)
    strangers: Counter[int] = field(default_factory=Counter)
    unready_s: float = float("inf")
    keyed: bytes = b""
    retried_here: bytes = b""
    retried_elsewhere: int = 0
    retried_later: bytes = b""
    rows: int = 0


@dataclass
class Killed:
    """Hold what came of a keyed request whose gateway was killed before its bill was stored."""

    keyed: bytes = b""
    while_dead: int = 0
    probes: set[bool] = field(default_factory=set)
    retried: bytes = b""
    rows: int = 0


@dataclass
class Seen:
    refused: dict[str, Refused]
    killed: Killed
    logs: str


@dataclass
class Ground:
    """Hold two gateways that reach PostgreSQL through one proxy."""

    fleet: Fleet
    proxy: PostgresProxy
    client: httpx.AsyncClient

    async def ask(
        self, at: int, body: bytes, *, name: str | None = None, key: str | None = None
    ) -> httpx.Response:
        """Ask one gateway; with a `name`, by that `Idempotency-Key`."""
        headers = {"authorization": f"Bearer {key or self.fleet.key}"}
        if name is not None:
            headers["idempotency-key"] = name
        url = f"http://127.0.0.1:{self.fleet.replicas[at].port}/v1/completions"
        return await self.client.post(url, content=body, headers=headers)

    async def refuse_under(self, name: str, sqlstate: str) -> httpx.Response:
        """Have a keyed request of the first gateway run, refuse, and return its answer."""
        asked = asyncio.create_task(self.ask(0, LONG, name=name))
        query = "SELECT count(*) FROM idempotency WHERE idempotency_key = $1"
        while not await self.fleet.database.fetchval(query, name):
            await asyncio.sleep(0.005)
        self.proxy.refuse(sqlstate)
        return await asked

    async def retry(self, at: int, name: str) -> bytes:
        """Ask until there is an answer; it must be one that was given before."""
        async with asyncio.timeout(30):
            while (answer := await self.ask(at, LONG, name=name)).status_code != 200:
                assert answer.status_code in (409, 503), answer.text
                await asyncio.sleep(0.1)
        assert answer.headers["idempotent-replayed"] == "true"
        return answer.content

    async def rows_of(self, answer: httpx.Response) -> int:
        """Return how many long runs are in the ledger, once that of an answer is."""
        run = UUID(hex=answer.json()["id"].removeprefix("cmpl-"))
        query = "SELECT count(*) FROM usage_events WHERE request_id = $1"
        database = self.fleet.database
        async with asyncio.timeout(30):
            while not await database.fetchval(query, run):
                await asyncio.sleep(0.05)
        return await self.long_runs()

    async def long_runs(self) -> int:
        return int(await self.fleet.database.fetchval(LONG_RUNS))


@asynccontextmanager
async def ground(directory: Path) -> AsyncIterator[Ground]:
    url = f"postgresql://{LOGIN}@/{DATABASE}?host={directory / 'stores' / 'sockets'}"
    # No connection is kept: one whose request fails may be closed by its server.
    no_reuse = httpx.Limits(max_keepalive_connections=0)
    async with (
        PostgresProxy(url) as proxy,
        running_fleet(
            directory, size=2, database_url=proxy.url, SLUICE_AUTH_GRACE_S=str(GRACE_S)
        ) as fleet,
        httpx.AsyncClient(timeout=60, limits=no_reuse) as client,
    ):
        yield Ground(fleet, proxy, client)


async def see_refusals(on: Ground, sqlstate: str) -> Refused:
    seen, name = Refused(), f"order-{sqlstate}"
    for at in (0, 1):
        assert (await on.ask(at, completion(8, 2))).status_code == 200
    rows_before = await on.long_runs()
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    keyed = await on.refuse_under(name, sqlstate)
    assert keyed.status_code == 200, keyed.text
    seen.keyed = keyed.content
    for number in range(KNOWN):
        seen.known[(await on.ask(number % 2, completion(8, 2))).status_code] += 1
    secrets = open_secrets(on.fleet.replicas[0].data_dir)
    for number in range(UNKNOWN):
        unknown, stranger = secrets.issue(KEY_PREFIX).text, new_token(KEY_PREFIX).text
        answer = await on.ask(number % 2, completion(8, 2), key=unknown)
        seen.unknown[answer.status_code] += 1
        answer = await on.ask(number % 2, completion(8, 2), key=stranger)
        seen.strangers[answer.status_code] += 1
    seen.retried_here = await on.retry(0, name)
    seen.retried_elsewhere = (await on.ask(1, LONG, name=name)).status_code

    async def are_unready() -> bool:
        ready = [await is_ready("127.0.0.1", replica.port) for replica in on.fleet.replicas]
        return not any(ready)

    await until(are_unready, timeout_s=60)
    seen.unready_s = loop.time() - began_s
    on.proxy.relent()
    seen.retried_later = await on.retry(1, name)
    seen.rows = await on.rows_of(keyed) - rows_before
    return seen


async def see_a_kill(on: Ground) -> Killed:
    """Kill the first gateway while its journal holds a keyed answer, and start it again."""
    seen, name = Killed(), "order-killed"
    replica, before = on.fleet.replicas[0], await on.long_runs()
    keyed = await on.refuse_under(name, STARTING)
    seen.keyed = keyed.content
    replica.send(signal.SIGKILL)
    await replica.wait_ended()
    log = Path(f"{replica.data_dir}.log")

    def waits() -> bool:
        return "the start waits for the database" in log.read_text()

    replica.start()
    async with asyncio.timeout(60):
        while not waits():
            await asyncio.sleep(0.05)
    seen.probes.add(await is_ready("127.0.0.1", replica.port))
    assert replica.is_running
    on.proxy.relent()
    seen.while_dead = (await on.ask(1, LONG, name=name)).status_code
    await replica.wait_ready()
    seen.retried = await on.retry(1, name)
    seen.rows = await on.rows_of(keyed) - before
    return seen


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    """Go through all of it with one fleet, as starting one takes as long."""
    with passable_directory() as directory:

        async def go_through() -> Seen:
            async with ground(directory) as on:
                refused = {code: await see_refusals(on, code) for code in CODES}
                killed = await see_a_kill(on)
            logs = "".join(log.read_text() for log in directory.glob("gateway-*.log"))
            return Seen(refused, killed, logs)

        yield asyncio.run(go_through())


@pytest.mark.parametrize("code", CODES)
def test_known_keys_are_served_and_others_told_to_wait(seen: Seen, code: str) -> None:
    """Within the grace every known key gets its answer; one that is not known gets a 503, never a
    500, unless it cannot be ours: then it is refused as ever.
    """
    assert seen.refused[code].known == {200: KNOWN}
    assert seen.refused[code].unknown == {503: UNKNOWN}
    assert seen.refused[code].strangers == {401: UNKNOWN}


@pytest.mark.parametrize("code", CODES)
def test_readiness_ends_with_the_grace(seen: Seen, code: str) -> None:
    """A database that answers, but only that it cannot, is a silent one."""
    assert seen.refused[code].unready_s < UNREADY_S + 5


@pytest.mark.parametrize("code", CODES)
def test_a_keyed_request_is_billed_once_and_answered_alike(seen: Seen, code: str) -> None:
    """Its retry gets the same bytes: here at once, elsewhere when the database is back."""
    refused = seen.refused[code]
    assert refused.retried_here == refused.keyed
    assert refused.retried_elsewhere == 503
    assert refused.retried_later == refused.keyed
    assert refused.rows == 1


def test_a_gateway_killed_before_its_bill_was_stored_answers_from_its_journal(seen: Seen) -> None:
    """A retry elsewhere waits for the killed one's start, then gets the same bytes; one bill."""
    assert seen.killed.while_dead in (409, 503)
    assert seen.killed.retried == seen.killed.keyed
    assert seen.killed.rows == 1


def test_a_start_waits_and_says_for_what(seen: Seen) -> None:
    """It goes on once the database is there; until then it is not ready, and its log says why."""
    assert seen.killed.probes == {False}
    assert "the start waits for the database: PostgreSQL is starting up (57P03" in seen.logs


def test_what_a_server_says_of_itself_is_no_fault_of_ours(seen: Seen) -> None:
    """Logs hold lines, no tracebacks."""
    assert "Traceback" not in seen.logs
