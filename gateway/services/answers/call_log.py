"""The calls of one answer: which tools may be called, and what each call's events are."""

from __future__ import annotations

from collections.abc import Callable, Collection

from gateway.services.answers.events import CallArguments, CallEnd, CallStart


class CallLog:
    """Number the calls of one answer, and give each an id."""

    def __init__(self, names: Collection[str], new_id: Callable[[], str]) -> None:
        self._names = names
        self._new_id = new_id
        self.num_calls = 0

    def offers(self, name: str) -> bool:
        """Tell whether a tool of this name may be called: a call of another is text."""
        return name in self._names

    def start(self, name: str) -> CallStart:
        self.num_calls += 1
        return CallStart(self.num_calls - 1, self._new_id(), name)

    def arguments(self, fragment: str) -> CallArguments:
        return CallArguments(self.num_calls - 1, fragment)

    def end(self) -> CallEnd:
        return CallEnd(self.num_calls - 1)
