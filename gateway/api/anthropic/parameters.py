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
        R,
        {"type": "enabled", "budget_tokens": 1024},
        "but `disabled`; `adaptive` and `between_tools` are taken without effect",
    ),
    Parameter(
        "output_config", P, {"effort": "high"}, "`effort`, as `reasoning_effort`; not `format`"
    ),
    Parameter(
        "tools",
        R,
        [{"name": "f", "input_schema": {}}],
        "but with a `tool_choice` of `none`",
        (None, []),
    ),
    Parameter("tool_choice", R, {"type": "any"}, "but `none`, and `auto` without tools"),
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
    Parameter("stop_sequences", H, ["zzz"], "up to 16 of up to 256 characters"),
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
BLOCK: Final = (
    Parameter("type", H, "text", "`text`; in turns of an `assistant`, what it thought is left out"),
    Parameter("text", H, "hi"),
    Parameter("cache_control", T, {"type": "ephemeral"}),
    Parameter("citations", T, [{}], neutral=(None, [])),
)
