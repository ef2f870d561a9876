"""The file by which the command line finds a server on this machine."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

from gateway.services.local_access import announced, new_local_token, read_local_access


def test_a_running_server_is_found_and_a_stopped_one_is_not(tmp_path: Path) -> None:
    """The file is there, for its user alone, exactly while the block runs."""
    token = new_local_token()
    assert read_local_access(tmp_path) is None
    with announced(tmp_path, api="http://a/v1", admin="http://b", token=token):
        access = read_local_access(tmp_path)
        assert access is not None
        assert (access.api, access.admin, access.local_token) == (
            "http://a/v1",
            "http://b",
            token.text,
        )
        assert stat.S_IMODE((tmp_path / "run" / "server.json").stat().st_mode) == 0o600
    assert read_local_access(tmp_path) is None
    assert list((tmp_path / "run").iterdir()) == []


def test_the_file_of_a_killed_server_counts_as_none(tmp_path: Path) -> None:
    """A pid that is gone, and a damaged file, mean that no server runs."""
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    path = tmp_path / "run" / "server.json"
    path.parent.mkdir()
    document = {"pid": gone.pid, "api": "a", "admin": "b", "local_token": "c"}
    path.write_text(json.dumps(document))
    assert read_local_access(tmp_path) is None
    for damaged in ("", "{", "[]", "{}", '{"pid": 1}'):
        path.write_text(damaged)
        assert read_local_access(tmp_path) is None
