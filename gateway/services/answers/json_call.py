"""A call written as a JSON object with a name and arguments, read as it comes.

Where the name stands first, as templates teach it, the call is known once its arguments begin, and
they are handed on as they come, byte for byte. In any other order the object is read when it is
whole. What is no call of a tool that is offered is given back as text.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from gateway.services.answers.call_log import CallLog
from gateway.services.answers.events import Event
from gateway.services.answers.json_scan import JsonScan

# A name is short, and so are spaces: what goes on and on is read when it is whole.
_NAME: Final = r'("(?:[^"\\]|\\.){1,256}")'
_ARGUMENTS: Final = '"(?:arguments|parameters)"'
_MAX_HEADER_CHARS: Final = 4096
_HEADER: Final = re.compile(
    r"\s{0,256}".join((r"\{", '"name"', ":", _NAME, ",", _ARGUMENTS, ":", r"(?=\{)"))
)


class _Whole(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"null")
    parameters: msgspec.Raw = msgspec.Raw(b"null")


_whole: Final = msgspec.json.Decoder(_Whole)
_name: Final = msgspec.json.Decoder(str)
_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class JsonCall:
    """Read one object: `push` text until it `is_over`.

    Then `rest` is what came behind it; or it `is_refused`, and `rest` is all that it was given.
    """

    def __init__(self, calls: CallLog) -> None:
        self._calls = calls
        # As it came: what is held may grow to a whole answer, and is joined once.
        self._spaces: list[str] = []
        self._held: list[str] = []
        self._num_held = 0
        self._scan = JsonScan()
        # Of the object around the arguments, once these are over.
        self._tail: JsonScan | None = None
        self._is_open = False
        self.is_over = False
        self.is_refused = False
        self.rest = ""

    def push(self, text: str) -> list[Event]:
        """Return what the text adds."""
        if self._tail is not None:
            self._end(text)
            return []
        return self._arguments(text) if self._is_open else self._decide(text)

    def finish(self) -> list[Event]:
        """End it where the text does."""
        if self._is_open:
            self._is_open = False
            self.is_over = True
            return [self._calls.end()]
        if self._held or self._spaces:
            self._refuse()
        self.is_over = True
        return []

    def _decide(self, text: str) -> list[Event]:
        if not self._held:
            bare = text.lstrip()
            self._spaces.append(text[: len(text) - len(bare)])
            text = bare
            if not text:
                return []
            if text[0] != "{":
                self._held = [text]
                return self._refuse()
        self._held.append(text)
        if self._num_held < _MAX_HEADER_CHARS:
            self._held = ["".join(self._held)]
            if header := _HEADER.match(self._held[0]):
                return self._open(header)
        end = self._scan.end_in(text)
        num_before = self._num_held
        self._num_held += len(text)
        return [] if end is None else self._read_whole(num_before + end)

    def _open(self, header: re.Match[str]) -> list[Event]:
        name = _decoded(header[1])
        if name is None or not self._calls.offers(name):
            return self._refuse()
        self._held = []
        self._scan, self._is_open = JsonScan(), True
        return [self._calls.start(name), *self._arguments(header.string[header.end() :])]

    def _read_whole(self, end: int) -> list[Event]:
        held = "".join(self._held)
        call = _read(held[:end])
        if self._scan.is_broken or call is None or not self._calls.offers(call[0]):
            return self._refuse()
        self.is_over, self.rest, self._held = True, held[end:], []
        name, arguments = call
        return [self._calls.start(name), self._calls.arguments(arguments), self._calls.end()]

    def _arguments(self, text: str) -> list[Event]:
        end = self._scan.end_in(text)
        if end is None:
            return [self._calls.arguments(text)] if text else []
        self._is_open = False
        events: list[Event] = [self._calls.arguments(text[:end])] if end else []
        events.append(self._calls.end())
        if self._scan.is_broken:
            self.is_over, self.rest = True, text[end:]
        else:
            self._tail = JsonScan(depth=1)
            self._end(text[end:])
        return events

    def _end(self, text: str) -> None:
        """Pass over what follows the arguments in their object."""
        assert self._tail is not None
        end = self._tail.end_in(text)
        if end is not None:
            self.is_over, self.rest = True, text[end:]

    def _refuse(self) -> list[Event]:
        self.is_over = self.is_refused = True
        self.rest = "".join([*self._spaces, *self._held])
        self._spaces, self._held = [], []
        return []


def _decoded(text: str) -> str | None:
    try:
        return _name.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return None


def _read(text: str) -> tuple[str, str] | None:
    """Return the name and the arguments of a whole object; None: it is no call."""
    try:
        call = _whole.decode(text)
        said = [bytes(each).decode() for each in (call.arguments, call.parameters)]
        arguments = next((each for each in said if each != "null"), "{}")
        if arguments.startswith('"'):
            # Quoted twice, as OpenAI's own shape has it.
            arguments = _name.decode(arguments)
        _object.decode(arguments)
        return call.name, arguments
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
