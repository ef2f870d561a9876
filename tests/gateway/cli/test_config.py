"""`sluice config check` and `init`: a file before the start that reads it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import app
from gateway.cli.config import example
from gateway.cli.exits import CliError
from gateway.settings import Settings


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work where there is no file, with no settings in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("SLUICE_"):
            monkeypatch.delenv(name)
    return tmp_path


def test_what_is_written_can_be_started_with(elsewhere: Path) -> None:
    """The file as it is passes the check, and one that is there is left alone."""
    assert CliRunner().invoke(app, ["config", "init"]).exit_code == 0
    found = CliRunner().invoke(app, ["config", "check", "--json"])
    assert [
        (one["model"], one["role"], one["directory"], one["kv_share"])
        for one in json.loads(found.stdout)["models"]
    ] == [
        ("sluice-demo", "chat", "demo", 0.75),
        ("sluice-demo-embedding", "embedding", "demo", 0.25),
    ]
    before = (elsewhere / "sluice.toml").read_text()
    assert CliRunner().invoke(app, ["config", "init"]).exit_code != 0
    assert (elsewhere / "sluice.toml").read_text() == before


def test_each_line_that_is_commented_out_may_be_had(elsewhere: Path) -> None:
    """With all comments that stand before a key taken away the file is still right."""
    lines = [line.removeprefix("# ") if " =" in line else line for line in example().splitlines()]
    (elsewhere / "sluice.toml").write_text("\n".join(lines))
    assert [table.aliases for table in Settings().models] == [
        ("gpt-4o-mini",),
        ("text-embedding-3-small",),
    ]


def test_a_check_without_a_file_is_of_the_defaults() -> None:
    """The demo model, as a table and one line a model."""
    found = CliRunner().invoke(app, ["config", "check"])
    assert found.stdout.splitlines()[1] == "sluice-demo\t-\tchat\tdemo\t1\t1"


def test_a_check_fails_as_a_start_would(elsewhere: Path) -> None:
    """With the exit code of what was typed wrong, and the line."""
    (elsewhere / "sluice.toml").write_text('[[models]]\ndirectory = "demo"\nkv_share = 2\n')
    found = CliRunner().invoke(app, ["config", "check"])
    assert found.exit_code == 2
    assert "sluice.toml, line 3: [[models]] no. 1: kv_share" in found.output


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('scheduler_policy = "vtcc"', "vtcc"),
        ('scheduler_preset = "lowlatency"', "SLUICE_SCHEDULER_PRESET"),
        ('init_keys = "abc"', "SLUICE_INIT_KEYS"),
        ('init_tenants = "A B"', "SLUICE_INIT_TENANTS"),
        ('model = "/nowhere/a-model"', "/nowhere/a-model"),
        ('tls_cert = "/no.pem"\ntls_key = "/no.pem"', "SLUICE_TLS_CERT: /no.pem"),
    ],
)
def test_a_check_refuses_what_a_start_would(elsewhere: Path, line: str, said: str) -> None:
    """What can be told without starting anything is told, and the check fails."""
    (elsewhere / "sluice.toml").write_text(line)
    found = CliRunner().invoke(app, ["config", "check"])
    assert isinstance(found.exception, CliError)
    assert said in str(found.exception)
