"""The turns of a conversation in Anthropic's shape, as the messages that a template is given.

Text blocks of a turn are put together as they are, and turns that follow each other in one role
become one, as Anthropic has it. What is said as `system`, before the turns or among them, is one
prompt at the beginning. A last turn of the assistant is what the answer goes on with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from engine.contract import SamplingParams
from gateway.api.anthropic.parameters import BLOCK
from gateway.api.anthropic.schemas import MessageParam, MessagesFields
from gateway.api.openai.bounds import MAX_MESSAGES
from gateway.api.openai.parameters import Fates, unsupported
from gateway.api.openai.reading import Ignored
from gateway.api.openai.turns import Turns
from gateway.errors import InvalidRequest
from gateway.services.inference import Job, Message, ServedModel

ROLES: Final = ("user", "assistant", "system")
# Thoughts of turns before: this server signs none and needs none back.
_THOUGHTS: Final = ("thinking", "redacted_thinking")
# Between two turns that become one, and two parts of a system prompt.
_BETWEEN: Final = "\n\n"
_BLOCK: Final = Fates(BLOCK)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Hold what a template is given; with `continues` the answer goes on with the last message."""

    messages: tuple[Message, ...]
    variables: Mapping[str, Any]
    continues: bool

    def job(self, request_id: str, params: SamplingParams, stop: tuple[str, ...] = ()) -> Job:
        """Say what to generate: its tokens are those that are counted and billed."""
        return Job(
            request_id=request_id,
            prompt=self.messages,
            params=params,
            stop=stop,
            template_variables=self.variables,
            continues=self.continues,
        )


def conversation(
    body: MessagesFields, model: ServedModel, ignored: Ignored, *, ignores_unknown: bool
) -> Conversation:
    """Read what a body says. Raises: `InvalidRequest`."""
    blocks = _Blocks(ignored, ignores_unknown=ignores_unknown)
    if not 1 <= len(body.messages) <= MAX_MESSAGES:
        raise InvalidRequest(
            f"'messages' must hold 1 to {MAX_MESSAGES} messages, not {len(body.messages)}.",
            param="messages",
        )
    system = list(blocks.parts("system", body.system)) if body.system is not None else []
    turns: list[Message] = []
    for index, turn in enumerate(body.messages):
        text = blocks.text(index, turn)
        if turn.role == "system":
            system.append(text)
        elif turns and turns[-1].role == turn.role:
            turns[-1] = Message(turn.role, _BETWEEN.join((turns[-1].content, text)))
        else:
            turns.append(Message(turn.role, text))
    if turns and turns[-1].role == "assistant" and not turns[-1].content.strip():
        # There is nothing to go on with.
        del turns[-1]
    if not turns:
        raise InvalidRequest("There is no turn to answer in 'messages'.", param="messages")
    prompt = _BETWEEN.join(part for part in system if part)
    if prompt:
        turns.insert(0, Message("system", prompt))
    effort = (body.output_config or {}).get("effort")
    given = Turns(model, ignored, ignores_unknown=ignores_unknown).variables({}, effort=effort)
    return Conversation(tuple(turns), given, turns[-1].role == "assistant")


class _Blocks:
    def __init__(self, ignored: Ignored, *, ignores_unknown: bool) -> None:
        self._ignored = ignored
        self._ignores_unknown = ignores_unknown

    def text(self, index: int, turn: MessageParam) -> str:
        if turn.role not in ROLES:
            raise InvalidRequest(
                f"Unknown role; choose one of {', '.join(ROLES)}.", param=f"messages[{index}].role"
            )
        thoughts = _THOUGHTS if turn.role == "assistant" else ()
        return "".join(self.parts(f"messages[{index}].content", turn.content, left_out=thoughts))

    def parts(
        self, where: str, content: str | list[dict[str, Any]], *, left_out: tuple[str, ...] = ()
    ) -> Iterator[str]:
        if isinstance(content, str):
            yield content
            return
        for number, block in enumerate(content):
            at, kind = f"{where}[{number}]", block.get("type")
            if kind in left_out:
                self._ignored.add(f"messages.content.{kind}")
            elif kind == "text":
                yield self._text(at, block)
            elif isinstance(kind, str):
                raise unsupported(f"{at}.type")
            else:
                raise InvalidRequest("A block has a 'type'.", param=f"{at}.type")

    def _text(self, where: str, block: dict[str, Any]) -> str:
        text = block.get("text")
        if not isinstance(text, str):
            raise InvalidRequest("A text block has a 'text'.", param=f"{where}.text")
        if len(block) > 2:
            for name in _BLOCK.taken_of(block):
                self._ignored.add(f"messages.content.{name}")
            self._unknown(where, block)
        return text

    def _unknown(self, where: str, block: dict[str, Any]) -> None:
        for name in sorted(block.keys() - _BLOCK.names):
            if block[name] is None:
                continue
            if not self._ignores_unknown:
                raise InvalidRequest(
                    f"Unknown field in a text block: {name[:64]}.",
                    param=f"{where}.{name[:64]}",
                    code="unknown_parameter",
                )
            self._ignored.add(f"messages.content.{name}")
