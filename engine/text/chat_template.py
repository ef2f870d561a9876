"""Render a conversation to the text a model was trained on, with its own Jinja2 template.

The template is part of the model directory, so it is foreign code: it runs in a sandbox, on a
budget (`engine.text.template_sandbox`), and whatever it raises becomes a `ChatTemplateError`.
Templates see the names that transformers gives them, and the same whitespace rules. Loads no torch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser

from engine.errors import ChatTemplateError, ModelError
from engine.model_file import read_model_file
from engine.text.template_budget import OUTPUT_CHARS_MAX, Budget
from engine.text.template_sandbox import BUDGET, MeteredSandbox
from engine.text.tokenizer import read_json_object, special_tokens

_SOURCE_CHARS_MAX = 1 << 20
# What a template is always given, so that no caller's variable can be it.
RESERVED_NAMES = frozenset(["messages", "tools", "documents", "add_generation_prompt"])


class ChatTemplate:
    """Turn messages into a prompt. May be used from any number of threads.

    `names` are those that the template may look at: of variables, and of fields of messages;
    `free_names` are those of variables that it looks at and does not set itself.
    """

    def __init__(self, source: str, *, variables: Mapping[str, str] | None = None) -> None:
        """Compile `source`; `variables` are the special tokens it may name.

        Raises: `ChatTemplateError`: the template has a syntax error, or is too long.
        """
        self._variables = dict(variables or {})
        try:
            if len(source) > _SOURCE_CHARS_MAX:
                raise jinja2.TemplateError(f"it has more than {_SOURCE_CHARS_MAX} characters")
            environment = _environment()
            self._template = environment.from_string(source)
            # As Jinja2 chains them, a look-up for each name: a third of a short rendering.
            self._template.globals = dict(self._template.globals)
            tree = environment.parse(source)
            self.names = _names_in(tree)
            self.free_names = jinja2.meta.find_undeclared_variables(tree) - (
                environment.globals.keys() | self._variables.keys() | RESERVED_NAMES
            )
            self.source = source
        except (jinja2.TemplateError, RecursionError) as error:
            raise ChatTemplateError(f"the chat template is broken: {_reason(error)}") from error

    @classmethod
    def from_dir(cls, model_dir: Path) -> ChatTemplate | None:
        """Read chat_template.jinja, or else the template in tokenizer_config.json.

        Returns: `None` where the model has none: it serves plain completions only.
        Raises: `ModelError`: a file is broken.
        """
        path = model_dir / "chat_template.jinja"
        try:
            source: str | None = read_model_file(path).decode()
        except FileNotFoundError:
            path = model_dir / "tokenizer_config.json"
            source = _default_template(read_json_object(path).get("chat_template"), path)
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{path}: not readable: {_reason(error)}") from error
        if source is None:
            return None
        try:
            return cls(source, variables=special_tokens(model_dir))
        except ChatTemplateError as error:
            raise ModelError(f"{path}: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt for `messages` (`role`, `content`), special tokens written out.

        `tools` are OpenAI's objects; a message may have `tool_calls` with decoded arguments.

        With `continue_final_message` it ends where the last message's content does, so that a
        model goes on with that. `variables` are a caller's own; none replaces what every template
        is given.
        Raises: `ChatTemplateError`: the template rejects the messages or runs out of bounds, or
        does not write the last message.
        """
        names = {**(variables or {}), **self._variables} | {
            "messages": messages,
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            # Of this thread: a machine that is busy with others refuses nobody.
            BUDGET: Budget(time.thread_time),
        }
        pieces: list[str] = []
        chars = 0
        try:
            for piece in self._template.generate(names):
                pieces.append(piece)
                chars += len(piece)
                if chars > OUTPUT_CHARS_MAX:
                    raise OverflowError(f"more than {OUTPUT_CHARS_MAX} characters")
        except Exception as error:  # foreign code: any exception is its answer to the messages
            message = f"the chat template rejects the messages: {_reason(error)}"
            raise ChatTemplateError(message) from error
        text = "".join(pieces)
        return _up_to(messages[-1]["content"], text) if continue_final_message else text

    def standalone(self) -> str:
        """Return the source with the special tokens that it names set in it.

        A client that renders it needs to know of none of them.
        """
        named = {name: value for name, value in self._variables.items() if name in self.names}
        sets = (
            f"{{% set {name} = {json.dumps(value, ensure_ascii=False)} %}}"
            for name, value in sorted(named.items())
            if name.isidentifier()
        )
        return "".join(sets) + self.source


def _up_to(content: str, text: str) -> str:
    """Cut a rendered chat behind its last message, of which a template may have cut spaces."""
    start = text.rfind(content.strip())
    if start < 0:
        raise ChatTemplateError("the chat template does not write the last message as it is")
    whole, bare = content.lstrip(), content.strip()
    return text[: start + len(whole if text.startswith(whole, start) else bare)]


def _names_in(tree: jinja2.nodes.Template) -> frozenset[str]:
    """Return all names and words of a template: what is not among them it does not look at."""
    nodes = jinja2.nodes
    named = {node.name for node in tree.find_all(nodes.Name)}
    read = {node.attr for node in tree.find_all(nodes.Getattr)}
    words = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    return frozenset(named | read | words)


def _environment() -> MeteredSandbox:
    """Offer what transformers offers to chat templates."""
    environment = MeteredSandbox(
        {"tojson": _tojson},
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[jinja2.ext.loopcontrols, _GenerationTag],
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationTag(jinja2.ext.Extension):
    """Read `{% generation %}…{% endgeneration %}`, which marks text for training, as its body."""

    tags = {"generation"}  # noqa: RUF012  (declared so by Jinja2)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _default_template(value: object, path: Path) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):  # named templates, as older transformers wrote them
        named = {t.get("name"): t.get("template") for t in value if isinstance(t, dict)}
        default = named.get("default")
        if isinstance(default, str):
            return default
    raise ModelError(f"{path}: chat_template must be a string or a list with a 'default'")


def _raise_exception(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja2's own filter escapes for HTML, which no model was trained on.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())[:300]
    return text or type(error).__name__
