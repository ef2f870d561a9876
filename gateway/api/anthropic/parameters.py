"""What becomes of each parameter of `/v1/messages`: as the tables of OpenAI's endpoints."""

from __future__ import annotations

from typing import Final

from gateway.api.openai.parameters import H, P, Parameter, R, T

_BOTH: Final = (
    Parameter("model", H, "gpt-4o-mini", "as `GET /v1/models` lists it, or an alias"),
    Parameter(
        "messages",
        H,
        [{"role": "user", "content": "hi"}],
        "1 to 1,024 of `user`, `assistant`, `system`, a text or text blocks; the last of an "
        "`assistant` is gone on with",
    ),
    Parameter("system", H, "Be brief.", "a text or text blocks"),
    Parameter(
        "thinking",
        H,
        {"type": "disabled"},
        "`enabled`, `adaptive`, `disabled`; see below",
    ),
    Parameter(
        "output_config",
        H,
        {"effort": "high"},
        "`effort`, for the template, as `reasoning_effort`; `format`, a `json_schema`",
    ),
    Parameter(
        "output_format",
        H,
        {"type": "json_schema", "schema": {"type": "object"}},
        "an older name of `output_config.format`",
    ),
    Parameter("tools", H, [{"name": "f", "input_schema": {}}], "up to 128 of your own; see below"),
    Parameter(
        "tool_choice",
        H,
        {"type": "any"},
        "`auto`, `any`, `tool` with a `name`, `none`; `disable_parallel_tool_use`",
    ),
    Parameter("mcp_servers", R, [{}], neutral=(None, [])),
    Parameter("cache_control", T, {"type": "ephemeral"}, "prefixes are cached in any case"),
    Parameter("context_management", R, {"edits": []}),
    Parameter("speed", T, "fast", neutral=(None, "standard")),
    Parameter("user_profile_id", T, "u"),
    Parameter("workspace_id", T, "w"),
)
COUNT: Final = _BOTH
MESSAGES: Final = (
    *_BOTH,
    Parameter("max_tokens", H, 4, "1 or more"),
    Parameter("stream", H, True),
    Parameter(
        "stop_sequences",
        H,
        ["zzz"],
        "up to 16 of up to 256 characters; of text, so not in calls, nor where one is forced",
    ),
    Parameter("temperature", H, 0.5, "0 to 2"),
    Parameter("top_p", H, 0.5, "0 to 1; 0 is greedy"),
    Parameter("top_k", H, 4, "-1 or 0 is off"),
    Parameter("metadata", T, {"user_id": "u"}, "`user_id`, up to 512 characters"),
    Parameter(
        "service_tier",
        H,
        "standard_only",
        "`auto`, `standard_only`; also `default`, `flex`, `priority`; capped by the key",
    ),
    Parameter("container", R, "c"),
    Parameter("diagnostics", T, {}),
    Parameter("inference_geo", T, "eu"),
)
TOOL: Final = (
    Parameter("name", H, "f", "1 to 128 letters, digits, `_` and `-`"),
    Parameter("description", H, "Does."),
    Parameter("input_schema", H, {"type": "object"}, "a call that is forced is held to it"),
    Parameter("type", H, "custom", "`custom`; tools that run at Anthropic's are refused by name"),
    Parameter("strict", H, True, "of calls that are forced; else without effect"),
    Parameter("cache_control", T, {"type": "ephemeral"}),
    Parameter("eager_input_streaming", T, False, "input is streamed as it comes", (None, True)),
    Parameter("input_examples", T, [{}], neutral=(None, [])),
    Parameter("defer_loading", T, True, neutral=(None, False)),
    Parameter("allowed_callers", R, ["x"], "but `direct`", (None, [], ["direct"])),
)
_CACHED: Final = Parameter("cache_control", T, {"type": "ephemeral"})
_TOOLSET: Final = Parameter("toolset_name", T, "t")
BLOCKS: Final = {
    "text": (
        Parameter("text", H, "hi"),
        _CACHED,
        Parameter("citations", T, [{}], neutral=(None, [])),
    ),
    "tool_use": (
        Parameter("id", H, "toolu_1", "up to 256 characters"),
        Parameter("name", H, "f"),
        Parameter("input", H, {}, "an object"),
        Parameter("x_input_text", H, "{", "ours; in place of an empty `input`"),
        Parameter("caller", T, {"type": "x"}, neutral=(None, {"type": "direct"})),
        _CACHED,
        _TOOLSET,
    ),
    "tool_result": (
        Parameter("tool_use_id", H, "toolu_1", "up to 256 characters"),
        Parameter("content", H, "hot", "a text or text blocks"),
        Parameter("is_error", H, True, "`Error: ` is put before the content"),
        _CACHED,
        _TOOLSET,
    ),
    "thinking": (
        Parameter("thinking", P, "Hm."),
        Parameter("signature", H, "c2ln", "any; nobody checks it"),
    ),
    "redacted_thinking": (Parameter("data", T, "x"),),
}
