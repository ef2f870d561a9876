"""The form of forced calls: what it allows, behind thinking too."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.demo import MODEL_DIR
from engine.text import Tokenizer
from gateway.services.answers import CALL_FORMATS
from gateway.services.constraints.matching import compile_grammar, read_vocabulary
from gateway.services.constraints.spec import ConstraintSpec
from gateway.services.inference.forced_calls import after_thinking, either, forced_calls

TOOLS = [
    {"function": {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}},
    {"function": {"name": "g"}},
]
F, G = '{"name": "f", "arguments": {"a": 1}}', '{"name": "g", "arguments": {}}'
HERMES = [f"<tool_call>\n{call}\n</tool_call>" for call in (F, G)]
VOCABULARY = read_vocabulary(Path(MODEL_DIR / "tokenizer.json").read_text(), 1024, [1])


def takes(spec: ConstraintSpec, tokenizer: Tokenizer, text: str) -> bool:
    """Tell whether a text is whole under a grammar."""
    matcher = compile_grammar(VOCABULARY, spec.grammar)
    ids = list(tokenizer.encode(text, add_special_tokens=False))
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("family", "good", "bad"),
    [
        ("hermes", [HERMES[0], "\n".join(HERMES)], ["", "f", HERMES[0].replace("1", '"x"')]),
        ("llama3", ['{"name": "g", "parameters": {"b": []}}'], [f"{G};{G}", G]),
        ("mistral", [f"[TOOL_CALLS][{F}, {G}]"], [f"[TOOL_CALLS]{F}", "[TOOL_CALLS][]"]),
    ],
)
def test_only_calls_of_the_tools_pass(family: str, good: list[str], bad: list[str]) -> None:
    """In each family's words: the names there are, arguments of their schemas, one at least."""
    tokenizer = Tokenizer.from_dir(MODEL_DIR)
    spec = forced_calls(CALL_FORMATS[family], tokenizer, TOOLS, is_one=False)
    assert all(takes(spec, tokenizer, text) for text in good)
    assert not any(takes(spec, tokenizer, text) for text in bad)
    if family == "hermes":
        one = forced_calls(CALL_FORMATS[family], tokenizer, TOOLS, is_one=True)
        assert [takes(one, tokenizer, text) for text in good] == [True, False]


@pytest.mark.parametrize(
    ("tail", "behind", "alone"),
    [
        ("<think>\n", "hm {</think>\n", False),
        ("", "<think>hm</think>", True),
        ("</think>", "", True),
    ],
)
def test_a_form_begins_behind_thinking(tail: str, behind: str, alone: bool) -> None:
    """Thinking is free, and told by the prompt's end; then comes the form, or calls."""
    tokenizer = Tokenizer.from_dir(MODEL_DIR)
    calls = forced_calls(CALL_FORMATS["hermes"], tokenizer, TOOLS, is_one=True)
    form = ConstraintSpec('{"grammars":[{"json_schema":{"const":7}}]}', "x")
    spec = after_thinking(either(form, calls), tokenizer, tail)
    for text in ("7", HERMES[0]):
        assert takes(spec, tokenizer, behind + text)
        assert takes(spec, tokenizer, text) is alone
        assert not takes(spec, tokenizer, behind + "x" + text)
