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
        ("`/v1/embeddings`", EMBEDDINGS),
        ("`/tokenize`", TOKENIZE),
        ("`/detokenize`", DETOKENIZE),
        ("A message of `messages`", MESSAGE),
        ("A text part of a message's `content`", PART),
    )
    return "\n".join([_HEAD, *(_section(title, table) for title, table in tables)])


def _section(title: str, table: Sequence[Parameter]) -> str:
    lines = [f"| `{each.name}` | {each.fate} | {each.note} |" for each in table]
    return "\n".join([f"## {title}", "", "| parameter | fate | |", "|---|---|---|", *lines, ""])


if __name__ == "__main__":
    PATH.write_text(page(), encoding="utf-8")
