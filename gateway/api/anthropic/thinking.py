"""Whether a model is to think before it answers, and what of that its client is shown."""

from __future__ import annotations

import base64
import hashlib
from typing import Any, Final

from gateway.api.anthropic.schemas import MessagesFields
from gateway.api.openai.reading import Ignored
from gateway.errors import InvalidRequest
from gateway.services.inference import ServedModel

_TYPES: Final = ("enabled", "adaptive", "disabled", "between_tools")
_DISPLAYS: Final = (None, "summarized", "omitted")


def requested_thinking(body: MessagesFields, model: ServedModel, ignored: Ignored) -> bool | None:
    """Read `thinking`; None: as the model's template has it. Raises: `InvalidRequest`."""
    asked = body.thinking
    if asked is None:
        return None
    kind = asked.get("type")
    if kind not in _TYPES:
        raise InvalidRequest(
            f"'thinking.type' is one of {', '.join(_TYPES)}.", param="thinking.type"
        )
    for name in asked.keys() - {"type", "budget_tokens", "display"}:
        raise InvalidRequest(f"Unknown field in 'thinking': {name[:64]}.", param="thinking")
    if asked.get("display") not in _DISPLAYS:
        raise InvalidRequest(
            "'thinking.display' is 'summarized' or 'omitted'.", param="thinking.display"
        )
    _check_budget(asked)
    if kind == "disabled":
        return False
    if kind == "between_tools" or not model.answer_format.thinks:
        ignored.add("thinking")
        return None
    if asked.get("budget_tokens") is not None:
        ignored.add("thinking.budget_tokens")
    return True if kind == "enabled" else None


def shows_thinking(body: MessagesFields) -> bool:
    """Tell whether an answer has blocks of what was thought."""
    return (body.thinking or {}).get("type") != "disabled"


def omits_thinking(body: MessagesFields) -> bool:
    """Tell whether such blocks are to be empty but for their signature."""
    return (body.thinking or {}).get("display") == "omitted"


def signature_of(thought: str) -> str:
    """Return the signature of a block: a digest, which is taken back and checked by nobody."""
    digest = hashlib.sha256(thought.encode("utf-8", "replace")).digest()
    return base64.b64encode(digest).decode()


def _check_budget(asked: dict[str, Any]) -> None:
    budget = asked.get("budget_tokens")
    if asked["type"] != "enabled" and budget is None:
        return
    if not isinstance(budget, int) or isinstance(budget, bool) or budget < 1:
        raise InvalidRequest(
            "'thinking.budget_tokens' is a number of tokens, 1 or more.",
            param="thinking.budget_tokens",
        )
