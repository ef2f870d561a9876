"""What `sluice worker` needs, and what it says where that is missing."""

from __future__ import annotations

from pathlib import Path

from tests.gateway.cli.admin_server import Server, sluice

SHARED = {
    "SLUICE_DATABASE_URL": "postgresql://localhost/none",
    "SLUICE_REDIS_URL": "redis://localhost",
}


def test_a_worker_names_what_it_needs(tmp_path: Path) -> None:
    """One line with each setting that is to be the servers'; nothing is made on the disk."""
    own = {"SLUICE_DATA_DIR": str(tmp_path / "own")}
    done = sluice("worker", **own)
    assert (done.returncode, done.stdout) == (2, "")
    for name in ("SLUICE_DATABASE_URL", "SLUICE_REDIS_URL", "SLUICE_FILE_STORAGE"):
        assert name in done.stderr
    done = sluice("worker", **own, **SHARED)
    assert "SLUICE_FILE_STORAGE" in done.stderr
    assert "SLUICE_REDIS_URL" not in done.stderr
    assert not (tmp_path / "own").exists()


def test_a_worker_beside_a_server_with_stores_of_its_own(server: Server) -> None:
    """It says that those cannot be reached, and what to do."""
    done = sluice("worker", SLUICE_DATA_DIR=str(server.data_dir))
    assert done.returncode == 2
    assert f"data directory {server.data_dir}" in done.stderr
    assert "a PostgreSQL and a Redis of your own" in done.stderr


def test_a_worker_has_no_public_port() -> None:
    """A flag of the public API is wrong usage."""
    for flag in ("--port", "--host", "--api-key"):
        done = sluice("worker", flag, "1")
        assert done.returncode == 2, done
        assert flag in done.stderr
    known = sluice("worker", "--help").stdout.split()
    assert "--admin-port" in known
    assert {"--port", "--host", "--api-key"}.isdisjoint(known)
