"""`python -m gateway.api.openai.parameter_page`: write docs/api.md from the table of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gateway.api.openai.parameters import (
    CHAT,
    COMMON,
    COMPLETIONS,
    DETOKENIZE,
    EMBEDDINGS,
    MESSAGE,
    PART,
    STREAM_OPTIONS,
    STRUCTURED_OUTPUTS,
    TOKENIZE,
    Parameter,
)

PATH: Final = Path("docs/api.md")

_HEAD: Final = """\
# The API's parameters

Written by `.venv/bin/python -m gateway.api.openai.parameter_page` from
`gateway/api/openai/parameters.py`; a test asks a running server for each line.

What a parameter asks for is done (*honoured*, or *given to the chat template* where that looks at
it), or it asks for nothing that changes an answer here and is *taken without effect*, or it is
*refused* with a 400 that names it. What had no effect is named in the answer's header
`x-sluice-ignored`, by its path without numbers: `user, messages.id`. A template parameter that the
model's template does not look at is named there too. At most 32 names are listed; `...` says that
there were more, or names that are long or not plain.

null asks for nothing, whatever the parameter: of the sampling, what `sampling_defaults` of
`GET /v1/models/{id}` tells holds then. A parameter that is not in these tables is refused
with the code `unknown_parameter`; with `SLUICE_UNKNOWN_PARAMETERS=ignore` it is taken and named.

## Tools and thinking

`tools` go to the chat template as they came, and what the model writes is read for calls in the
words of its family: Hermes and Qwen, Llama 3's JSON, Mistral. The template tells which
(`SLUICE_TOOL_CALLS` decides). A model whose template knows no tools refuses them, but with
`tool_choice: none`; calls and results in a history are told to any model, in words where its
template knows none. With `none` a model is not told of the tools, and what opens a call is banned
where that is a token of its own. `required` and a named function hold the answer to a grammar of
the names and the schemas of their `parameters`, with `auto` and a `response_format` it is of that
form or calls. Otherwise arguments are as the model wrote them, `strict` or not (named then in
`x-sluice-ignored`), and may be no JSON; a call of a tool that was not offered, or one that cannot
be read, is text. With tools `stop` ends the text around calls alone: what marks a call, stands in
it, or was thought is not looked at; where a call is forced `stop` has no effect. Calls that were
made replace the finish reason `stop` by `tool_calls`, but not that of a named function, and never
`length`.

What a model writes between `<think>` and `</think>` is `reasoning_content`, and the same once more
as `reasoning`, which is what vLLM calls it now; `reasoning_tokens` counts it with its tags. It is
read where the template knows the tags (`SLUICE_REASONING` decides), and other models are
untouched. A form that was asked for begins behind the thinking.

`logprobs` have an entry for each token, also of thinking, of calls and of what marks them; a
stream has them with the first chunk after their tokens were drawn, whose delta may be empty.

OpenAI's `/v1/responses`: [responses.md](responses.md). Anthropic's `/v1/messages`:
[messages.md](messages.md).
"""


# What answers have that OpenAI's own types do not; clients in `tests/clients` hold them to it.
_BESIDE: Final = """\
## Fields of answers beside OpenAI's

| field | of | |
|---|---|---|
| `x_stop_cause` | choices and responses | which limit or end of a key cut the answer short |
| `reasoning_content` | messages and deltas | what was thought, as DeepSeek and vLLM had it |
| `reasoning` | messages and deltas | the same, as vLLM has it |
| `store` | responses | whether it is stored |
| `bytes` | log-probabilities in events of responses | as whole responses have them |
| `service_tier` | text completions | as chats have it |
| `root` | models | the name here, where vLLM has a path |
| `max_model_len` | models | the context that is served |
| `sampling_defaults` | models | what holds where a request does not say |
| `sha256` | files | of the content |
| `first_id`, `last_id` | lists of files and batches | where pages begin and end |
| `object` | lists of files and batches | `list` |
| `cost_nano_usd`, `saved_nano_usd` | batches | see [batches.md](batches.md) |
| `paused_for`, `paused_because`, `num_awaiting_operator` | batches | see [batches.md](batches.md) |

A log-probability of a prompt's first token is null, and so is `finish_reason` of text completions
as they stream: OpenAI's answers have both, its SDK's types neither.
"""


def page() -> str:
    """Return the page."""
    of_chat = [each for each in CHAT if each not in COMMON]
    of_text = [each for each in COMPLETIONS if each not in COMMON]
    tables = (
        ("`/v1/chat/completions` and `/v1/completions`", COMMON),
        ("`/v1/chat/completions` alone", of_chat),
        ("`/v1/completions` alone", of_text),
        ("`stream_options`", STREAM_OPTIONS),
        ("`structured_outputs`", STRUCTURED_OUTPUTS),
        ("`/v1/embeddings`", EMBEDDINGS),
        ("`/tokenize`", TOKENIZE),
        ("`/detokenize`", DETOKENIZE),
        ("A message of `messages`", MESSAGE),
        ("A text part of a message's `content`", PART),
    )
    return "\n".join([_HEAD, *(_section(title, table) for title, table in tables), _BESIDE])


def _section(title: str, table: Sequence[Parameter]) -> str:
    lines = [f"| `{each.name}` | {each.fate} | {each.note} |" for each in table]
    return "\n".join([f"## {title}", "", "| parameter | fate | |", "|---|---|---|", *lines, ""])


if __name__ == "__main__":
    PATH.write_text(page(), encoding="utf-8")
