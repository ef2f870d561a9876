"""The errors of this package.

    EngineError
    ├── EngineOutOfMemory   a step found no memory, a smaller one might
    ├── ConstraintFailed    a sequence's constraint does not know what may come next
    ├── ModelError          a model directory cannot be served
    ├── ChatTemplateError   a chat template rejects the messages, or is not there
    └── InvalidText         a text has no UTF-8 form (in `engine.text.tokenizer`)

Each message is one line fit for a person: it names the file or field and what to do.
"""


class EngineError(Exception):
    """Catch this to catch whatever the engine raises on purpose."""


class EngineOutOfMemory(EngineError):
    """Reset the engine, and launch smaller steps."""


class ConstraintFailed(EngineError):
    """End the sequence whose constraint says so; it never gets well again."""


class ModelError(EngineError):
    """Mend the model directory that the message names, or choose another."""


class ChatTemplateError(EngineError):
    """Send messages that the model's chat template accepts, or serve a model that has one."""
