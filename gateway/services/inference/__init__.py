"""From a request to text: rendered, tokenised, leased, submitted, read."""

from gateway.services.inference.chat_text import Call, Message, chat_text, num_chars, texts
from gateway.services.inference.embedding_inputs import (
    MAX_INPUTS,
    MAX_TOTAL_TOKENS,
    EmbeddingJob,
    appended_ids,
)
from gateway.services.inference.forced_calls import either, forced_calls
from gateway.services.inference.generation import Computing, Echo, Generation, Piece
from gateway.services.inference.idempotency import IdempotencyService
from gateway.services.inference.key_watch import KeyWatch
from gateway.services.inference.leased import LeasedInference, Run
from gateway.services.inference.models import ModelRegistry, ServedModel, sizes_of
from gateway.services.inference.service import (
    BatchWork,
    InferenceService,
    Job,
    check_prompt_length,
    prompt_tokens,
    sender_of,
    served_tier,
)

__all__ = [
    "MAX_INPUTS",
    "MAX_TOTAL_TOKENS",
    "BatchWork",
    "Call",
    "Computing",
    "Echo",
    "EmbeddingJob",
    "Generation",
    "IdempotencyService",
    "InferenceService",
    "Job",
    "KeyWatch",
    "LeasedInference",
    "Message",
    "ModelRegistry",
    "Piece",
    "Run",
    "ServedModel",
    "appended_ids",
    "chat_text",
    "check_prompt_length",
    "either",
    "forced_calls",
    "num_chars",
    "prompt_tokens",
    "sender_of",
    "served_tier",
    "sizes_of",
    "texts",
]
