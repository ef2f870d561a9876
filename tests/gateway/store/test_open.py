"""Opening the store: the first start, the later ones, and what stops them."""

from __future__ import annotations

import asyncio
import shutil
import signal
import stat
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import func, select

from gateway.credentials import ADMIN_PREFIX, KEY_PREFIX, new_token, parse_token
from gateway.errors import DataDirectoryInUse, StartupFailed
from gateway.settings import Settings
from gateway.store import Store, open_store
from gateway.store.database import database_place
from gateway.store.diagnosis import describe_redis
from gateway.store.placement import installed_programs
from gateway.store.tables import admin_tokens, key_secrets, keys
from gateway.store.valkey_server import valkey_answers

pytestmark = pytest.mark.anyio


async def test_the_first_start_makes_two_tenants_with_a_key_each(settings: Settings) -> None:
    """An organisation, acme and globex, a key each and an admin token, told once."""
    async with open_store(settings) as store:
        first = store.first_start
        assert first is not None
        assert parse_token(first.admin_token, ADMIN_PREFIX) is not None
        assert [issued.key.tenant for issued in first.keys] == ["acme", "globex"]
        assert all(parse_token(issued.token, KEY_PREFIX) is not None for issued in first.keys)
        organisation = await store.organisations.default()
        assert organisation.name == "default"
        tenants = await store.tenants.list(organisation.id)
        assert [(tenant.name, tenant.weight) for tenant in tenants] == [
            ("acme", 1.0),
            ("globex", 1.0),
        ]
    async with open_store(settings) as store:
        assert store.first_start is None


async def test_the_embedded_servers_serve_a_first_start(data_dir: Path) -> None:
    """Without URLs the store starts its own servers, and finds its data again."""
    settings = Settings(data_dir=data_dir)
    async with open_store(settings) as store:
        assert store.first_start is not None
        assert await store.redis.ping()
    async with open_store(settings) as store:
        assert store.first_start is None
        assert (await store.organisations.default()).name == "default"


async def test_no_token_is_stored(store: Store) -> None:
    """The database holds MACs alone: no column of any row contains a token or its secret."""
    assert store.first_start is not None
    tokens = [store.first_start.admin_token, *(issued.token for issued in store.first_start.keys)]
    async with store.database.platform() as connection:
        rows = [
            str(row)
            for table in (keys, key_secrets, admin_tokens)
            for row in await connection.execute(select(table))
        ]
    assert len(rows) == 5
    assert not [row for row in rows for token in tokens if token[-38:-6] in row]


async def test_given_tokens_are_taken(settings: Settings) -> None:
    """A headless install chooses organisation, tenants, keys and the admin token."""
    given = [new_token(KEY_PREFIX).text for _ in range(3)]
    admin = new_token(ADMIN_PREFIX).text
    chosen = settings.model_copy(
        update={
            "init_organisation": "lab",
            "init_tenants": ("one", "two", "three"),
            "init_keys": tuple(map(SecretStr, given)),
            "init_admin_token": SecretStr(admin),
        }
    )
    async with open_store(chosen) as store:
        assert store.first_start is not None
        assert store.first_start.admin_token == admin
        assert [issued.token for issued in store.first_start.keys] == given
        assert (await store.organisations.default()).name == "lab"
    async with open_store(chosen) as store:
        assert store.first_start is None


