"""How far the values of a request go: what refuses them and what describes them read it here."""

from __future__ import annotations

from typing import Final, NamedTuple

from engine.generation_config import BOUNDS as SAMPLING_BOUNDS

MAX_CHOICES: Final = 8
MAX_LOGPROBS: Final = 20
# OpenAI's bound on text completions.
MAX_TEXT_LOGPROBS: Final = 5
MAX_LOGIT_BIASES: Final = 300
# Of one that is spelled as a name.
MAX_TOKEN_ID_DIGITS: Final = 9
MAX_STOP_STRINGS: Final = 4
MAX_STOP_CHARS: Final = 256
MAX_STOP_TOKEN_IDS: Final = 64
MAX_SALT_CHARS: Final = 256
MAX_METADATA_PAIRS: Final = 16
MAX_METADATA_NAME_CHARS: Final = 64
MAX_METADATA_VALUE_CHARS: Final = 512
MAX_PROMPTS: Final = 128
ENCODING_FORMATS: Final = ("float", "base64")
MAX_MESSAGES: Final = 1024
MAX_NAME_CHARS: Final = 256
MAX_EFFORT_CHARS: Final = 64
MAX_TEMPLATE_KWARGS: Final = 16
MAX_TEMPLATE_KWARG_CHARS: Final = 256
# Letters, digits and '_', as a template can name them.
TEMPLATE_KWARG: Final = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
ROLES: Final = ("system", "developer", "user", "assistant", "tool")
MAX_TOOLS: Final = 128
# OpenAI's names of functions.
TOOL_NAME: Final = r"[A-Za-z0-9_-]{1,64}"
# Anthropic's are longer.
LONG_TOOL_NAME: Final = r"[A-Za-z0-9_-]{1,128}"
MAX_CALL_ID_CHARS: Final = 256


class Range(NamedTuple):
    """Both ends are included."""

    low: float
    high: float


# Of numbers whose range is the same whatever the model; some a model's makers may set too.
NUMBERS: Final = {
    **{name: Range(*ends) for name, ends in SAMPLING_BOUNDS.items()},
    "presence_penalty": Range(-2.0, 2.0),
    "frequency_penalty": Range(-2.0, 2.0),
    "logit_bias": Range(-100.0, 100.0),
}
_INT32_MAX: Final = (1 << 31) - 1
INTEGERS: Final = {
    "n": (1, MAX_CHOICES),
    "seed": (-(1 << 63), (1 << 63) - 1),
    "max_tokens": (1, _INT32_MAX),
    "max_completion_tokens": (1, _INT32_MAX),
    "min_tokens": (0, _INT32_MAX),
    "top_logprobs": (0, MAX_LOGPROBS),
    "logprobs": (0, MAX_TEXT_LOGPROBS),
}
