"""The wire types of `/v1/messages`, in Anthropic's shapes.

Only types are checked here; ranges, and what this server cannot do, are the other modules'.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gateway.api.openai.schemas import RequestFields


class MessageParam(msgspec.Struct, forbid_unknown_fields=True):
    """Hold one turn of a conversation: a text, or blocks."""

    role: str
    content: str | list[dict[str, Any]]


class MessagesFields(RequestFields, forbid_unknown_fields=True, kw_only=True):
    """Hold what a message and the count of its tokens share; Any is told apart by hand."""

    messages: list[MessageParam]
    stream: bool | None = None
    system: str | list[dict[str, Any]] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    tools: list[Any] | None = None
    tool_choice: dict[str, Any] | None = None
    cache_control: Any = None
    speed: Any = None
    mcp_servers: Any = None
    context_management: Any = None
    user_profile_id: Any = None
    workspace_id: Any = None

    @property
    def may_have_form(self) -> bool:
        asked = (self.output_config, self.output_format, self.tool_choice)
        return any(field is not None for field in asked)


class MessagesRequest(MessagesFields, forbid_unknown_fields=True, kw_only=True):
    """Decode the body of `POST /v1/messages`."""

    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    labels: dict[str, Any] | None = msgspec.field(name="metadata", default=None)
    asked_tier: str | None = msgspec.field(name="service_tier", default=None)
    container: Any = None
    diagnostics: Any = None
    inference_geo: Any = None

    @property
    def service_tier(self) -> str | None:
        """Return the tier in our words: `standard_only` is to be no better than the default."""
        return "default" if self.asked_tier == "standard_only" else self.asked_tier


class CountTokensRequest(MessagesFields, forbid_unknown_fields=True, kw_only=True):
    """Decode the body of `POST /v1/messages/count_tokens`."""


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str
    citations: None = None


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """Hold what was thought; the signature is its digest, which nobody checks."""

    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """Hold a call; `x_input_text`, ours, is what the model wrote where that is no JSON object."""

    id: str
    name: str
    input: msgspec.Raw
    x_input_text: str | msgspec.UnsetType = msgspec.UNSET


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


class ThinkingDetails(msgspec.Struct):
    thinking_tokens: int = 0


BilledAs = Literal["standard", "priority", "batch"]


class MessageUsage(msgspec.Struct):
    """Count tokens; those read from the prefix cache are not among `input_tokens`."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0
    output_tokens_details: ThinkingDetails = msgspec.field(default_factory=ThinkingDetails)
    service_tier: BilledAs | None = None


class MessageAnswer(msgspec.Struct):
    """Answer `POST /v1/messages`; `x_stop_cause`, ours, says what cut an answer short."""

    id: str
    model: str
    content: list[AnswerBlock]
    usage: MessageUsage
    stop_reason: str | None
    stop_sequence: str | None = None
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    x_stop_cause: str | msgspec.UnsetType = msgspec.UNSET


class TokenCount(msgspec.Struct):
    """Answer `POST /v1/messages/count_tokens`: what the input would be billed as."""

    input_tokens: int
