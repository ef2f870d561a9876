"""`sluice audit` against a server that takes its time."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from gateway.cli import admin_client
from tests.gateway.cli.admin_server import sluice_here

_VERDICT = {"hash": "ab", "seq": 9, "broken_seq": None, "lost_seq": None, "unkeyed_seq": 0}


class _Slow(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        # Longer than other answers may take in the test.
        time.sleep(0.2)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(_VERDICT).encode())

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def slow_url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Slow)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_long_log_is_waited_for(slow_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk along the chain may take longer than other answers: the verdict is waited for."""
    monkeypatch.setattr(admin_client, "_TIMEOUT_S", 0.05)
    access = {"SLUICE_ADMIN_URL": slow_url, "SLUICE_ADMIN_TOKEN": "token"}
    assert sluice_here("audit", "head", **access).returncode == 1
    done = sluice_here("audit", "verify", **access)
    assert (done.returncode, done.stdout) == (0, "9\tab\n"), done.stderr
