"""A response as an object: what was asked and is given back, and how it stands."""

from __future__ import annotations

import time
from typing import Any, Final, Literal

import msgspec

from gateway.api.errors import classify
from gateway.api.openai.kinds import Answer
from gateway.api.responses.schemas import (
    IncompleteDetails,
    InputTokensDetails,
    OutputItem,
    OutputMessage,
    OutputText,
    OutputTokensDetails,
    ReasoningSettings,
    ResponseFault,
    ResponseObject,
    ResponsesRequest,
    ResponseUsage,
    Status,
)
from gateway.errors import GatewayError

_TOOL: Final = {"description": None, "parameters": None, "strict": None}
_FORMAT: Final = {"description": None, "strict": None}


def response_object(
    answer: Answer[ResponsesRequest], status: Status, output: list[OutputItem]
) -> ResponseObject:
    """Return how a response stands; one that is over has its usage."""
    body, envelope = answer.body, answer.envelope
    is_over = status in ("completed", "incomplete")
    return ResponseObject(
        id=envelope.id,
        created_at=envelope.created_s,
        status=status,
        model=envelope.model,
        output=output,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        tool_choice="auto" if body.tool_choice is None else body.tool_choice,
        tools=msgspec.Raw(msgspec.json.encode([_TOOL | tool for tool in body.tools or []])),
        text=msgspec.Raw(msgspec.json.encode({"format": _format(body)})),
        completed_at=int(time.time()) if status == "completed" else None,
        incomplete_details=IncompleteDetails() if status == "incomplete" else None,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning=ReasoningSettings((body.reasoning or {}).get("effort")),
        safety_identifier=body.safety_identifier,
        service_tier=envelope.service_tier,
        temperature=body.temperature,
        top_logprobs=body.top_logprobs or 0,
        top_p=body.top_p,
        usage=usage_of(answer) if is_over else None,
        user=body.user if isinstance(body.user, str) else None,
    )


def usage_of(answer: Answer[ResponsesRequest]) -> ResponseUsage:
    """Count what an answer has used."""
    [generation] = answer.run.generations
    return ResponseUsage(
        generation.num_prompt_tokens,
        InputTokensDetails(generation.num_cached_tokens),
        generation.num_output_tokens,
        OutputTokensDetails(generation.num_reasoning_tokens),
        generation.num_prompt_tokens + generation.num_output_tokens,
    )


def status_of(reason: str) -> Literal["completed", "incomplete"]:
    """Say how an answer ended."""
    return "incomplete" if reason == "length" else "completed"


def fault_of(error: GatewayError) -> ResponseFault:
    """Say an error in the few codes that there are."""
    status, _ = classify(error)
    if status == 429:
        return ResponseFault("rate_limit_exceeded", error.message)
    return ResponseFault("server_error" if status >= 500 else "invalid_prompt", error.message)


def without_logprobs(items: list[OutputItem]) -> list[OutputItem]:
    """Return items as they are stored."""
    return [
        msgspec.structs.replace(item, content=[OutputText(part.text) for part in item.content])
        if isinstance(item, OutputMessage)
        else item
        for item in items
    ]


def _format(body: ResponsesRequest) -> dict[str, Any]:
    asked = (body.text or {}).get("format")
    if not isinstance(asked, dict):
        return {"type": "text"}
    return _FORMAT | asked if asked["type"] == "json_schema" else {"type": asked["type"]}
