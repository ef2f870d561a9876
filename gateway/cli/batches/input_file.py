"""A batch's input: looked at before it is sent, and read as it is sent.

Only what costs nothing is looked at here, the file and its first line, so that a wrong file is not
uploaded first. What stands in the other lines is the server's to judge.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from gateway.cli.exits import CliError, Exit
from gateway.domain.files import MAX_BATCH_INPUT_BYTES

STDIN: Final = "-"

_PIECE_BYTES: Final = 1 << 20
_FIRST_LINE_BYTES: Final = 16 << 20
_BOM: Final = b"\xef\xbb\xbf"
_GZIP: Final = b"\x1f\x8b"
_EXAMPLE: Final = '{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {…}}'


@dataclass(frozen=True, slots=True)
class InputFile:
    """Hold an open input file; `endpoint` is where its first line goes."""

    file: BinaryIO
    name: str
    size_bytes: int
    endpoint: str


class CountedFile:
    """Read a file for an upload, and tell `on_read` how many bytes were read."""

    def __init__(self, file: BinaryIO, on_read: Callable[[int], None]) -> None:
        self._file = file
        self._on_read = on_read

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(size)
        self._on_read(len(piece))
        return piece

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


@contextmanager
def open_input(named: str) -> Iterator[InputFile]:
    """Open what is to be submitted; `-` is standard input, which is kept on disk meanwhile.

    Raises: `CliError`: it is not there, empty, too large, or its first line is no request.
    """
    try:
        with _open(named) as file:
            name = "stdin.jsonl" if named == STDIN else _name_of(named)
            size_bytes = file.seek(0, 2)
            file.seek(0)
            _check_size(_shown(named), size_bytes)
            endpoint = _first_endpoint(_shown(named), file)
            file.seek(0)
            yield InputFile(file, name, size_bytes, endpoint)
    except FileNotFoundError:
        raise CliError(f"no file {named}", Exit.NOT_FOUND) from None
    except OSError as exc:
        raise CliError(f"{_shown(named)} cannot be read: {exc.strerror}") from None


@contextmanager
def _open(named: str) -> Iterator[BinaryIO]:
    if named != STDIN:
        with Path(named).open("rb") as file:
            yield file
        return
    # Its length must be known before it is sent, and its first line looked at.
    with tempfile.TemporaryFile() as kept:
        size_bytes = 0
        while piece := sys.stdin.buffer.read(_PIECE_BYTES):
            size_bytes += len(piece)
            kept.write(piece)
            if size_bytes > MAX_BATCH_INPUT_BYTES:
                break
        yield kept


def _name_of(named: str) -> str:
    """Return a file's name as it can be sent: names on disk are bytes of any kind."""
    return Path(named).name.encode(errors="replace").decode()


def _shown(named: str) -> str:
    return "standard input" if named == STDIN else named


def _check_size(named: str, size_bytes: int) -> None:
    if size_bytes == 0:
        raise CliError(f"{named} is empty: a batch has a request a line", Exit.USAGE)
    if size_bytes > MAX_BATCH_INPUT_BYTES:
        raise CliError(
            f"{named} has more than the {MAX_BATCH_INPUT_BYTES // 1_000_000} MB that a batch may "
            "have: split it at line ends",
            Exit.USAGE,
        )


def _first_endpoint(named: str, file: BinaryIO) -> str:
    """Return where the first line that is not blank goes. Raises: `CliError`."""
    number, line = 0, b""
    while not line.strip():
        number += 1
        line = file.readline(_FIRST_LINE_BYTES)
        if not line:
            raise CliError(f"{named} has only blank lines", Exit.USAGE)
    request = _decoded(f"{named}, line {number}", line)
    for name, kind in (("custom_id", str), ("url", str), ("body", dict)):
        if not isinstance(request.get(name), kind):
            what = "no" if name not in request else "no usable"
            raise CliError(
                f"{named}, line {number} has {what} '{name}'; a line is as {_EXAMPLE}", Exit.USAGE
            )
    return str(request["url"])


def _decoded(where: str, line: bytes) -> dict[str, Any]:
    if line.startswith(_GZIP):
        raise CliError(f"{where} is compressed: unpack the file first", Exit.USAGE)
    try:
        request = json.loads(line.removeprefix(_BOM).decode())
    except UnicodeDecodeError:
        raise CliError(f"{where} is not UTF-8", Exit.USAGE) from None
    except (ValueError, RecursionError):
        raise CliError(f"{where} is not JSON; a line is as {_EXAMPLE}", Exit.USAGE) from None
    if not isinstance(request, dict):
        raise CliError(f"{where} is no JSON object; a line is as {_EXAMPLE}", Exit.USAGE)
    return request
