"""The turns of a conversation in Anthropic's shape, as the messages that a template is given.

Text blocks of a turn are put together as they are, and turns that follow each other in one role
become one, as Anthropic has it. What is said as `system`, before the turns or among them, is one
prompt at the beginning. A last turn of the assistant is what the answer goes on with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from engine.contract import SamplingParams
from gateway.api.anthropic.blocks import BlockReader
from gateway.api.anthropic.form import requested_effort
from gateway.api.anthropic.schemas import MessagesFields
from gateway.api.anthropic.thinking import requested_thinking
from gateway.api.anthropic.tools import AskedTools, requested_tools
from gateway.api.openai.bounds import MAX_MESSAGES
from gateway.api.openai.reading import Ignored
from gateway.api.openai.turns import Turns
from gateway.errors import InvalidRequest
from gateway.services.answers import Reading
from gateway.services.constraints import ConstraintSpec
from gateway.services.inference import Job, Message, ServedModel

# Between two turns that become one, and two parts of a system prompt.
_BETWEEN: Final = "\n\n"


@dataclass(frozen=True, slots=True)
class Conversation:
    """Hold what a template is given; with `continues` the answer goes on with the last message."""

    messages: tuple[Message, ...]
    variables: Mapping[str, Any]
    continues: bool
    tools: AskedTools

    def job(
        self,
        request_id: str,
        params: SamplingParams,
        stop: tuple[str, ...] = (),
        *,
        reading: Reading | None = None,
        constraint: ConstraintSpec | None = None,
    ) -> Job:
        """Say what to generate: its tokens are those that are counted and billed."""
        return Job(
            request_id=request_id,
            prompt=self.messages,
            params=params,
            stop=stop,
            template_variables=self.variables,
            tools=self.tools.offer.tools,
            tools_chars=self.tools.offer.num_chars,
            reading=reading,
            constraint=constraint,
            continues=self.continues,
        )


def conversation(
    body: MessagesFields, model: ServedModel, ignored: Ignored, *, ignores_unknown: bool
) -> Conversation:
    """Read what a body says. Raises: `InvalidRequest`."""
    if not 1 <= len(body.messages) <= MAX_MESSAGES:
        raise InvalidRequest(
            f"'messages' must hold 1 to {MAX_MESSAGES} messages, not {len(body.messages)}.",
            param="messages",
        )
    turns = _turns(body, model, ignored, ignores_unknown=ignores_unknown)
    return Conversation(
        tuple(turns),
        _variables(body, model, ignored, ignores_unknown=ignores_unknown),
        turns[-1].role == "assistant",
        requested_tools(body, model, ignored, ignores_unknown=ignores_unknown),
    )


def _turns(
    body: MessagesFields, model: ServedModel, ignored: Ignored, *, ignores_unknown: bool
) -> list[Message]:
    template = model.chat_template
    blocks = BlockReader(
        ignored,
        ignores_unknown=ignores_unknown,
        takes_thoughts=template is not None and "reasoning_content" in template.names,
    )
    system = list(blocks.texts("system", body.system)) if body.system is not None else []
    turns: list[Message] = []
    for index, turn in enumerate(body.messages):
        # One of a turn's results follows another; none of them is one with what is said.
        for message in blocks.messages(index, turn):
            if message.role == "system":
                system.append(message.content)
            elif turns and turns[-1].role == message.role != "tool":
                turns[-1] = _joined(turns[-1], message)
            else:
                turns.append(message)
    _check_end(turns)
    prompt = _BETWEEN.join(part for part in system if part)
    return [Message("system", prompt), *turns] if prompt else turns


def _joined(first: Message, second: Message) -> Message:
    """Make one turn of two."""
    texts = [first.content, second.content]
    if first.calls or second.calls:
        texts = [text for text in texts if text]
    thoughts = [each.reasoning for each in (first, second) if each.reasoning]
    return Message(
        first.role,
        _BETWEEN.join(texts),
        calls=first.calls + second.calls,
        reasoning=_BETWEEN.join(thoughts) or None,
    )


def _check_end(turns: list[Message]) -> None:
    """Drop a last turn that there is nothing to go on with. Raises: `InvalidRequest`."""
    if turns and turns[-1].role == "assistant":
        if turns[-1].calls:
            raise InvalidRequest(
                "The last turn calls tools; the next one has their results.", param="messages"
            )
        if not turns[-1].content.strip():
            del turns[-1]
    if not turns:
        raise InvalidRequest("There is no turn to answer in 'messages'.", param="messages")


def _variables(
    body: MessagesFields, model: ServedModel, ignored: Ignored, *, ignores_unknown: bool
) -> Mapping[str, Any]:
    """Return what a template sees beside the messages."""
    given = Turns(model, ignored, ignores_unknown=ignores_unknown)
    thinks = requested_thinking(body, model, ignored)
    if thinks is False and model.answer_format.thinks and not given.can_switch:
        # It thinks all the same, and nobody is shown it.
        ignored.add("thinking")
    return given.variables({}, effort=requested_effort(body), thinks=thinks)
