"""What an attacker does with connections rather than with bodies, each until its time is over.

All of it comes from other addresses of this machine than the victim's requests.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from typing import Any, Final

from gateway.credentials import KEY_PREFIX, new_token

STRANGERS: Final = ("127.0.0.2", 0)
TIMEOUT_S: Final = 30.0
_REQUEST: Final = (
    "POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %s\r\n"
    "content-type: application/json\r\ncontent-length: %d\r\n\r\n"
)

Job = dict[str, Any]
Statuses = Counter[int]


def anonymous(job: Job) -> Statuses:
    """Ask with keys that nobody was given, each well-formed and another, as fast as answered."""

    def ask(connection: HTTPConnection) -> int:
        key = new_token(KEY_PREFIX).text
        return _get(connection, "/v1/models", key)

    return _in_threads(job, 8, ask)


def reports(job: Job) -> Statuses:
    """Ask for usage and for exports again and again, and read no export to its end."""
    host, port = job["admin"]

    def usage(connection: HTTPConnection) -> int:
        return _get(connection, "/v1/usage?group_by=hour,model,key", job["key"])

    def export(_: HTTPConnection) -> int:
        connection = HTTPConnection(host, port, TIMEOUT_S, source_address=STRANGERS)
        status = _get(connection, "/admin/v1/usage?format=csv", job["owner"], num_bytes=100)
        time.sleep(0.2)
        connection.close()
        return status

    return _in_threads(job, 4, usage) + _in_threads(job, 15, export)


def logins(job: Job) -> Statuses:
    """Try to sign in with names and passwords that nobody has, each from another address."""
    host, port = job["admin"]
    head = {"sec-fetch-site": "same-origin", "content-type": "application/x-www-form-urlencoded"}

    def ask(_: HTTPConnection) -> int:
        near = ".".join(["127", *(str(random.randint(2, 250)) for _ in range(3))])
        connection = HTTPConnection(host, port, TIMEOUT_S, source_address=(near, 0))
        try:
            body = f"name=user{random.random()}&password=a+wrong+password"
            connection.request("POST", "/admin/login", body, head)
            return connection.getresponse().status
        except (OSError, HTTPException):
            return 0
        finally:
            connection.close()

    return _in_threads(job, 16, ask)


def cancelled(job: Job) -> Statuses:
    """Send prompts that were never seen and leave before their first token."""
    number = 0

    def ask(_: HTTPConnection) -> int:
        nonlocal number
        number += 1
        prompt = [512 + (number * 37 + index * 11) % 500 for index in range(1500)]
        body = json.dumps({"model": job["model"], "prompt": prompt, "max_tokens": 100}).encode()
        with _connected(job) as sock:
            sock.sendall((_REQUEST % (job["key"], len(body))).encode() + body)
            time.sleep(0.02)
        return 0

    return _in_threads(job, 4, ask)


def half_heads(job: Job) -> Statuses:
    """Hold a hundred connections open with half a head each, and connect anew where one ends."""
    return _held(job, 100, b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-a: ")


def half_bodies(job: Job) -> Statuses:
    """Hold a hundred bodies of 4 MiB open of which half a megabyte came."""
    head = (_REQUEST % (job["key"], 4 << 20)).encode()
    return _held(job, 100, head + b" " * (512 << 10))


FLOODS: Final[dict[str, Callable[[Job], Statuses]]] = {
    flood.__name__: flood
    for flood in (anonymous, reports, logins, cancelled, half_heads, half_bodies)
}


def _in_threads(job: Job, num: int, ask: Callable[[HTTPConnection], int]) -> Statuses:
    """Ask from so many connections at once; count the answers by status, 0 for none."""
    statuses: Statuses = Counter()
    end_s = time.perf_counter() + job["for_s"]

    def go_on() -> None:
        connection = HTTPConnection(job["host"], job["port"], TIMEOUT_S, source_address=STRANGERS)
        while time.perf_counter() < end_s:
            statuses[ask(connection)] += 1
        connection.close()

    threads = [threading.Thread(target=go_on) for _ in range(num)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def _get(connection: HTTPConnection, path: str, key: str, num_bytes: int | None = None) -> int:
    try:
        connection.request("GET", path, headers={"authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        answer.read(num_bytes)
        return answer.status
    except (OSError, HTTPException):
        connection.close()
        return 0


def _held(job: Job, num: int, begun: bytes) -> Statuses:
    """Keep so many connections that have sent `begun` and send no more."""
    statuses: Statuses = Counter()
    held: list[socket.socket] = []
    end_s = time.perf_counter() + job["for_s"]
    while time.perf_counter() < end_s:
        held = [sock for sock in held if _is_open(sock)]
        while len(held) < num and time.perf_counter() < end_s:
            with contextlib.suppress(OSError):
                sock = _connected(job)
                held.append(sock)
                sock.sendall(begun)
                statuses[0] += 1
        time.sleep(0.05)
    for sock in held:
        sock.close()
    return statuses


def _connected(job: Job) -> socket.socket:
    return socket.create_connection((job["host"], job["port"]), TIMEOUT_S, STRANGERS)


def _is_open(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1 << 16) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        sock.setblocking(True)


def be_elsewhere() -> None:
    """Leave the processors to the server, as a client on a machine of its own does."""
    os.nice(19)
