"""Reading a form with one file in it, as it comes: nothing of the file is kept here.

What is kept is bounded: a few fields, their names and values short, each part's headers, and the
piece of the body that is being read. The parser walks boundaries and headers; all that it hands
over is looked at before more is read.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from contextlib import suppress
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.types import Receive, Scope

from gateway.api.body import ClientGone
from gateway.errors import FileTooLarge, InvalidRequest
from gateway.services import loop_share

_MAX_PARTS: Final = 16
_MAX_HEADER_BYTES: Final = 16 << 10
# Each takes some microseconds to be told apart, and a name has few.
_MAX_OPTIONS: Final = 256
_MAX_FIELD_BYTES: Final = 1 << 10
_MAX_SHOWN_CHARS: Final = 64
# What all may have beside the file: headers, fields, what stands before the first boundary.
_FRAME_BYTES: Final = 512 << 10


class FileForm:
    """Read one form, whose file is named `file`, from a request; `fields` may stand beside it.

    After `chunks` has ended, `values` and `filename` are what the form said; before that, what it
    said so far.
    """

    def __init__(
        self, scope: Scope, receive: Receive, *, fields: Collection[str], max_file_bytes: int
    ) -> None:
        self.values: dict[str, str] = {}
        self.filename: str | None = None
        self._receive = receive
        self._fields = fields
        self._left_bytes = max_file_bytes + _FRAME_BYTES
        self._max_drained_bytes = max_file_bytes
        self._is_read = False
        # By a client that sends nothing before it is told to.
        self._is_awaited = any(name == b"expect" for name, _ in scope["headers"])
        self._told_bytes = _told_bytes(scope)
        self._parser = MultipartParser(
            _boundary(scope),
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
                "on_end": self._on_end,
            },
            max_header_size=_MAX_HEADER_BYTES,
        )
        self._is_ended = False
        self._num_parts = 0
        self._header, self._value = b"", b""
        self._disposition = b""
        # The field that is being read; None in the file.
        self._field: str | None = None
        self._text = b""
        self._pieces: list[bytes] = []

    @property
    def told_bytes(self) -> int | None:
        """Return how long the form is said to be."""
        return self._told_bytes

    @property
    def is_read(self) -> bool:
        """Tell whether nothing more of the body is on its way."""
        return self._is_read

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the file. Raises: `InvalidRequest`, `FileTooLarge`, `ClientGone`."""
        while not self._is_read:
            body = await self._next()
            try:
                self._parser.write(body)
            except FormParserError as exc:
                raise _malformed(f"The form cannot be read: {exc}.") from None
            pieces, self._pieces = self._pieces, []
            if pieces:
                yield b"".join(pieces)
        if not self._is_ended:
            raise _malformed("The form ends before its last boundary.")
        if self.filename is None:
            raise InvalidRequest(
                "The form has no 'file'.", param="file", code="missing_required_parameter"
            )

    async def drain(self) -> None:
        """Read what is left and drop it, up to a file's length, for one who writes before it reads.

        A client that waits to be told to go on is not told. Raises: `ClientGone`.
        """
        self._left_bytes = self._max_drained_bytes
        if self._is_awaited:
            return
        with suppress(FileTooLarge):
            while not self._is_read:
                await self._next()

    async def _next(self) -> bytes:
        # Between two pieces the connection is not read from.
        await loop_share.turn()
        self._is_awaited = False
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body: bytes = message.get("body", b"")
        self._left_bytes -= len(body)
        if self._left_bytes < 0:
            raise FileTooLarge("The form is longer than a file may be.", param="file")
        self._is_read = not message.get("more_body", False)
        return body

    def _on_part_begin(self) -> None:
        self._num_parts += 1
        if self._num_parts > _MAX_PARTS:
            raise _malformed(f"The form has more than {_MAX_PARTS} parts.")
        self._disposition = b""

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header, self._value = b"", b""

    def _on_headers_finished(self) -> None:
        _, options = _options(self._disposition)
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if name == "file":
            if self.filename is not None:
                raise InvalidRequest("Send one file, not several.", param="file")
            self._field = None
            # One without a name is a file all the same, as `curl -F 'file=<input.jsonl'` sends it.
            self.filename = options.get(b"filename", b"").decode("utf-8", "replace")
            return
        if name not in self._fields:
            shown = name[:_MAX_SHOWN_CHARS]
            raise InvalidRequest(
                f"Unknown field of the form: '{shown}'.", param=shown, code="unknown_parameter"
            )
        if name in self.values:
            raise InvalidRequest(f"'{name}' is given more than once.", param=name)
        self._field, self._text = name, b""

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._field is None:
            self._pieces.append(data[start:end])
            return
        if len(self._text) + end - start > _MAX_FIELD_BYTES:
            raise InvalidRequest(f"'{self._field}' is too long.", param=self._field)
        self._text += data[start:end]

    def _on_part_end(self) -> None:
        if self._field is not None:
            self.values[self._field] = self._text.decode("utf-8", "replace")

    def _on_end(self) -> None:
        self._is_ended = True


def _boundary(scope: Scope) -> bytes:
    """Return what parts the form. Raises: `InvalidRequest`: it is none, or is encoded."""
    headers = dict(scope["headers"])
    encoding = headers.get(b"content-encoding", b"identity").strip().lower()
    if encoding != b"identity":
        raise InvalidRequest(
            "Send the form as it is: no Content-Encoding is understood here.",
            code="unsupported_content_encoding",
        )
    kind, options = _options(headers.get(b"content-type", b""))
    if kind != b"multipart/form-data":
        raise InvalidRequest(
            "Send the file as multipart/form-data.", code="unsupported_content_type"
        )
    boundary = options.get(b"boundary", b"")
    # RFC 2046 §5.1.1
    if not 1 <= len(boundary) <= 70:
        raise _malformed("The Content-Type of a form needs a boundary of 1 to 70 characters.")
    return boundary


def _options(header: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Read what a header says, and its options. Raises: `InvalidRequest`: there are too many."""
    if header.count(b";") > _MAX_OPTIONS:
        raise _malformed(f"A header of the form has more than {_MAX_OPTIONS} semicolons.")
    return parse_options_header(header)


def _told_bytes(scope: Scope) -> int | None:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value)
    return None


def _malformed(text: str) -> InvalidRequest:
    return InvalidRequest(text, code="invalid_form")
