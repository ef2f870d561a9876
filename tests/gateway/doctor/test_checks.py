"""The doctor's checks, one by one: what each calls well, tolerable and broken."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.app.model_plan import planned_models
from gateway.doctor.finding import Finding, Level
from gateway.doctor.machine import check_memory, check_open_files, check_processor, kv_bytes
from gateway.doctor.model import check_model
from gateway.doctor.place import (
    check_admin_address,
    check_data_dir,
    check_files,
    check_port,
    find_running,
    lock_holder,
)
from gateway.doctor.requirements import check_packages, satisfies
from gateway.doctor.stores import check_stores, judge_database, judge_redis
from gateway.settings import Settings
from gateway.store.diagnosis import DatabaseState, RedisState
from gateway.store.migrate import HEAD, Schema

NO_STORES = {
    "database_url": "postgresql://nobody@127.0.0.1:1/none",
    "redis_url": "redis://127.0.0.1:1",
}


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]


def settings_of(tmp_path: Path, **fields: object) -> Settings:
    return Settings(**({"data_dir": tmp_path / "data"} | fields))  # type: ignore[arg-type]


def is_mendable(finding: Finding) -> bool:
    """Tell whether a finding that is not well says what to do."""
    return (finding.level is Level.OK) == (finding.mend is None)


@pytest.mark.parametrize(
    ("version", "bounds", "expected"),
    [
        ("2.13.0+cpu", ">=2.11,<2.14", True),
        ("2.14.0", "<2.14,>=2.11", False),
        ("2.10.1", ">=2.11", False),
        ("0.6.0", "==0.6.0", True),
        ("0.6", "==0.6.0", True),
        ("1.30rc1", "!=1.30", False),
        ("7", "", True),
    ],
)
def test_versions_are_compared_as_numbers(version: str, bounds: str, expected: bool) -> None:
    """Bounds hold for releases, whatever follows them."""
    assert satisfies(version, bounds) is expected


def test_a_package_out_of_range_is_broken() -> None:
    """A package that is missing or of a wrong version is named with the command that mends it."""
    assert [f.level for f in check_packages()] == [Level.OK]
    old, missing = check_packages(["numpy>=99", "sluice-none>=1", "torch<1; extra == 'gpu'"])
    assert (old.level, missing.level) == (Level.BROKEN, Level.BROKEN)
    assert "numpy" in old.found
    assert old.mend is not None
    assert old.mend.endswith("-m pip install 'numpy>=99'")
    assert "sluice-none is not installed" in missing.found


def test_a_processor_without_wide_vectors_is_a_warning() -> None:
    """AVX2 is the least that steps are fast with; what there is beyond is named."""
    assert check_processor(frozenset({"sse2"}), machine="x86_64").level is Level.WARNING
    assert check_processor(frozenset(), machine="aarch64").level is Level.OK
    wide = check_processor(frozenset({"avx2", "avx512f", "amx_bf16"}), machine="x86_64")
    assert wide.level is Level.OK
    assert wide.found.endswith("avx2, avx512f, amx_bf16")


def test_memory_must_hold_weights_and_cache(tmp_path: Path) -> None:
    """More than the machine has is broken; a simulated engine needs nothing."""
    settings = settings_of(tmp_path)
    assert check_memory(settings, 1 << 60, is_running=False).level is Level.BROKEN
    assert check_memory(settings, 1 << 60, is_running=True).level is Level.BROKEN
    simulated = settings_of(tmp_path, engine="simulated")
    assert check_memory(simulated, 1 << 60, is_running=False).level is Level.OK
    assert check_memory(settings, 1 << 20, is_running=False).level is Level.OK


def test_each_of_several_models_is_checked(tmp_path: Path) -> None:
    """By its name: what is there, what is not, and its share of the memory."""
    tables = [
        {"directory": "demo", "kv_share": 0.25},
        {"directory": "demo", "role": "embedding"},
        {"directory": tmp_path / "none", "name": "lost"},
    ]
    settings = settings_of(tmp_path, models=tables, kv_cache_bytes=1 << 20)
    planned = planned_models(settings)
    found = [check_model(each)[0] for each in planned]
    assert [(one.name, one.level) for one in found] == [
        ("model sluice-demo", Level.OK),
        ("model sluice-demo-embedding", Level.OK),
        ("model lost", Level.BROKEN),
    ]
    assert is_mendable(found[2])
    assert list(map(kv_bytes, planned)) == [1 << 18, 3 << 17, 3 << 17]


def test_connections_must_fit_the_open_files(tmp_path: Path) -> None:
    """What the hard limit allows is well, whatever the soft one is; below it there are fewer."""
    settings = settings_of(tmp_path, max_connections=1000)
    assert check_open_files(settings, (64, 4096)).level is Level.OK
    assert check_open_files(settings, (64, -1)).level is Level.OK
    few = check_open_files(settings, (64, 1024))
    assert (few.level, is_mendable(few)) == (Level.WARNING, True)
    assert "576 connections at most" in few.found
    assert few.mend is not None
    assert "1768" in few.mend


def test_a_data_directory_is_private(tmp_path: Path) -> None:
    """Others may neither look into it nor read its secret."""
    data_dir = tmp_path / "data"
    assert check_data_dir(data_dir).level is Level.OK
    assert not data_dir.exists()
    data_dir.mkdir(mode=0o700)
    assert check_data_dir(data_dir).level is Level.OK
    data_dir.chmod(0o755)
    open_to_all = check_data_dir(data_dir)
    assert (open_to_all.level, open_to_all.mend) == (Level.WARNING, f"chmod 700 {data_dir}")
    secret = data_dir / "secrets" / "root"
    secret.parent.mkdir()
    secret.touch(mode=0o644)
    secret.chmod(0o644)
    leaky = check_data_dir(data_dir)
    assert (leaky.level, leaky.mend) == (Level.BROKEN, f"chmod 600 {secret}")


def test_a_data_directory_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's directory is broken."""
    another = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: another)
    assert check_data_dir(tmp_path).level is Level.BROKEN


