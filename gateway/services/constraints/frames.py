"""Messages between two processes: four bytes of length, then so many bytes."""

from __future__ import annotations

from typing import IO, Final

_LENGTH_BYTES: Final = 4


def write_frame(file: IO[bytes], message: bytes) -> None:
    """Send a message whole."""
    file.write(len(message).to_bytes(_LENGTH_BYTES, "big"))
    file.write(message)
    file.flush()


def read_frame(file: IO[bytes]) -> bytes | None:
    """Wait for a message; None: the other side is gone."""
    head = file.read(_LENGTH_BYTES)
    if len(head) < _LENGTH_BYTES:
        return None
    length = int.from_bytes(head, "big")
    message = file.read(length)
    return message if len(message) == length else None
