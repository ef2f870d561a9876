"""Calls as Llama 3 writes them in JSON: an answer that is an object, or several between `;`.

What it calls built-in tools, and lists of Python's calls, are text.
"""

from __future__ import annotations

from typing import Final

from gateway.services.answers.call_log import CallLog
from gateway.services.answers.events import Event
from gateway.services.answers.json_call import JsonCall
from gateway.services.answers.marked_calls import MarkedCalls

MARKER: Final = "<|python_tag|>"


def llama_calls(calls: CallLog) -> MarkedCalls:
    """Read the calls of one answer."""
    return MarkedCalls(MARKER, lambda: _Block(calls), opens_with="{")


class _Block:
    """Read objects between `;`."""

    def __init__(self, calls: CallLog) -> None:
        self._calls = calls
        self._call = JsonCall(calls)
        self._is_between = False
        self._num_calls = 0
        self.is_over = False
        self.is_refused = False
        self.rest = ""

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        text, self.rest = self.rest + text, ""
        while text and not self.is_over:
            text = self._next(text) if self._is_between else self._read(text, events)
        return events

    def finish(self) -> list[Event]:
        events = [] if self._is_between else self._call.finish()
        self.is_over = True
        if not self._is_between:
            self.rest = self._call.rest
            self.is_refused = self._call.is_refused and not self._num_calls
        return events

    def _read(self, text: str, events: list[Event]) -> str:
        events += self._call.push(text)
        if not self._call.is_over:
            return ""
        if self._call.is_refused:
            self.is_over, self.rest = True, self._call.rest
            self.is_refused = not self._num_calls
            return ""
        self._num_calls += 1
        self._is_between = True
        return self._call.rest

    def _next(self, text: str) -> str:
        """Look for a further call behind one."""
        bare = text.lstrip()
        if not bare:
            return ""
        if bare[0] == ";":
            self._is_between, self._call = False, JsonCall(self._calls)
            return bare[1:]
        self.is_over, self.rest = True, bare
        return ""
