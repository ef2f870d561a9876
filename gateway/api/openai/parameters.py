"""What becomes of each parameter of the inference endpoints: one table, read by code and by people.

A parameter that asks for something is honoured, or given to the chat template, or taken without
effect and named in the header `x-sluice-ignored`, or refused. `docs/api.md` is written from this,
and a test asks a running server for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final

import msgspec

from gateway.errors import UnsupportedParameter

_NONE: Final = (None,)


class Fate(StrEnum):
    """Say what is done where a parameter asks for something."""

    HONOURED = "honoured"
    TEMPLATE = "given to the chat template"
    TAKEN = "taken without effect"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Parameter:
    """Describe a parameter: `asks` is a value that asks for something, `neutral` are those that
    do not."""

    name: str
    fate: Fate
    asks: Any
    note: str = ""
    neutral: Sequence[Any] = _NONE


H, P, T, R = Fate.HONOURED, Fate.TEMPLATE, Fate.TAKEN, Fate.REFUSED

COMMON: Final = (
    Parameter("model", H, "gpt-4o-mini", "as `GET /v1/models` lists it, or an alias"),
    Parameter("stream", H, True),
    Parameter("stream_options", H, {"include_usage": True}, "with `stream`; see below"),
    Parameter("max_tokens", H, 4, "1 or more; completions with `echo`: 0 for the prompt alone"),
    Parameter("temperature", H, 0.5, "0 to 2"),
    Parameter("top_p", H, 0.5, "0 to 1; 0 is greedy"),
    Parameter("top_k", H, 4, "-1 or 0 is off"),
    Parameter("min_p", H, 0.1, "0 to 1"),
    Parameter("seed", H, 7, "64 bits, signed"),
    Parameter("stop", H, ["zzz"], "up to 4 of up to 256 characters"),
    Parameter("stop_token_ids", H, [5], "up to 64"),
    Parameter("ignore_eos", H, True),
    Parameter("n", H, 2, "1 to 8"),
    Parameter("presence_penalty", H, 0.5, "-2 to 2"),
    Parameter("frequency_penalty", H, 0.5, "-2 to 2"),
    Parameter("repetition_penalty", H, 1.2, "0.01 to 10"),
    Parameter("min_tokens", H, 1, "0 to `max_tokens`"),
    Parameter("logit_bias", H, {"5": 1}, "up to 300 tokens, -100 to 100"),
    Parameter(
        "service_tier", H, "flex", "`auto`, `default`, `flex`, `priority`; capped by the key"
    ),
    Parameter(
        "priority", H, 1, "above 0 is `service_tier: flex`; below 0 has no effect and is named"
    ),
    Parameter(
        "cache_salt", H, "s", "1 to 256 characters; narrows prefix sharing inside the tenant"
    ),
    Parameter("add_special_tokens", H, False, "default: true for texts, false for chats"),
    Parameter(
        "skip_special_tokens", T, False, "special tokens are never part of a text", (None, True)
    ),
    Parameter("prompt_logprobs", T, 1, "completions: use `echo` with `logprobs`"),
    Parameter("user", T, "u", "of any type"),
    Parameter(
        "metadata", T, {"a": "b"}, "16 pairs, names of 64 and values of 512 characters", (None, {})
    ),
    Parameter(
        "response_format",
        H,
        {"type": "json_object"},
        "`text`, `json_object`, or `json_schema`, which answers are held to, `strict` or not",
    ),
    Parameter(
        "structured_outputs", H, {"choice": ["yes", "no"]}, "vLLM's; one of its kinds; see below"
    ),
    Parameter("guided_json", H, {"type": "object"}, "a schema, or its text"),
    Parameter("guided_regex", H, "[0-9]+", "up to 8,192 characters"),
    Parameter("guided_choice", H, ["yes", "no"], "up to 2,000 of up to 1,024 characters"),
    Parameter("guided_grammar", H, 'start: "a" | "b"', "Lark, up to 64 KiB"),
)

STRUCTURED_OUTPUTS: Final = (
    Parameter("json", H, {"type": "object"}, "a schema, or its text"),
    Parameter("regex", H, "[0-9]+", "up to 8,192 characters"),
    Parameter("choice", H, ["yes", "no"], "up to 2,000 of up to 1,024 characters"),
    Parameter("grammar", H, 'start: "a" | "b"', "Lark, up to 64 KiB"),
    Parameter("json_object", H, True, "any JSON object"),
    Parameter("disable_any_whitespace", H, True, "with a schema"),
    Parameter("disable_fallback", H, True, "there never is one"),
    Parameter("disable_additional_properties", R, True, neutral=(None, False)),
    Parameter("whitespace_pattern", R, " ", "blanks are up to 32 spaces and line breaks"),
    Parameter("structural_tag", R, {}),
)

CHAT: Final = (
    *COMMON,
    Parameter("messages", H, [{"role": "user", "content": "hi"}], "1 to 1,024; see below"),
    Parameter("max_completion_tokens", H, 4, "before `max_tokens`"),
    Parameter("logprobs", H, True),
    Parameter("top_logprobs", H, 2, "0 to 20, with `logprobs`"),
    Parameter(
        "reasoning_effort",
        P,
        "high",
        "at most 64 characters; as `reasoning_effort`, or turns `enable_thinking` or `thinking` "
        "off for `none` and on for others",
    ),
    Parameter("include_reasoning", H, False, "false: no `reasoning_content`, billed all the same"),
    Parameter(
        "chat_template_kwargs",
        P,
        {"enable_thinking": False},
        "up to 16 strings of 256 characters, numbers or booleans; each that the template does not "
        "use is named",
        (None, {}),
    ),
    Parameter(
        "tools",
        H,
        [{"type": "function", "function": {"name": "f"}}],
        "up to 128 functions, of models whose template knows tools, or with `tool_choice: none`; "
        "see below",
        (None, []),
    ),
    Parameter(
        "tool_choice",
        H,
        "auto",
        "`none`, `auto`, `required`, a function, or `allowed_tools`; what is forced is held to the "
        "schemas of `parameters`",
        (None, "none", "auto"),
    ),
    Parameter("functions", R, [{}], neutral=(None, [])),
    Parameter("function_call", R, {"name": "f"}, "but `none` and `auto`", (None, "none", "auto")),
    Parameter("modalities", R, ["audio"], 'but `["text"]`', (None, ["text"])),
    Parameter("audio", R, {"voice": "alloy"}),
    Parameter("web_search_options", R, {}),
    Parameter("store", R, True, "it promises storage", (None, False)),
    Parameter("verbosity", T, "low"),
    Parameter("prediction", T, {"type": "content", "content": "x"}),
    Parameter("prompt_cache_retention", T, "24h"),
    Parameter("prompt_cache_key", T, "k", "a tenant's prefixes are always shared within it"),
    Parameter("safety_identifier", T, "u"),
    Parameter("parallel_tool_calls", H, False, "false: the answer ends with its first call"),
)

COMPLETIONS: Final = (
    *COMMON,
    Parameter("prompt", H, "Hi", "a text, token ids, or up to 128 of either kind"),
    Parameter("echo", H, True),
    Parameter("logprobs", H, 2, "0 to 5"),
    Parameter("best_of", R, 3, "but equal to `n`"),
    Parameter("suffix", R, "end", neutral=(None, "")),
)

EMBEDDINGS: Final = (
    Parameter("model", H, "gpt-4o-mini", "one that makes embeddings; `GET /v1/models` lists it"),
    Parameter("input", H, "Hi", "a text, token ids, or up to 2,048 of either kind; none is empty"),
    Parameter("encoding_format", H, "base64", "`float` or `base64`: float32, low byte first"),
    Parameter(
        "dimensions", H, 8, "of models that were trained for it: cut, then made of length 1 again"
    ),
    Parameter(
        "truncate_prompt_tokens",
        H,
        4,
        "cuts what is longer, but for the special tokens at its end; -1: to what the model takes",
    ),
    Parameter("add_special_tokens", H, False, "default: true; texts"),
    *(each for each in COMMON if each.name in ("service_tier", "priority", "cache_salt")),
    *(each for each in COMMON if each.name in ("user", "metadata")),
)

TOKENIZE: Final = (
    Parameter("model", H, "gpt-4o-mini", "may be left out where one is served"),
    Parameter(
        "prompt", H, "Hi", "or `messages`; up to 256 KiB, or 8 bytes a token of a longer context"
    ),
    Parameter("messages", H, [{"role": "user", "content": "hi"}], "as a chat's"),
    Parameter("add_special_tokens", H, True, "default: true for texts, false for chats"),
    Parameter("add_generation_prompt", H, True, "chats; default: true, unless the next is"),
    Parameter("continue_final_message", H, True, "chats; ends within the last message"),
    Parameter(
        "chat_template_kwargs", P, {"enable_thinking": False}, "as a chat's", neutral=(None, {})
    ),
    Parameter("return_token_strs", H, True, "`token_strs`: as the vocabulary spells them"),
    Parameter("chat_template", R, "{{ messages }}", "the model's own is used"),
    Parameter(
        "tools",
        H,
        [{"type": "function", "function": {"name": "f"}}],
        "chats; as a chat's whose `tool_choice` is `auto`",
        (None, []),
    ),
    Parameter("mm_processor_kwargs", R, {"a": 1}, neutral=(None, {})),
)

DETOKENIZE: Final = (
    Parameter("model", H, "gpt-4o-mini", "may be left out where one is served"),
    Parameter("tokens", H, [5], "of the model's vocabulary"),
)

STREAM_OPTIONS: Final = (
    Parameter("include_usage", H, True),
    Parameter("continuous_usage_stats", H, True, "each chunk has the usage so far"),
    Parameter("include_obfuscation", T, True, neutral=(None, False)),
)

MESSAGE: Final = (
    Parameter("role", H, "user", "`system`, `developer`, `user`, `assistant`, `tool`"),
    Parameter("content", H, "hi", "a text or text parts; null of an `assistant` is empty"),
    Parameter("name", P, "bob", "up to 256 characters"),
    Parameter("refusal", T, "no"),
    Parameter("annotations", T, [{}], neutral=(None, [])),
    Parameter("reasoning_content", P, "hm"),
    Parameter("reasoning", P, "hm", "as `reasoning_content`"),
    Parameter("id", T, "m1"),
    Parameter("type", T, "note", "`text` and `message` are not named", (None, "text", "message")),
    Parameter("provider_specific_fields", T, {"a": 1}, neutral=(None, {})),
    Parameter("audio", R, {"id": "a"}),
    Parameter("function_call", R, {"name": "f"}),
    Parameter(
        "tool_calls",
        H,
        [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        "of an `assistant`: up to 128; `arguments` are a JSON object as text",
        (None, []),
    ),
    Parameter("tool_call_id", H, "c", "of a `tool`, which needs it: up to 256 characters"),
)

PART: Final = (
    Parameter("type", H, "text", "`text`"),
    Parameter("text", H, "hi"),
    Parameter("cache_control", T, {"type": "ephemeral"}),
)


class Fates:
    """Read one table: which fields of a body to refuse, and which to name."""

    def __init__(self, table: Sequence[Parameter]) -> None:
        self.names = frozenset(each.name for each in table)
        self._refused = {each.name: each.neutral for each in table if each.fate is Fate.REFUSED}
        self._taken = {each.name: each.neutral for each in table if each.fate is Fate.TAKEN}
        self._is_refusing = _any_set(self._refused)
        self._is_taking = _any_set(self._taken)

    def refuse(self, body: msgspec.Struct, *, under: str = "") -> None:
        """Raise `UnsupportedParameter` for the first field that asks for what nobody here does."""
        if not self._is_refusing(body):
            return
        for name, neutral in self._refused.items():
            if getattr(body, name) not in neutral:
                raise unsupported(under + name)

    def taken(self, body: msgspec.Struct) -> Iterator[str]:
        """Name the fields that ask for something and get nothing."""
        if not self._is_taking(body):
            return
        for name, neutral in self._taken.items():
            if getattr(body, name) not in neutral:
                yield name

    def taken_of(self, part: Mapping[str, Any]) -> Iterator[str]:
        """Name those of a part."""
        for name, neutral in self._taken.items():
            if name in part and part[name] not in neutral:
                yield name


def _any_set(fields: Mapping[str, Sequence[Any]]) -> Callable[[msgspec.Struct], bool]:
    """Return what tells whether a body says anything of some fields, which most never do."""
    assert all(None in neutral for neutral in fields.values())
    if not fields:
        return lambda body: False
    first, *others = fields
    # With two names at least it gives a tuple: one call for all of them.
    values_of, nothing = attrgetter(first, first, *others), (None,) * (len(fields) + 1)
    return lambda body: values_of(body) != nothing


def unsupported(param: str) -> UnsupportedParameter:
    """Say that a value of a parameter is not supported."""
    return UnsupportedParameter(
        f"This server does not support this value of '{param}'.", param=param
    )