async def test_one_key_without_tenants_is_of_one_tenant(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """`--api-key` alone makes the first tenant; at a later start, another key is told as unused."""
    first, later = (SecretStr(new_token(KEY_PREFIX).text) for _ in range(2))
    async with open_store(settings.model_copy(update={"init_keys": (first,)})) as store:
        assert store.first_start is not None
        assert [one.key.tenant for one in store.first_start.keys] == ["acme"]
    async with open_store(settings.model_copy(update={"init_keys": (first,)})):
        assert "SLUICE_INIT_KEYS" not in caplog.text
    async with open_store(settings.model_copy(update={"init_keys": (later,)})):
        assert "count at the first start alone; sluice keys create" in caplog.text
    assert later.get_secret_value() not in caplog.text


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"init_keys": (SecretStr("sluice_live_short"),) * 2}, "SLUICE_INIT_KEYS holds a token"),
        (
            {
                "init_tenants": ("a", "b"),
                "init_keys": (SecretStr(new_token(KEY_PREFIX).text),),
            },
            "1 keys for the 2 tenants",
        ),
        (
            {"init_keys": (SecretStr(new_token(KEY_PREFIX).text),) * 2},
            "gives two tenants the same key",
        ),
        ({"init_keys": (SecretStr(f"{KEY_PREFIX}{'a' * 12}{'b' * 32}14DJ4p"),)}, "nobody drew"),
        ({"init_tenants": ("a", "a")}, "names a tenant twice"),
        ({"init_tenants": ("A b",)}, "SLUICE_INIT_TENANTS"),
        ({"init_admin_token": SecretStr(new_token(KEY_PREFIX).text)}, "SLUICE_INIT_ADMIN_TOKEN"),
    ],
)
async def test_wrong_first_values_stop_the_start(
    settings: Settings, update: dict[str, object], message: str
) -> None:
    """A malformed or unpaired value is one line that names the variable and shows no token."""
    with pytest.raises(StartupFailed, match=message) as failed:
        async with open_store(settings.model_copy(update=update)):
            pass
    assert "sluice_live_s" not in str(failed.value)


async def test_a_database_that_is_away_is_named_soon(settings: Settings) -> None:
    """Within seconds the start ends with host and port, and without the password."""
    url = SecretStr("postgresql://sluice:hunter2@127.0.0.1:1/sluice")
    began_s = time.monotonic()
    with pytest.raises(
        StartupFailed, match=r"database at 127.0.0.1:1 .*SLUICE_DATABASE_URL"
    ) as failed:
        async with open_store(settings.model_copy(update={"database_url": url})):
            pass
    assert time.monotonic() - began_s < 10
    assert "hunter2" not in str(failed.value)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://u:p@db/d", "db:5432"),
        ("postgresql+asyncpg://u:p@db:6432/d?ssl=on", "db:6432"),
        ("postgresql://[::1]/d", "[::1]:5432"),
        ("postgresql://u@one:1,two/d", "one:1,two:5432"),
        ("postgresql:///d?host=/run/pg&user=u", "/run/pg"),
    ],
)
def test_the_place_of_a_database_has_no_password(url: str, place: str) -> None:
    """Host and port as the URL has them, PostgreSQL's own port where it has none."""
    assert database_place(url) == place


async def test_gateways_that_start_together_first_start_once(
    settings: Settings, tmp_path: Path
) -> None:
    """Of four processes with one secret and one empty database, one makes the tenants."""
    secret = bytes(range(32))
    together = []
    for number in range(4):
        directory = tmp_path / f"gateway-{number}"
        (directory / "secrets").mkdir(parents=True)
        (directory / "secrets" / "root").write_bytes(secret)
        (directory / "secrets" / "root").chmod(0o600)
        together.append(settings.model_copy(update={"data_dir": directory}))

    async def start(one: Settings) -> bool:
        async with open_store(one) as store:
            return store.first_start is not None

    made = await asyncio.gather(*map(start, together))
    assert sorted(made) == [False, False, False, True]


async def test_a_database_of_another_secret_is_refused(settings: Settings, tmp_path: Path) -> None:
    """A lost root secret is said at the start, instead of a 401 for every key."""
    async with open_store(settings):
        pass
    other = settings.model_copy(update={"data_dir": tmp_path / "other"})
    with pytest.raises(StartupFailed, match="another root secret"):
        async with open_store(other):
            pass


async def test_a_secret_that_others_may_read_is_refused(settings: Settings) -> None:
    """The secret is made with mode 0600, and a start refuses one that was opened up."""
    async with open_store(settings):
        pass
    secret = settings.data_dir / "secrets" / "root"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    secret.chmod(0o644)
    with pytest.raises(StartupFailed, match="chmod 600"):
        async with open_store(settings):
            pass


