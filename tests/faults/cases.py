"""What a fuzzer sends: one case, the same for the same seed and number."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """Say where a fuzzer aims; `key` is a tenant's, `model` a name that the server knows."""

    host: str
    port: int
    key: str
    model: str


@dataclass(frozen=True, slots=True)
class Case:
    """Hold the bytes of one case.

    `kind` groups cases in a tally. `answers` is how many answers HTTP promises for these bytes,
    and None where a server may as well close the connection or wait for more. `leaves` is a
    client that goes away without reading.
    """

    kind: str
    sent: bytes
    answers: int | None = None
    leaves: bool = False


def post(target: Target, path: str, body: bytes, *extra: bytes, close: bool = False) -> bytes:
    """Frame a proper request around a body; `extra` are whole header lines without their end."""
    lines = [
        b"POST %b HTTP/1.1" % path.encode(),
        b"host: %b:%d" % (target.host.encode(), target.port),
        b"authorization: Bearer %b" % target.key.encode(),
        b"content-type: application/json",
        b"content-length: %d" % len(body),
        *([b"connection: close"] if close else []),
        *extra,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