def test_files_elsewhere_have_a_directory_to_be_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelt or closed directory of tenants' files is broken; the start would not tell."""
    assert check_files(None) == check_files("s3://bucket/files") == []
    (there := tmp_path / "there").mkdir()
    (file := tmp_path / "file").touch()
    for directory in (there, tmp_path / "new"):
        assert [found.level for found in check_files(str(directory))] == [Level.OK], directory
    for directory in (file, tmp_path / "misspelt" / "files"):
        [found] = check_files(str(directory))
        assert (found.level, "SLUICE_FILE_STORAGE" in str(found.mend)) == (Level.BROKEN, True)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert [found.level for found in check_files(str(there))] == [Level.BROKEN]


def test_a_port_is_free_or_our_own(taken_port: int) -> None:
    """A port that another program has is broken, our own server's is well."""
    host, own = "127.0.0.1", f"http://127.0.0.1:{taken_port}/v1"
    assert check_port("port", host, taken_port, None).level is Level.BROKEN
    assert check_port("port", host, taken_port, "http://127.0.0.1:1/v1").level is Level.BROKEN
    assert check_port("port", host, taken_port, own).level is Level.OK
    assert check_port("port", host, taken_port, None, is_starting=True).level is Level.OK
    assert check_port("port", host, 0, None).level is Level.OK


@pytest.mark.parametrize(
    ("host", "is_allowed", "level"),
    [
        ("127.0.0.1", False, Level.OK),
        ("localhost", False, Level.OK),
        ("::1", False, Level.OK),
        ("0.0.0.0", False, Level.BROKEN),
        ("::", False, Level.BROKEN),
        ("", False, Level.BROKEN),
        ("192.0.2.1", False, Level.BROKEN),
        ("192.0.2.1", True, Level.WARNING),
        ("no-such-host.invalid", True, Level.BROKEN),
    ],
)
def test_an_admin_address_that_others_reach_must_be_meant(
    tmp_path: Path, host: str, is_allowed: bool, level: Level
) -> None:
    """Without TLS the admin API is for this machine, unless an operator has said otherwise."""
    settings = settings_of(tmp_path, admin_host=host, admin_allow_plain=is_allowed)
    finding = check_admin_address(settings)
    assert finding.level is level
    assert is_mendable(finding)