async def test_a_damaged_secret_is_refused(settings: Settings) -> None:
    """A truncated secret is not silently another secret, nor is one that nobody drew."""
    async with open_store(settings):
        pass
    for damaged in (b"short", bytes(32)):
        (settings.data_dir / "secrets" / "root").write_bytes(damaged)
        with pytest.raises(StartupFailed, match="damaged"):
            async with open_store(settings):
                pass


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"redis_url": SecretStr("unix:///nonexistent/valkey.sock")}, "Redis does not answer"),
        ({"redis_url": SecretStr("http://localhost")}, "SLUICE_REDIS_URL"),
        ({"database_url": SecretStr("mysql://localhost")}, "SLUICE_DATABASE_URL"),
    ],
)
async def test_a_wrong_url_stops_the_start(
    settings: Settings, update: dict[str, object], message: str
) -> None:
    """A store that is not there fails the start with one line."""
    with pytest.raises(StartupFailed, match=message):
        async with open_store(settings.model_copy(update=update)):
            pass


async def test_a_data_directory_has_one_process(settings: Settings) -> None:
    """The lock holds even where both stores are somebody else's servers."""
    async with open_store(settings):
        with pytest.raises(DataDirectoryInUse):
            async with open_store(settings):
                pass


async def test_a_cancelled_start_leaves_the_directory_free(data_dir: Path) -> None:
    """Ctrl-C in the middle of a start stops what was started."""
    settings = Settings(data_dir=data_dir)

    async def start() -> None:
        async with open_store(settings):
            pass

    task = asyncio.create_task(start())
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with open_store(settings) as store, store.database.platform() as connection:
        assert await connection.scalar(select(func.count()).select_from(keys)) == 2


@asynccontextmanager
async def a_redis(cwd: Path, *options: str) -> AsyncIterator[tuple[str, Process]]:
    """Run a server of a test's own; give its URL and its process."""
    sockets = Path(tempfile.mkdtemp(prefix="sluice-"))
    path = sockets / "redis.sock"
    server = await asyncio.create_subprocess_exec(
        installed_programs().valkey,
        *("--port", "0", *options),
        *("--unixsocket", path, "--dir", cwd, "--save", ""),
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 20
        while not valkey_answers(path):
            assert server.returncode is None
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        yield f"unix://{path}", server
    finally:
        server.terminate()
        await server.wait()
        shutil.rmtree(sockets)


async def test_a_redis_cluster_is_refused(settings: Settings, tmp_path: Path) -> None:
    """A Redis that spreads its keys fails the start; the doctor knows it for what it is."""
    async with a_redis(tmp_path, "--cluster-enabled", "yes", "--cluster-port", "1") as (url, _):
        with pytest.raises(StartupFailed, match="Cluster"):
            async with open_store(settings.model_copy(update={"redis_url": SecretStr(url)})):
                pass
        assert (await describe_redis(url)).is_cluster


async def test_a_redis_that_cannot_keep_counters_is_told(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A start warns of one that evicts, and of one that takes no writes; the doctor knows both."""
    unfit = ("--maxmemory-policy", "allkeys-lru", "--replicaof", "127.0.0.1 1")
    async with a_redis(tmp_path, *unfit) as (url, _):
        async with open_store(settings.model_copy(update={"redis_url": SecretStr(url)})):
            pass
        state = await describe_redis(url)
    assert "evicts (allkeys-lru)" in caplog.text
    assert "is a replica" in caplog.text
    assert (state.eviction, state.is_replica) == ("allkeys-lru", True)


async def test_a_start_waits_for_a_redis_that_is_slow(settings: Settings, tmp_path: Path) -> None:
    """One that answers after more than a request's second does not fail the start."""
    async with a_redis(tmp_path) as (url, server):
        server.send_signal(signal.SIGSTOP)
        asyncio.get_running_loop().call_later(1.5, server.send_signal, signal.SIGCONT)
        async with open_store(settings.model_copy(update={"redis_url": SecretStr(url)})):
            pass
