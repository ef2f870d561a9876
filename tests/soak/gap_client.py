"""A client process that streams one completion after another, and times what comes between.

Reads a JSON job from the first line of stdin, says "streaming" once the first event has come, ends
with the stream in which stdin does, and writes the times between two events of a stream, in s.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from typing import Any, Final

_TIMEOUT_S: Final = 60.0
_NUM_TOKENS: Final = 300
_EVENT: Final = b"data: "


def _stream(job: dict[str, Any], gaps_s: list[float]) -> None:
    body = json.dumps(
        {
            "model": job["model"],
            "prompt": [520] * 8,
            "max_tokens": _NUM_TOKENS,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    with socket.create_connection((job["host"], job["port"]), _TIMEOUT_S) as sock:
        sock.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            b"content-type: application/json\r\nauthorization: Bearer %b\r\n"
            b"content-length: %d\r\n\r\n%b" % (job["key"].encode(), len(body), body)
        )
        before_s, tail = 0.0, b""
        while data := sock.recv(1 << 16):
            if _EVENT in data:
                now_s = time.perf_counter()
                if before_s:
                    gaps_s.append(now_s - before_s)
                elif not gaps_s:
                    print("streaming", flush=True)
                before_s = now_s
            tail = (tail + data)[-64:]
        assert b"data: [DONE]\n\n" in tail, tail


def main() -> None:
    job = json.loads(sys.stdin.readline())
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    gaps_s: list[float] = []
    while not over.is_set():
        _stream(job, gaps_s)
    print(json.dumps(gaps_s))


if __name__ == "__main__":
    main()