def test_a_held_directory_is_seen_without_touching_its_lock(tmp_path: Path) -> None:
    """A process that holds the lock and announces no server is starting or ending."""
    assert lock_holder(tmp_path) is None
    assert find_running(tmp_path)[1].level is Level.OK
    with (tmp_path / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert lock_holder(tmp_path) is not None
        access, finding = find_running(tmp_path)
    assert access is None
    assert finding.level is Level.WARNING
    assert lock_holder(tmp_path) is None


@pytest.mark.parametrize(
    ("state", "level"),
    [
        (DatabaseState("18.4", "owner", False, Schema(HEAD), 97, False), Level.OK),
        (DatabaseState("18.4", "owner", False, Schema(HEAD), 22, False), Level.OK),
        (DatabaseState("18.4", "owner", False, Schema(HEAD), 97, True), Level.WARNING),
        (DatabaseState("18.4", "owner", False, Schema(HEAD), 21, False), Level.WARNING),
        (DatabaseState("13.2", "owner", False, Schema(HEAD), 97, False), Level.BROKEN),
        (DatabaseState("17.1", "owner", True, Schema(HEAD), 97, False), Level.WARNING),
        (DatabaseState("17.1", "owner", False, Schema(None), 97, False), Level.WARNING),
        (DatabaseState("17.1", "owner", False, Schema("0001"), 97, False), Level.WARNING),
        (DatabaseState("17.1", "owner", False, Schema("9999"), 97, False), Level.BROKEN),
        (DatabaseState("17.1", "owner", False, Schema("9999", "9998"), 97, False), Level.BROKEN),
        (DatabaseState("17.1", "owner", False, Schema("9999", HEAD), 97, False), Level.WARNING),
    ],
)
def test_a_database_is_judged(state: DatabaseState, level: Level) -> None:
    """Its version, its schema and the power of its role each count."""
    finding = judge_database(state)
    assert finding.level is level
    assert is_mendable(finding)


@pytest.mark.parametrize(
    ("state", "level"),
    [
        (RedisState("Valkey", "9.1.2", False, "noeviction"), Level.OK),
        (RedisState("Redis", "8.2.2", False, "noeviction"), Level.OK),
        (RedisState("Redis", "8.2.1", False, "noeviction"), Level.WARNING),
        (RedisState("Redis", "6.2.20", False, "noeviction"), Level.BROKEN),
        (RedisState("Redis", "8.0", True, "noeviction"), Level.BROKEN),
        (RedisState("Redis", "8.4.0", False, "allkeys-lru"), Level.WARNING),
        (RedisState("Redis", "8.4.0", False, "noeviction", is_replica=True), Level.BROKEN),
    ],
)
def test_a_redis_is_judged(state: RedisState, level: Level) -> None:
    """Its version, a cluster, eviction and a replica each count."""
    finding = judge_redis(state)
    assert finding.level is level
    assert is_mendable(finding)


def test_stores_that_do_not_answer_are_broken(tmp_path: Path) -> None:
    """Silent servers and wrong URLs are findings, not crashes."""
    for urls in (NO_STORES, {"database_url": "nonsense", "redis_url": "nonsense"}):
        findings = check_stores(settings_of(tmp_path, **urls), is_running=False)
        assert [(f.name, f.level) for f in findings] == [
            ("database", Level.BROKEN),
            ("redis", Level.BROKEN),
        ]


def test_no_store_is_made_by_looking(tmp_path: Path) -> None:
    """Where no server has started yet, the doctor starts none."""
    findings = check_stores(settings_of(tmp_path), is_running=False)
    assert {finding.level for finding in findings} == {Level.OK}
    assert not (tmp_path / "data").exists()


def test_a_model_directory_must_be_whole(tmp_path: Path) -> None:
    """The demo is whole; a directory without a config is not, nor one without weights."""
    finding, size_bytes = check_model(*planned_models(settings_of(tmp_path)))
    assert finding.level is Level.OK
    assert size_bytes > 1 << 20
    assert (
        check_model(*planned_models(settings_of(tmp_path, model=tmp_path)))[0].level is Level.BROKEN
    )
    from engine.demo import MODEL_DIR

    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((MODEL_DIR / name).read_bytes())
    bare = check_model(*planned_models(settings_of(tmp_path, model=tmp_path)))[0]
    assert bare.level is Level.BROKEN
    assert "safetensors" in bare.found
    [dummy] = planned_models(settings_of(tmp_path, model=tmp_path, load_format="dummy"))
    assert check_model(dummy)[0].level is Level.OK
    (tmp_path / "generation_config.json").write_text('{"top_p": 7}')
    warm = check_model(dummy)[0]
    assert warm.level is Level.BROKEN
    assert "top_p is 7" in warm.found
