"""Whose words a path speaks: OpenAI's, but for Anthropic's below `/v1/messages`."""

from __future__ import annotations

from typing import Final

MESSAGES: Final = "/v1/messages"


def speaks_anthropic(path: str) -> bool:
    """Tell whether answers and refusals of a path are in Anthropic's shapes."""
    return path == MESSAGES or path.startswith(f"{MESSAGES}/")
