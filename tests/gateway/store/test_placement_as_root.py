"""Where the servers live when root starts them; collected under root alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gateway.errors import StartupFailed
from gateway.store import placement
from gateway.store.embedded import EmbeddedServers


@pytest.fixture
def shared_homes(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> Path:
    """Put the machine's place for clusters below the test's own directory."""
    homes = data_dir.parent / "var-lib-sluice"
    monkeypatch.setattr(placement, "_SHARED_HOMES", homes)
    return homes


def test_a_data_directory_that_others_may_pass_holds_all(
    data_dir: Path, shared_homes: Path
) -> None:
    """The cluster moves with the data directory, which lets one group pass and nobody list."""
    with EmbeddedServers(data_dir):
        pass
    assert (data_dir / "postgres").stat().st_uid == 65534
    assert data_dir.stat().st_gid == 65534
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o710
    assert not shared_homes.exists()


def test_below_a_private_directory_the_cluster_is_kept_elsewhere(
    data_dir: Path, shared_homes: Path
) -> None:
    """The place is recorded, used again at the next start, and closed to others."""
    private = data_dir.parent / "root"
    private.mkdir(mode=0o700)
    for _ in range(2):
        with EmbeddedServers(private / "data"):
            pass
    [home] = shared_homes.iterdir()
    assert (private / "data" / "embedded-home").read_text().strip() == str(home)
    assert (home / "postgres" / "PG_VERSION").exists()
    assert stat.S_IMODE(home.stat().st_mode) == 0o710
    assert stat.S_IMODE((private / "data").stat().st_mode) == 0o700


def test_a_recorded_cluster_that_is_gone_is_no_silent_new_one(
    data_dir: Path, shared_homes: Path
) -> None:
    """The start fails and says which file to mend."""
    data_dir.mkdir(mode=0o700)
    (data_dir / "embedded-home").write_text(str(shared_homes / "gone"))
    with pytest.raises(StartupFailed, match="embedded-home says"), EmbeddedServers(data_dir):
        pass


def test_the_servers_get_none_of_roots_rights(data_dir: Path) -> None:
    """Both run with one user and one group, and see none of our environment."""
    os.environ["SLUICE_TEST_SECRET"] = "secret"
    try:
        with EmbeddedServers(data_dir):
            seen = [
                Path(f"/proc/{entry.name}")
                for entry in Path("/proc").iterdir()
                if entry.name.isdigit() and _works_below(entry, data_dir)
            ]
            assert seen
            for process in seen:
                status = (process / "status").read_text()
                assert "Uid:\t65534\t65534\t65534\t65534" in status
                assert "Groups:\t \n" in status or "Groups:\t\n" in status
                assert b"SLUICE_TEST_SECRET" not in (process / "environ").read_bytes()
    finally:
        del os.environ["SLUICE_TEST_SECRET"]


def _works_below(process: Path, directory: Path) -> bool:
    try:
        return (process / "cwd").readlink().is_relative_to(directory)
    except OSError:
        return False
