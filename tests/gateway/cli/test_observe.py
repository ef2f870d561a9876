"""`make observe` says what is missing, and keeps the token to itself."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import yaml

from gateway.cli import observe
from gateway.cli.admin_client import AdminAccess


def test_without_prometheus_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One line, and a failure's exit code."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert observe.main([]) == 1
    assert capsys.readouterr().err.count("apt install") == 1


def test_without_a_server_it_says_how_to_start_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It is the message that every command has for it."""
    program = tmp_path / "prometheus"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("SLUICE_")]:
        monkeypatch.delenv(name)
    assert observe.main(["--data-dir", str(tmp_path)]) == 1
    assert "sluice serve" in capsys.readouterr().err


def test_the_token_is_in_a_file_that_others_cannot_read(tmp_path: Path) -> None:
    """The configuration names the file and the place, and has no secret."""
    access = AdminAccess("https://admin.example:8001", "the-token")
    config = observe.written_config(tmp_path, access)
    assert "the-token" not in config.read_text()
    [job] = yaml.safe_load(config.read_text())["scrape_configs"]
    assert job["scheme"] == "https"
    assert job["static_configs"] == [{"targets": ["admin.example:8001"]}]
    token = Path(job["authorization"]["credentials_file"])
    assert token.read_text() == "the-token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
