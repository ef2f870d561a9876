"""The audit, against a database of its own making."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.supply import audit
from tests.supply.audit import ACCEPTED, KNOWN_BAD, NO_DATA, main, read_accepted, releases

ID = "GHSA-1111-2222-3333"


class Database:
    """Answer as OSV does; `bad` has flaws, and `answer` may make of an answer what it likes."""

    def __init__(self) -> None:
        self.bad: dict[str, list[str]] = {KNOWN_BAD[0] + KNOWN_BAD[1]: ["PYSEC-2019-217"]}
        self.answer: Callable[[Any], bytes] = lambda whole: json.dumps(whole).encode()
        self.asked: list[Any] = []
        database = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                database.asked = body["queries"]
                results = [database.known(query) for query in body["queries"]]
                self.send_response(200)
                self.end_headers()
                # Whoever is answered with too much may leave before its end.
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(database.answer({"results": results}))

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)

    def known(self, query: Any) -> dict[str, Any]:
        found = self.bad.get(query["package"]["name"] + query["version"])
        return {"vulns": [{"id": one} for one in found]} if found else {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/"


@pytest.fixture
def database() -> Iterator[Database]:
    made = Database()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.fixture
def accepted(tmp_path: Path) -> Path:
    path = tmp_path / "accepted.toml"
    path.write_text("")
    return path


def test_nothing_known_is_a_pass(database: Database, accepted: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    """Every locked release and the installed torch are asked for, once, and none has a flaw."""
    assert main({"SLUICE_REQUIRE_AUDIT": "1"}, database.url, path=accepted) == 0
    asked = {(one["package"]["name"], one["version"]) for one in database.asked}
    assert asked == {*releases(), KNOWN_BAD}
    assert "torch" in {name for name, _ in asked}
    assert f"audited {len(releases())} releases: no known" in capsys.readouterr().out


def test_a_finding_fails_until_there_is_a_reason(
    database: Database,
    accepted: Path,
    capsys,  # type: ignore[no-untyped-def]
) -> None:
    """It is named; with a reason it passes, and a reason that is needed no more is said."""
    name, version = releases()[7]
    database.bad[name + version] = [ID]
    assert main({}, database.url, path=accepted) == 1
    assert f"{name} {version}: {ID}\n" in capsys.readouterr().out
    accepted.write_text(f'"{ID}" = "not reached"\n')
    assert main({}, database.url, path=accepted) == 0
    assert f"{ID}, accepted: not reached" in capsys.readouterr().out
    del database.bad[name + version]
    assert main({}, database.url, path=accepted) == 0
    assert f"{ID} is not found any more" in capsys.readouterr().out


@pytest.mark.parametrize(
    "answer",
    [
        lambda whole: b"<html>",
        lambda whole: b"[]",
        lambda whole: b'{"code": 3}',
        lambda whole: json.dumps({"results": whole["results"][:-1]}).encode(),
        lambda whole: json.dumps({"results": [{} for _ in whole["results"]]}).encode(),
        lambda whole: json.dumps({"results": [None for _ in whole["results"]]}).encode(),
    ],
    ids=["no json", "a list", "an error", "too few", "knows nothing", "nulls"],
)
def test_an_answer_that_tells_nothing_is_no_pass(
    database: Database,
    accepted: Path,
    capsys,
    answer: Callable[[Any], bytes],  # type: ignore[no-untyped-def]
) -> None:
    """It says that nothing was audited; that fails only where an audit is required."""
    database.answer = answer
    assert main({}, database.url, path=accepted) == 0
    assert capsys.readouterr().out.startswith("no data: not audited (")
    assert main({"SLUICE_REQUIRE_AUDIT": "1"}, database.url, path=accepted) == NO_DATA
    assert "known" not in capsys.readouterr().out.replace("knows nothing", "")


def test_a_database_that_is_away_is_no_pass(
    database: Database,
    accepted: Path,
    capsys,
    monkeypatch,  # type: ignore[no-untyped-def]
) -> None:
    """Refused or silent, it is no data."""
    silent = threading.Event()
    database.answer = lambda whole: str(silent.wait(5)).encode()
    monkeypatch.setattr(audit, "TIMEOUT_S", 0.1)
    try:
        for url in (database.url, "http://127.0.0.1:1/"):
            assert main({}, url, path=accepted) == 0
            assert capsys.readouterr().out.startswith("no data: not audited (")
            assert main({"SLUICE_REQUIRE_AUDIT": "1"}, url, path=accepted) == NO_DATA
    finally:
        silent.set()


def test_what_is_accepted_has_a_reason(accepted: Path) -> None:
    """The file that is there can be read; an entry without a word is an error."""
    read_accepted(ACCEPTED)
    accepted.write_text(f'"{ID}" = " "\n')
    with pytest.raises(ValueError, match=f"{ID} has no reason"):
        read_accepted(accepted)
