"""What becomes of each parameter of `/v1/responses`, and of what is in its input."""

from __future__ import annotations

from typing import Final

from gateway.api.openai.parameters import COMMON, Fate, Parameter

H, P, T, R = Fate.HONOURED, Fate.TEMPLATE, Fate.TAKEN, Fate.REFUSED

_SHARED: Final = (
    "model",
    "stream",
    "temperature",
    "top_p",
    "service_tier",
    "priority",
    "cache_salt",
    "add_special_tokens",
)

RESPONSES: Final = (
    *(each for each in COMMON if each.name in _SHARED),
    Parameter("input", H, "Hi", "a text, or 1 to 1,024 items; see below"),
    Parameter("instructions", H, "Be brief.", "a text; not those of the response before"),
    Parameter("max_output_tokens", H, 4, "1 or more"),
    Parameter("previous_response_id", H, "resp_0", "a stored response of the tenant's"),
    Parameter("store", H, False, "unset: true, where the server stores"),
    Parameter("metadata", H, {"a": "b"}, "kept and given back: 16 pairs", (None, {})),
    Parameter(
        "tools",
        H,
        [{"type": "function", "name": "f"}],
        "up to 128 of the type `function`; other types are refused",
        (None, []),
    ),
    Parameter(
        "tool_choice",
        H,
        "auto",
        "`none`, `auto`, `required`, a function, or `allowed_tools`",
        (None, "none", "auto"),
    ),
    Parameter("parallel_tool_calls", H, False, "false: the answer ends with its first call"),
    Parameter("text", H, {"format": {"type": "json_object"}}, "`format`; `verbosity` is taken"),
    Parameter(
        "reasoning",
        P,
        {"effort": "high"},
        "`effort`, as a chat's `reasoning_effort`; the rest is taken",
    ),
    Parameter(
        "include",
        H,
        ["message.output_text.logprobs"],
        "log-probabilities, of answers that are text alone; `reasoning.encrypted_content` is taken",
        (None, []),
    ),
    Parameter("top_logprobs", H, 2, "0 to 20, with `include`"),
    Parameter("stream_options", T, {"include_obfuscation": True}, "`include_obfuscation` alone"),
    Parameter("truncation", R, "auto", "but `disabled`", (None, "disabled")),
    Parameter("user", T, "u", "of any type"),
    Parameter("safety_identifier", T, "u", "given back"),
    Parameter("prompt_cache_key", T, "k", "given back; a tenant's prefixes are always shared"),
    Parameter("prompt_cache_retention", T, "24h"),
    Parameter("prompt_cache_options", T, {"mode": "implicit"}, neutral=(None, {})),
    Parameter("max_tool_calls", T, 3, "of hosted tools, which there are none of"),
    Parameter("background", R, True, neutral=(None, False)),
    Parameter("background_options", R, {"completion_window": "2h"}, neutral=(None, {})),
    Parameter("conversation", R, "conv_1"),
    Parameter("prompt", R, {"id": "pmpt_1"}),
    Parameter("context_management", R, [{"type": "compaction"}], neutral=(None, [])),
    Parameter("moderation", R, {"model": "m"}),
    Parameter("access_programs", R, {"cyber": "standard"}, neutral=(None, {})),
    Parameter("image", R, {"context_compression": "auto"}, neutral=(None, {})),
)
