"""Calls as Hermes, Qwen2.5 and Qwen3 write them: each a JSON object between two tags."""

from __future__ import annotations

from typing import Final

from gateway.services.answers.call_log import CallLog
from gateway.services.answers.events import Event
from gateway.services.answers.json_call import JsonCall
from gateway.services.answers.marked_calls import MarkedCalls

MARKER: Final = "<tool_call>"
_CLOSING: Final = "</tool_call>"


def hermes_calls(calls: CallLog) -> MarkedCalls:
    """Read the calls of one answer."""
    return MarkedCalls(MARKER, lambda: _Block(calls))


class _Block:
    """Read one object and the tag behind it, which a model may forget."""

    def __init__(self, calls: CallLog) -> None:
        self._call = JsonCall(calls)
        self.is_over = False
        self.rest = ""

    @property
    def is_refused(self) -> bool:
        return self._call.is_refused

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        if not self._call.is_over:
            events = self._call.push(text)
            text = self._call.rest
        if self._call.is_over:
            self._close(self.rest + text)
        return events

    def finish(self) -> list[Event]:
        if self._call.is_over:
            # A part of the tag.
            self.rest = ""
            return []
        events = self._call.finish()
        self.rest = self._call.rest
        return events

    def _close(self, text: str) -> None:
        if self._call.is_refused:
            self.is_over, self.rest = True, text
            return
        bare = text.lstrip()
        self.is_over = not _CLOSING.startswith(bare) or bare == _CLOSING
        # Without the spaces, which may go on and on.
        self.rest = bare.removeprefix(_CLOSING)
