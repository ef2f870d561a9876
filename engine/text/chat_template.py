"""Render a conversation to the text a model was trained on, with its own Jinja2 template.

The template is part of the model directory, so it is foreign code: it runs in Jinja2's immutable
sandbox, every `for` loop and every string product draws on a budget, and whatever it raises
becomes a `ChatTemplateError`. Templates see the names that transformers gives them, and the same
whitespace rules. Loads no torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from engine.errors import ChatTemplateError, ModelError
from engine.text.tokenizer import read_json_object, special_tokens

_LOOP_STEPS_MAX = 1_000_000
_OUTPUT_CHARS_MAX = 32_000_000
_NUMBER_BITS_MAX = 4096


class ChatTemplate:
    """Turn messages into a prompt. May be used from any number of threads."""

    def __init__(self, source: str, *, variables: Mapping[str, str] | None = None) -> None:
        """Compile `source`; `variables` are the special tokens it may name.

        Raises: `ChatTemplateError`: the template has a syntax error.
        """
        self._variables = dict(variables or {})
        try:
            self._template = _Environment().from_string(source)
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
            source: str | None = path.read_text(encoding="utf-8")
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
        self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True
    ) -> str:
        """Return the prompt for `messages` (`role`, `content`), special tokens written out.

        Raises: `ChatTemplateError`: the template rejects the messages or runs out of bounds.
        """
        names = self._variables | {
            "messages": messages,
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            _BUDGET: _Budget(_LOOP_STEPS_MAX),
        }
        pieces: list[str] = []
        chars = 0
        try:
            for piece in self._template.generate(names):
                pieces.append(piece)
                chars += len(piece)
                if chars > _OUTPUT_CHARS_MAX:
                    raise OverflowError(f"more than {_OUTPUT_CHARS_MAX} characters")
        except Exception as error:  # foreign code: any exception is its answer to the messages
            message = f"the chat template rejects the messages: {_reason(error)}"
            raise ChatTemplateError(message) from error
        return "".join(pieces)


class _Budget:
    """Count down the loop steps of one rendering, nested loops together."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def meter(self, items: Iterable[object]) -> Iterator[object]:
        for item in items:
            self._steps -= 1
            if self._steps < 0:
                raise OverflowError(f"more than {_LOOP_STEPS_MAX} loop steps")
            yield item


# A name that no template can read or set, since it is no identifier.
_BUDGET = "loop budget"


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Hold what transformers offers to chat templates, with bounds on what one may cost."""

    intercepted_binops = frozenset(["*", "**"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[jinja2.ext.loopcontrols, _GenerationTag],
        )
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in list(template.find_all(jinja2.nodes.For)):
            meter = jinja2.nodes.EnvironmentAttribute("meter")
            arguments = [jinja2.nodes.ContextReference(), loop.iter]
            loop.iter = jinja2.nodes.Call(meter, arguments, [], None, None)
        template.set_environment(self)
        return template

    def meter(self, context: jinja2.runtime.Context, items: Iterable[object]) -> Iterator[object]:
        budget: _Budget = context[_BUDGET]
        return budget.meter(items)

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:  # Jinja2 values are of any type
        if _is_too_large(operator, left, right):
            raise OverflowError(f"the operands of {operator!r} are too large")
        return super().call_binop(context, operator, left, right)


def _is_too_large(operator: str, left: object, right: object) -> bool:
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length()
        bits = bits * right if operator == "**" else bits + right.bit_length()
        return bits > _NUMBER_BITS_MAX
    sizes = [len(v) if isinstance(v, str | list | tuple) else v for v in (left, right)]
    numbers = [size for size in sizes if isinstance(size, int)]
    return len(numbers) == 2 and numbers[0] * numbers[1] > _OUTPUT_CHARS_MAX


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
