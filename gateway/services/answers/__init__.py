"""What an answer is: text, thinking and calls, read once and rendered by every API."""

from gateway.services.answers.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    Finish,
    Reasoning,
    Text,
)
from gateway.services.answers.formats import (
    CALL_FORMATS,
    HERMES,
    LLAMA,
    MISTRAL,
    PLAIN,
    AnswerFormat,
    CallFormat,
    Reading,
    answer_format,
    new_call_id,
)
from gateway.services.answers.reader import (
    AnswerReader,
    ReadAnswer,
    ReadCall,
    gathered_answer,
    merged,
)
from gateway.services.answers.thinking import TAIL_CHARS, begins_in

__all__ = [
    "CALL_FORMATS",
    "HERMES",
    "LLAMA",
    "MISTRAL",
    "PLAIN",
    "TAIL_CHARS",
    "AnswerFormat",
    "AnswerReader",
    "CallArguments",
    "CallEnd",
    "CallFormat",
    "CallStart",
    "Event",
    "Finish",
    "ReadAnswer",
    "ReadCall",
    "Reading",
    "Reasoning",
    "Text",
    "answer_format",
    "begins_in",
    "gathered_answer",
    "merged",
    "new_call_id",
]
