"""`POST /v1/messages/count_tokens`: what a message's input would be billed as.

Held to what other questions about tokens are (`gateway.api.openai.tokens`): they are reads, not
requests, and no quota counts them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from engine.contract import SamplingParams
from engine.errors import ChatTemplateError
from engine.text import InvalidText
from gateway.api.access import require_model
from gateway.api.anthropic.asked import check_asked
from gateway.api.anthropic.form import requested_form
from gateway.api.anthropic.schemas import CountTokensRequest, MessageParam, TokenCount
from gateway.api.anthropic.turns import conversation
from gateway.api.openai.kinds import require_role
from gateway.api.openai.reading import Ignored, Reader
from gateway.domain import Principal
from gateway.errors import InvalidRequest
from gateway.services.inference import ModelRegistry, prompt_tokens

# Nothing is drawn.
_NO_PARAMS: Final = SamplingParams(max_tokens=1)


class TokenCounter:
    """Count the tokens of inputs; implements `gateway.api.openai.tokens.Work`."""

    def __init__(self, models: ModelRegistry, *, ignores_unknown: bool = False) -> None:
        self._models = models
        self._reader = Reader(
            CountTokensRequest, ignores_unknown=ignores_unknown, turn=MessageParam
        )

    def __call__(self, principal: Principal, raw: bytes, ignored: Ignored) -> list[bytes]:
        """Answer a request. Raises: `InvalidRequest`, `ModelNotFound`, `PermissionDenied`."""
        body = self._reader.read(raw, ignored)
        model = self._models.get(body.model)
        require_model(principal, model)
        require_role(model, makes_vectors=False)
        check_asked(body, ignored)
        requested_form(body)
        if body.stream:
            ignored.add("stream")
        asks = conversation(body, model, ignored, ignores_unknown=self._reader.ignores_unknown)
        job = asks.job("count", _NO_PARAMS)
        try:
            token_ids = prompt_tokens(model, job)
        except (ChatTemplateError, InvalidText) as exc:
            raise InvalidRequest(str(exc), param=job.prompt_param) from None
        return [msgspec.json.encode(TokenCount(len(token_ids)))]
