"""Clients that leave in the midst of an answer, seen from the server's log."""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path

from tests.live_server import SLUICE, sluice_env, start_sluice

NOWHERE = b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n"


def test_leaving_rudely_fills_no_log(made_data_dir: Path) -> None:
    """Resets in the midst of pipelined answers leave nothing in the log, key or no key."""
    log = made_data_dir.parent / "log"
    with log.open("w") as stderr:
        command = [SLUICE, "serve", "--port", "0", "--banner", "json", "--data-dir", made_data_dir]
        process = start_sluice(
            [*command, "--engine", "simulated"],
            stderr=stderr,
            env=sluice_env(SLUICE_DRAIN_ACCEPT_S="0", SLUICE_LOG_REQUESTS="false"),
            cwd=made_data_dir.parent,
        )
        assert process.stdout is not None
        banner = process.stdout.readline()
        port = int(banner.split('"api": "http://127.0.0.1:')[1].split("/")[0])
        for _ in range(30):
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), timeout=10) as client,
            ):
                client.sendall(NOWHERE * 5)
                client.recv(10)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(NOWHERE)
            assert client.recv(100).startswith(b"HTTP/1.1 404")
        process.terminate()
        assert process.wait(60) == 0
        process.stdout.close()
    assert log.read_text() == ""
