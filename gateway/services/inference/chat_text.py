"""What a chat is as text: its messages under the model's own template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.errors import InvalidRequest
from gateway.services.inference.models import ServedModel


@dataclass(frozen=True, slots=True)
class Call:
    """Hold a call that an assistant made; `arguments` should be a JSON object as text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """Hold one turn of a chat, its content already text.

    An assistant's may have `calls` and `reasoning`; a tool's says of which call it is the result.
    """

    role: str
    content: str
    name: str | None = None
    calls: tuple[Call, ...] = ()
    call_id: str | None = None
    reasoning: str | None = None


def chat_text(
    model: ServedModel,
    messages: Sequence[Message],
    *,
    variables: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]] = (),
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
) -> str:
    """Render a chat; a template may take long, so call it on a thread where that is not short.

    Calls and their results are plain turns where the template knows of none.
    Raises: `InvalidRequest`: the model has no template; `engine.errors.ChatTemplateError`.
    """
    template = model.chat_template
    if template is None:
        raise InvalidRequest(
            f"The model '{model.name}' has no chat template; use /v1/completions.", param="model"
        )
    if _has_calls(messages) and "tool_calls" not in template.names:
        messages = plain_turns(messages)
    return template.render(
        [_shown(model, message) for message in messages],
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        variables=variables,
        tools=tools,
    )


def num_chars(messages: Sequence[Message]) -> int:
    """Count what a template is given."""
    return sum(map(len, texts(messages)))


def texts(messages: Sequence[Message]) -> Iterator[str]:
    """Yield all that a template is given."""
    for message in messages:
        yield message.content
        if message.name:
            yield message.name
        if message.reasoning:
            yield message.reasoning
        if message.call_id:
            yield message.call_id
        for call in message.calls:
            yield from (call.id, call.name, call.arguments)


def plain_turns(messages: Sequence[Message]) -> list[Message]:
    """Say in words what was called and what came of it, for templates that know no tools.

    Results that follow each other are one turn of the user's, as many templates want turns of the
    two by turns.
    """
    names = {call.id: call.name for message in messages for call in message.calls}
    turns: list[Message] = []
    previous = ""
    for message in messages:
        text = message.content
        if message.role == "tool":
            name = names.get(message.call_id or "", message.name or "the tool")
            text = f"Result of {name}: {text}"
            if previous == "tool":
                text = f"{turns.pop().content}\n{text}"
            turns.append(Message("user", text))
        else:
            lines = [f"Call of {call.name}: {call.arguments}" for call in message.calls]
            text = "\n".join([*([text] if text else []), *lines]) if lines else text
            turns.append(Message(message.role, text, message.name, (), None, message.reasoning))
        previous = message.role
    return turns


def _has_calls(messages: Sequence[Message]) -> bool:
    return any(message.calls or message.role == "tool" for message in messages)


def _shown(model: ServedModel, message: Message) -> dict[str, Any]:
    """Return what a template sees of a message."""
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name is not None:
        shown["name"] = message.name
    if message.reasoning is not None:
        shown["reasoning_content"] = message.reasoning
    if message.calls:
        shown["tool_calls"] = [
            {
                "id": _template_id(model, call.id),
                "type": "function",
                "function": {"name": call.name, "arguments": _decoded(call.arguments)},
            }
            for call in message.calls
        ]
    if message.call_id is not None:
        shown["tool_call_id"] = _template_id(model, message.call_id)
    return shown


def _decoded(arguments: str) -> Any:
    """Return arguments as an object: a template writes it as JSON, and would quote a text twice.

    What is no object, as of a call that was cut off, stays the text that it is.
    """
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _template_id(model: ServedModel, call_id: str) -> str:
    calls = model.answer_format.calls
    return call_id if calls is None else calls.id_for_template(call_id)
