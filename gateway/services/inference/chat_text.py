"""What a chat is as text: its messages under the model's own template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import InvalidRequest
from gateway.services.inference.models import ServedModel


@dataclass(frozen=True, slots=True)
class Message:
    """Hold one turn of a chat, its content already text."""

    role: str
    content: str
    name: str | None = None


def chat_text(
    model: ServedModel,
    messages: Sequence[Message],
    *,
    variables: Mapping[str, Any],
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
) -> str:
    """Render a chat; a template may take long, so call it on a thread where that is not short.

    Raises: `InvalidRequest`: the model has no template; `engine.errors.ChatTemplateError`.
    """
    if model.chat_template is None:
        raise InvalidRequest(
            f"The model '{model.name}' has no chat template; use /v1/completions.", param="model"
        )
    return model.chat_template.render(
        [_shown(message) for message in messages],
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        variables=variables,
    )


def num_chars(messages: Sequence[Message]) -> int:
    """Count what a template is given."""
    return sum(len(message.content) + len(message.name or "") for message in messages)


def _shown(message: Message) -> dict[str, str]:
    """Return what a template sees of a message."""
    shown = {"role": message.role, "content": message.content}
    return shown if message.name is None else shown | {"name": message.name}
