"""The items of an answer, as its events come, and what a stream tells of each.

    response.output_item.added
        text and thinking: content_part.added, output_text.delta … or reasoning_text.delta …,
            output_text.done or reasoning_text.done, content_part.done
        calls: function_call_arguments.delta …, function_call_arguments.done
    response.output_item.done

One item is closed before the next begins. A text of nothing but blanks before a call or the end is
no message, but where there is nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from gateway.api.responses.ids import output_name
from gateway.api.responses.schemas import (
    NO_LOGPROBS,
    FunctionCall,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
    Status,
)
from gateway.services.answers import CallArguments, CallEnd, CallStart, Event, Reasoning, Text

# Says that an event happened: its name without `response.`, and its fields.
Tell = Callable[[str, dict[str, Any]], None]

_arguments: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _silently(name: str, fields: dict[str, Any]) -> None:
    return


class OutputItems:
    """Build the items of one answer; `tell` is told of each event in its order."""

    def __init__(self, request_id: str, tell: Tell = _silently) -> None:
        self.items: list[OutputItem] = []
        self._request_id = request_id
        self._tell = tell
        self._parts: list[str] = []
        self._blanks: list[str] = []
        self._logprobs: list[bytes] = []
        self._is_open = False

    def add(self, events: Iterable[Event], logprobs: bytes = b"") -> None:
        """Take what was read; `logprobs` are those of its text, items of a JSON list."""
        if logprobs:
            self._logprobs.append(logprobs)
        for event in events:
            self._add(event, logprobs)

    def finish(self, reason: str) -> None:
        """End the answer: `length` leaves what is open incomplete."""
        if not self.items:
            self._begin(OutputMessage(self._name("msg"), [], "in_progress"))
            if self._blanks:
                self._say("".join(self._blanks), b"")
        self._close("incomplete" if reason == "length" else "completed")

    @property
    def so_far(self) -> list[OutputItem]:
        """Return the items that are whole, for a response that failed."""
        return self.items[:-1] if self._is_open else self.items

    def _add(self, event: Event, logprobs: bytes) -> None:
        match event:
            case Text(text):
                self._text(text, logprobs)
            case Reasoning(text):
                if not self._is(ReasoningItem):
                    self._close()
                    self._begin(ReasoningItem(self._name("rs"), [], "in_progress"))
                self._go_on("reasoning_text.delta", text)
            case CallStart(_, call_id, name):
                self._close()
                self._begin(FunctionCall(self._name("fc"), call_id, name, "", "in_progress"))
            case CallArguments(_, text):
                self._go_on("function_call_arguments.delta", text)
            case CallEnd():
                self._close("completed" if _is_whole("".join(self._parts)) else "incomplete")

    def _text(self, text: str, logprobs: bytes) -> None:
        if not self._is(OutputMessage):
            self._blanks.append(text)
            if not text.strip() and not logprobs:
                return
            text = "".join(self._blanks)
            self._close()
            self._begin(OutputMessage(self._name("msg"), [], "in_progress"))
        self._say(text, logprobs)

    def _say(self, text: str, logprobs: bytes) -> None:
        self._blanks = []
        scored = msgspec.Raw(b"[%b]" % logprobs) if logprobs else NO_LOGPROBS
        self._go_on("output_text.delta", text, logprobs=scored)

    def _go_on(self, name: str, text: str, **more: Any) -> None:
        self._parts.append(text)
        self._tell(name, self._place() | {"delta": text, **more})

    def _begin(self, item: OutputItem) -> None:
        self.items.append(item)
        self._is_open, self._parts = True, []
        self._tell("output_item.added", {"output_index": self._index, "item": item})
        if not isinstance(item, FunctionCall):
            part = OutputText("") if isinstance(item, OutputMessage) else ReasoningText("")
            self._tell("content_part.added", self._place() | {"part": part})

    def _close(self, status: Status = "completed") -> None:
        self._blanks = []
        if not self._is_open:
            return
        self._is_open = False
        item, text = self.items[-1], "".join(self._parts)
        item.status = status
        if isinstance(item, FunctionCall):
            item.arguments = text
            self._tell("function_call_arguments.done", self._place() | {"arguments": text})
        else:
            part: OutputText | ReasoningText
            if isinstance(item, OutputMessage):
                scored = msgspec.Raw(b"[%b]" % b",".join(self._logprobs))
                part = OutputText(text, logprobs=scored)
                item.content = [part]
                self._tell("output_text.done", self._place() | {"text": text, "logprobs": scored})
            else:
                part = ReasoningText(text)
                item.content = [part]
                self._tell("reasoning_text.done", self._place() | {"text": text})
            self._tell("content_part.done", self._place() | {"part": part})
        self._tell("output_item.done", {"output_index": self._index, "item": item})

    @property
    def _index(self) -> int:
        return len(self.items) - 1

    def _name(self, kind: str) -> str:
        return output_name(kind, self._request_id, len(self.items))

    def _place(self) -> dict[str, Any]:
        item = self.items[-1]
        place = {"item_id": item.id, "output_index": self._index}
        return place if isinstance(item, FunctionCall) else place | {"content_index": 0}

    def _is(self, kind: type[OutputItem]) -> bool:
        return self._is_open and isinstance(self.items[-1], kind)


def _is_whole(arguments: str) -> bool:
    """Tell whether a call's arguments came to their end."""
    try:
        _arguments.decode(arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True
