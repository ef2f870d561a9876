"""A model's format is told by its template."""

from __future__ import annotations

import pytest

from engine.text import ChatTemplate
from gateway.services.answers import CALL_FORMATS, answer_format


@pytest.mark.parametrize(
    ("source", "calls", "thinks"),
    [
        ("{{ tools }}<tool_call></tool_call>", "hermes", False),
        ("{{ tools }}<tool_call>{{ c.split('</think>')[-1] }}", "hermes", True),
        ("<tool_call><function=f>", None, False),
        ("<|python_tag|>{{ tools }}", "llama3", False),
        ("{% if m.role == 'ipython' %}{% endif %}", "llama3", False),
        ("[AVAILABLE_TOOLS][TOOL_CALLS]", "mistral", False),
        ("{{ messages }}", None, False),
    ],
)
def test_a_template_tells(source: str, calls: str | None, thinks: bool) -> None:
    """The markers that a template writes say how the model calls and thinks."""
    told = answer_format(ChatTemplate(source))
    assert (told.calls.name if told.calls else None, told.thinks) == (calls, thinks)


def test_a_setting_decides() -> None:
    """What an operator sets holds, whatever the template."""
    template = ChatTemplate("[TOOL_CALLS]</think>")
    assert answer_format(template, calls="none", reasoning="none") == answer_format(None)
    chosen = answer_format(ChatTemplate(""), calls="hermes", reasoning="think")
    assert chosen.calls is CALL_FORMATS["hermes"]
    assert chosen.thinks


def test_short_ids_are_made_of_long_ones() -> None:
    """Mistral's templates get nine letters and digits, the same for a call and its result."""
    mistral = CALL_FORMATS["mistral"]
    assert mistral.id_for_template("abcDEF123") == "abcDEF123"
    short = mistral.id_for_template("call_0123456789abcdef01234567")
    assert short == mistral.id_for_template("call_0123456789abcdef01234567")
    assert len(short) == 9
    assert short.isalnum()
    assert CALL_FORMATS["hermes"].id_for_template("call_1") == "call_1"
