"""Calls as Mistral's models write them behind `[TOOL_CALLS]`.

The third tokenizer's is a JSON array of calls; later ones write a name, from the eleventh on
perhaps an id, and the arguments as an object, with a marker for each call.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.services.answers.call_log import CallLog
from gateway.services.answers.events import Event
from gateway.services.answers.json_call import JsonCall
from gateway.services.answers.json_scan import JsonScan
from gateway.services.answers.marked_calls import Block, MarkedCalls

MARKER: Final = "[TOOL_CALLS]"
ARGUMENTS_MARKER: Final = "[ARGS]"
ID_MARKER: Final = "[CALL_ID]"
_HEAD: Final = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*[\w-]+\s*)?(?:\[ARGS\])?\s*")
_HEAD_SO_FAR: Final = re.compile(r"[\w.\-\[\]\s]{0,256}")


def mistral_calls(calls: CallLog) -> MarkedCalls:
    """Read the calls of one answer."""
    return MarkedCalls(MARKER, lambda: _Block(calls))


class _Block:
    """Read an array, or a name with arguments: what comes first tells."""

    def __init__(self, calls: CallLog) -> None:
        self._calls = calls
        self._inner: Block | None = None
        self._spaces: list[str] = []

    @property
    def is_over(self) -> bool:
        return self._inner is not None and self._inner.is_over

    @property
    def is_refused(self) -> bool:
        return self._inner is None or self._inner.is_refused

    @property
    def rest(self) -> str:
        return "".join(self._spaces) if self._inner is None else self._inner.rest

    def push(self, text: str) -> list[Event]:
        if self._inner is not None:
            return self._inner.push(text)
        bare = text.lstrip()
        self._spaces.append(text)
        if not bare:
            return []
        self._inner = _Array(self._calls) if bare[0] == "[" else _Named(self._calls)
        return self._inner.push("".join(self._spaces))

    def finish(self) -> list[Event]:
        return [] if self._inner is None else self._inner.finish()


class _Array:
    """Read `[{…}, {…}]`."""

    def __init__(self, calls: CallLog) -> None:
        self._calls = calls
        self._call: JsonCall | None = None
        self._num_calls = 0
        self._held: list[str] = []
        self.is_over = False
        self.is_refused = False
        self.rest = ""

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        while text and not self.is_over:
            text = self._between(text) if self._call is None else self._read(text, events)
        return events

    def finish(self) -> list[Event]:
        events = [] if self._call is None else self._call.finish()
        self.is_over = True
        if not self._num_calls and (self._call is None or self._call.is_refused):
            self.is_refused = True
            self.rest = self._given("" if self._call is None else self._call.rest)
        return events

    def _between(self, text: str) -> str:
        """Pass over what stands before a call, or end at the array's end."""
        bare = text.lstrip("[, \t\r\n" if not self._num_calls else ", \t\r\n")
        self._held.append(text[: len(text) - len(bare)])
        if bare.startswith("]"):
            self.is_over = True
            self.is_refused = not self._num_calls
            self.rest = self._given(bare) if self.is_refused else bare[1:]
            return ""
        if bare:
            self._call = JsonCall(self._calls)
        return bare

    def _read(self, text: str, events: list[Event]) -> str:
        assert self._call is not None
        call = self._call
        events += call.push(text)
        if not call.is_over:
            return ""
        if call.is_refused:
            self.is_over, self.is_refused = True, not self._num_calls
            self.rest = self._given(call.rest) if self.is_refused else call.rest
            return ""
        self._call, self._held = None, []
        self._num_calls += 1
        return call.rest

    def _given(self, rest: str) -> str:
        """Return all that it was given, of which `rest` is left."""
        return "".join([*self._held, rest])


class _Named:
    """Read `name[CALL_ID]id[ARGS]{…}`."""

    def __init__(self, calls: CallLog) -> None:
        self._calls = calls
        self._head = ""
        self._scan: JsonScan | None = None
        self.is_over = False
        self.is_refused = False
        self.rest = ""

    def push(self, text: str) -> list[Event]:
        return self._decide(text) if self._scan is None else self._arguments(text)

    def finish(self) -> list[Event]:
        self.is_over = True
        if self._scan is None:
            return self._refuse()
        return [self._calls.end()]

    def _decide(self, text: str) -> list[Event]:
        self._head += text
        at = self._head.find("{")
        if at < 0:
            return [] if _HEAD_SO_FAR.fullmatch(self._head) else self._refuse()
        head = self._head[:at]
        found = _HEAD.fullmatch(head) if _HEAD_SO_FAR.fullmatch(head) else None
        if found is None or not self._calls.offers(found[1]):
            return self._refuse()
        self._scan = JsonScan()
        return [self._calls.start(found[1]), *self._arguments(self._head[at:])]

    def _arguments(self, text: str) -> list[Event]:
        assert self._scan is not None
        end = self._scan.end_in(text)
        if end is None:
            return [self._calls.arguments(text)] if text else []
        self.is_over, self.rest = True, text[end:]
        given: list[Event] = [self._calls.arguments(text[:end])] if end else []
        return [*given, self._calls.end()]

    def _refuse(self) -> list[Event]:
        self.is_over = self.is_refused = True
        self.rest = self._head
        return []
