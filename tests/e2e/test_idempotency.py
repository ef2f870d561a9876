"""A keyed request over real sockets: the client leaves, and its retry finds the answer."""

from __future__ import annotations

import json
import socket
import time
from urllib.parse import urlsplit

import httpx

from tests.live_server import Server


def test_a_retry_finds_what_its_client_left_behind(server: Server) -> None:
    """A connection that is dropped in the middle of a stream costs one run, not two."""
    body = json.dumps(
        {
            "model": "sluice-demo",
            "messages": [{"role": "user", "content": "What is Sluice?"}],
            "stream": True,
        }
    )
    headers = {
        "authorization": f"Bearer {server.key}",
        "content-type": "application/json",
        "idempotency-key": "e2e-1",
    }
    leave_in_the_middle(server, headers, body)
    statuses = []
    with httpx.Client(timeout=60) as client:
        while True:
            answer = client.post(f"{server.api}/chat/completions", content=body, headers=headers)
            statuses.append(answer.status_code)
            if answer.status_code != 409:
                break
            time.sleep(0.05)
    assert set(statuses) <= {200, 409}
    assert answer.headers["idempotent-replayed"] == "true"
    assert answer.text.endswith("data: [DONE]\n\n")


def leave_in_the_middle(server: Server, headers: dict[str, str], body: str) -> None:
    """Send a request and drop its connection once an answer has begun."""
    url = urlsplit(server.api)
    assert url.hostname is not None
    assert url.port is not None
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    request = (
        f"POST {url.path}/chat/completions HTTP/1.1\r\nhost: {url.netloc}\r\n{head}"
        f"content-length: {len(body)}\r\n\r\n{body}"
    )
    with socket.create_connection((url.hostname, url.port), timeout=60) as connection:
        connection.sendall(request.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
