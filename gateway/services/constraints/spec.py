"""What a constraint is as text, in the one language that all of them are compiled from.

Each is a document for llguidance: of a JSON schema, of a pattern, or a grammar in its dialect of
Lark. Options of the library that a client writes into a schema (`x-guidance`) have no effect: they
are taken out, and ours are put in their place. Special tokens cannot be named by a client, so no
constrained text holds one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from llguidance import regex_to_lark

from gateway.errors import ConstraintRefused
from gateway.services.constraints.limits import (
    MAX_CHOICE_CHARS,
    MAX_CHOICES,
    MAX_GRAMMAR_BYTES,
    MAX_REGEX_CHARS,
    MAX_SCHEMA_BYTES,
    check_schema,
)
from gateway.services.constraints.narrowing import CannotBeHeld, Narrowed, narrowed
from gateway.services.constraints.simplified import simplified

# Room for a line break and an indent; without a bound a weak model writes blanks to the end.
_BLANKS: Final = r"[\x20\x0A]{0,32}"
_OPTIONS: Final = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "whitespace_pattern": _BLANKS,
    "coerce_one_of": False,
    "lenient": False,
    "json_allowed_escapes": None,
    "json_allow_general_unicode_escapes": False,
}
_COMPACT: Final = _OPTIONS | {"whitespace_flexible": False, "whitespace_pattern": None}
_SCHEMA_OPTIONS: Final = "x-guidance"

# Texts, patterns and comments of a grammar, in which nothing is an instruction, as the library
# reads them: a pattern alone may go over the end of a line. Where one does not end, what is left of
# its line is kept and not looked through again: of many that begin in one line each would be
# followed to its end otherwise.
_LITERAL: Final = re.compile(
    r'"(?:\\.|[^"\\\n])*+"|/(?:\\.|[^/\\])++/|//[^\n]*|#[^\n]*|(["/][^\n]*)'
)
_INSTRUCTION: Final = re.compile(r"<[^>\s]*>?|%(?!ignore\b|import\b|regex\b)\w+|@\w+")


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """Say what an answer must look like: `grammar` is the document to compile.

    `param` names the field of the request that asks for it. `beyond`: keywords of a schema whose
    bounds nothing that is ever written can meet, so that the grammar has no values of their types.
    """

    grammar: str
    param: str
    beyond: tuple[str, ...] = ()

    @property
    def digest(self) -> bytes:
        """Name the grammar."""
        return hashlib.sha256(self.grammar.encode()).digest()


def json_spec(schema: Mapping[str, Any], *, param: str, is_compact: bool = False) -> ConstraintSpec:
    """Ask for JSON of a schema; a compact one has no blanks. Raises: `ConstraintRefused`."""
    ours, beyond = _with_our_options(schema, param, is_compact=is_compact)
    return ConstraintSpec(_encode({"grammars": [{"json_schema": ours}]}), param, beyond)


def regex_spec(pattern: str, *, param: str) -> ConstraintSpec:
    """Ask for a text that matches a pattern from its beginning to its end.

    Raises: `ConstraintRefused`.
    """
    if not 1 <= len(pattern) <= MAX_REGEX_CHARS:
        raise ConstraintRefused(
            f"'{param}' must be a pattern of 1 to {MAX_REGEX_CHARS} characters.", param=param
        )
    # Refused here where it is no text, which the library would not take.
    _encode(pattern)
    grammar = f"start: /{regex_to_lark(pattern, '')}/"
    return ConstraintSpec(_encode({"grammars": [{"lark_grammar": grammar}]}), param)


def choice_spec(choices: Sequence[str], *, param: str) -> ConstraintSpec:
    """Ask for one of some texts. Raises: `ConstraintRefused`."""
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise ConstraintRefused(f"'{param}' must have 1 to {MAX_CHOICES} texts.", param=param)
    if any(not 1 <= len(choice) <= MAX_CHOICE_CHARS for choice in choices):
        raise ConstraintRefused(
            f"Each text of '{param}' must have 1 to {MAX_CHOICE_CHARS} characters.", param=param
        )
    # As one token of the grammar, whose states are few however many texts there are.
    texts = " | ".join(
        _encode(choice).replace("\x7f", "\\u007f") for choice in dict.fromkeys(choices)
    )
    return lark_spec(f"start: TEXT\nTEXT: {texts}", param=param)


def client_grammar_spec(grammar: str, *, param: str) -> ConstraintSpec:
    """Ask for a text of a client's grammar, in Lark.

    Raises: `ConstraintRefused`: it is too long, or names special tokens or other grammars.
    """
    # First: looking through a long one holds the interpreter for as long as that is.
    _check_length(grammar, param)
    bare = "".join(filter(None, _LITERAL.split(grammar)))
    if "::=" in bare:
        raise ConstraintRefused(
            f"'{param}' is read as Lark: write 'start: …' instead of 'root ::= …'.", param=param
        )
    if found := _INSTRUCTION.search(bare):
        raise ConstraintRefused(f"'{param}' cannot hold '{found[0][:40]}'.", param=param)
    return lark_spec(grammar, param=param)


def lark_spec(grammar: str, *, param: str) -> ConstraintSpec:
    """Ask for a text of a grammar of ours, in Lark, which may name special tokens as `<name>`.

    A schema in it is written by `json_rule`. Raises: `ConstraintRefused`: it is too long.
    """
    _check_length(grammar, param)
    return ConstraintSpec(_encode({"grammars": [{"lark_grammar": grammar}]}), param)


def json_rule(schema: Mapping[str, Any], *, param: str, is_compact: bool = False) -> str:
    """Write what stands in a Lark grammar of ours for JSON of a schema, as in `args: %json {…}`.

    Raises: `ConstraintRefused`.
    """
    ours, _ = _with_our_options(schema, param, is_compact=is_compact)
    return "%json " + _encode(ours)


def _with_our_options(schema: Mapping[str, Any], param: str, *, is_compact: bool) -> Narrowed:
    check_schema(schema, param=param)
    options = _COMPACT if is_compact else _OPTIONS
    try:
        ours, beyond = narrowed(simplified(schema))
    except CannotBeHeld as cannot:
        raise ConstraintRefused(f"'{param}' is not supported: {cannot}", param=param) from None
    ours.pop(_SCHEMA_OPTIONS, None)
    ours[_SCHEMA_OPTIONS] = options
    if len(_encode(ours)) > MAX_SCHEMA_BYTES:
        raise ConstraintRefused(
            f"'{param}': the schema is larger than {MAX_SCHEMA_BYTES} bytes.", param=param
        )
    return Narrowed(ours, beyond)


def _check_length(grammar: str, param: str) -> None:
    if not 1 <= len(grammar.encode(errors="replace")) <= MAX_GRAMMAR_BYTES:
        raise ConstraintRefused(
            f"'{param}' must be a grammar of 1 to {MAX_GRAMMAR_BYTES} bytes.", param=param
        )


def _encode(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        raise ConstraintRefused("Half of a surrogate pair is no text.") from None
