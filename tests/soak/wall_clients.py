"""The three clients of an attack on the walls, each a process of its own, so that none waits for
another's interpreter: `attack`, `victim`, `watch`.

Each reads a JSON job from the first line of stdin, writes a line once it could begin, begins at the
next line of stdin and writes a JSON result to stdout: what a process costs to start is no attack.
The attacker ends when its time is over and its last answer is in, the others when stdin ends.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final

from tests.soak.wall_bodies import COMPLETIONS, SHAPES, body_of
from tests.soak.wall_floods import FLOODS, STRANGERS, be_elsewhere

WATCH_EVERY_S: Final = 0.005
VICTIM_EVERY_S: Final = 1 / 20
TIMEOUT_S: Final = 120.0
# Stands for a connection that broke.
NO_ANSWER: Final = 0


def attack(job: dict[str, Any]) -> dict[str, Any]:
    """Attack until the time is over and the last answer is in; count the answers by status."""
    be_elsewhere()
    if job["kind"] in FLOODS:
        _await_word()
        return {"statuses": FLOODS[job["kind"]](job), "largest_answer_bytes": 0}
    kinds = SHAPES if job["kind"] == "strings" else (job["kind"],)
    bodies = [body_of(kind, job["model"]) for kind in kinds]
    _await_word()
    return _send_bodies(job, bodies)


def _send_bodies(job: dict[str, Any], bodies: list[tuple[str, bytes]]) -> dict[str, Any]:
    """Send these bodies in turn, again and again, from several connections.

    Each connection begins `apart_s` after the one before it, and sends `at_least` so many bodies,
    however long that takes.
    """
    statuses: Counter[int] = Counter()
    size_bytes = 0
    end_s = time.perf_counter() + job["for_s"]

    def send(after_s: float) -> None:
        nonlocal size_bytes
        time.sleep(after_s)
        connection = HTTPConnection(
            job["host"], job["port"], timeout=TIMEOUT_S, source_address=STRANGERS
        )
        num_sent = 0
        while num_sent < job["at_least"] or time.perf_counter() < end_s:
            path, body = bodies[num_sent % len(bodies)]
            status, num_bytes = post(connection, path, job["key"], body)
            num_sent += 1
            statuses[status] += 1
            size_bytes = max(size_bytes, num_bytes)
        connection.close()

    senders = [
        threading.Thread(target=send, args=(number * job["apart_s"],))
        for number in range(job["connections"])
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    return {"statuses": statuses, "largest_answer_bytes": size_bytes}


def victim(job: dict[str, Any], is_over: Callable[[], bool]) -> dict[str, Any]:
    """Send small requests at a steady rate, however long each takes; time them from when due."""
    body = json.dumps({"model": job["model"], "prompt": [520] * 8, "max_tokens": 1}).encode()
    answers: list[tuple[int, float]] = []

    def send(due_s: float) -> None:
        connection = HTTPConnection(job["host"], job["port"], timeout=TIMEOUT_S)
        status, _ = post(connection, COMPLETIONS, job["key"], body)
        connection.close()
        answers.append((status, time.perf_counter() - due_s))

    due_s = time.perf_counter()
    with ThreadPoolExecutor(200) as pool:
        while not is_over():
            pool.submit(send, due_s)
            due_s += VICTIM_EVERY_S
            time.sleep(max(0.0, due_s - time.perf_counter()))
    return {
        "statuses": Counter(status for status, _ in answers),
        "latency_s": [seconds for _, seconds in answers],
    }


def watch(job: dict[str, Any], is_over: Callable[[], bool]) -> dict[str, Any]:
    """Ask `/livez` every 5 ms and time each answer: while the event loop is held, none comes.

    `computed_s` is the CPU time of the loop's thread meanwhile, which no neighbour lengthens; it
    leaves out what the loop waits for another thread.
    """
    # Of the process's first thread, which is the loop's: nanoseconds on a CPU, and two others.
    schedstat = Path(f"/proc/{job['pid']}/task/{job['pid']}/schedstat")
    connection = HTTPConnection(job["host"], job["port"], timeout=TIMEOUT_S)
    waited_s: list[float] = []
    computed_s: list[float] = []
    num_dead = 0
    while not is_over():
        began_ns = int(schedstat.read_text().split()[0])
        sent_s = time.perf_counter()
        connection.request("GET", "/livez")
        answer = connection.getresponse()
        answer.read()
        num_dead += answer.status != 200
        waited_s.append(time.perf_counter() - sent_s)
        computed_s.append((int(schedstat.read_text().split()[0]) - began_ns) / 1e9)
        time.sleep(max(0.0, WATCH_EVERY_S - waited_s[-1]))
    return {"waited_s": waited_s, "computed_s": computed_s, "num_dead": num_dead}


def post(connection: HTTPConnection, path: str, key: str, body: bytes) -> tuple[int, int]:
    """Send a body; returns the status, or `NO_ANSWER`, and how many bytes the answer's body had."""
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    try:
        # A refusal may be sent, and the connection closed, before the body has gone out.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, len(answer.read())
    except (OSError, HTTPException):
        connection.close()
        return NO_ANSWER, 0


def _await_word() -> None:
    """Say that this process is ready, and begin when told."""
    print("ready", flush=True)
    sys.stdin.readline()


def main() -> None:
    role, job = sys.argv[1], json.loads(sys.stdin.readline())
    if role == "attack":
        print(json.dumps(attack(job)))
        return
    _await_word()
    waiting = threading.Thread(target=sys.stdin.read, daemon=True)
    waiting.start()
    see = {"victim": victim, "watch": watch}[role]
    print(json.dumps(see(job, lambda: not waiting.is_alive())))


if __name__ == "__main__":
    main()
