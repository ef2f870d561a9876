"""The wire types of `/v1/responses`, in OpenAI's shapes.

Only types of fields are checked here; what items, tools and settings may be is told elsewhere in
this room. The fields of type Any are for what this server does not do: `parameters` says more.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from gateway.api.openai.schemas import OpenAiFields, StreamOptions
from gateway.domain import Tier

Status = Literal["in_progress", "completed", "incomplete", "failed"]


NO_LOGPROBS: Final = msgspec.Raw(b"[]")


class ResponsesRequest(OpenAiFields, forbid_unknown_fields=True, kw_only=True):
    """Decode the body of `POST /v1/responses`."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    truncation: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None
    max_tool_calls: int | None = None
    background: bool | None = None
    background_options: Any = None
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    moderation: Any = None
    access_programs: Any = None
    image: Any = None

    @property
    def may_have_form(self) -> bool:
        return self.text is not None or self.tool_choice not in (None, "auto", "none")


class OutputText(msgspec.Struct):
    """Say a part of an answer; `logprobs` are JSON."""

    text: str
    annotations: list[Any] = []
    logprobs: msgspec.Raw = msgspec.field(default_factory=lambda: NO_LOGPROBS)
    type: Literal["output_text"] = "output_text"


class OutputMessage(msgspec.Struct):
    id: str
    content: list[OutputText]
    status: Status
    role: Literal["assistant"] = "assistant"
    type: Literal["message"] = "message"


class FunctionCall(msgspec.Struct):
    id: str
    call_id: str
    name: str
    arguments: str
    status: Status
    type: Literal["function_call"] = "function_call"


class ReasoningText(msgspec.Struct):
    text: str
    type: Literal["reasoning_text"] = "reasoning_text"


class ReasoningItem(msgspec.Struct):
    id: str
    content: list[ReasoningText]
    status: Status
    summary: list[Any] = []
    type: Literal["reasoning"] = "reasoning"


OutputItem = OutputMessage | FunctionCall | ReasoningItem


class InputTokensDetails(msgspec.Struct):
    """Say what of a prompt was found; what was written costs nothing here, and is not counted."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseFault(msgspec.Struct):
    """Say why a response failed after its first events were sent."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class ReasoningSettings(msgspec.Struct):
    effort: str | None = None
    summary: str | None = None


class ResponseObject(msgspec.Struct, kw_only=True):
    """Spell a response. `store` says whether it was stored; `tools` and what `text` is are JSON."""

    id: str
    created_at: int
    status: Status
    model: str
    output: list[Any]
    parallel_tool_calls: bool
    tool_choice: str | dict[str, Any]
    tools: msgspec.Raw
    text: msgspec.Raw
    object: Literal["response"] = "response"
    background: bool = False
    completed_at: int | None = None
    error: ResponseFault | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] = {}
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: ReasoningSettings = msgspec.field(default_factory=ReasoningSettings)
    safety_identifier: str | None = None
    service_tier: Tier = Tier.DEFAULT
    store: bool = False
    temperature: float | None = None
    top_logprobs: int = 0
    top_p: float | None = None
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None
    x_stop_cause: str | msgspec.UnsetType = msgspec.UNSET


class ResponseDeleted(msgspec.Struct):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputItemList(msgspec.Struct):
    """List items that a response was asked with."""

    data: list[Any]
    first_id: str
    last_id: str
    has_more: bool
    object: Literal["list"] = "list"
