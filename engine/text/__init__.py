"""Text in and out: prompts, chats, and what of a stream may be shown yet. Loads no torch."""

from engine.text.chat_template import RESERVED_NAMES, ChatTemplate
from engine.text.detokenizer import Detokenizer
from engine.text.stop_strings import StopStrings, undecided_from
from engine.text.tokenizer import InvalidText, Tokenizer

__all__ = [
    "RESERVED_NAMES",
    "ChatTemplate",
    "Detokenizer",
    "InvalidText",
    "StopStrings",
    "Tokenizer",
    "undecided_from",
]
