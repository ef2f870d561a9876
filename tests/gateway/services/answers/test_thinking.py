"""Thinking, told from what is said."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.services.answers import CALL_FORMATS, AnswerFormat, Reading, gathered_answer

CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


def read(prompt_tail: str, *pieces: str) -> tuple[str, str, int, int]:
    """The thinking, the text, the number of calls and of tokens of thinking."""
    reader = Reading(AnswerFormat(CALL_FORMATS["hermes"], thinks=True), {"f"}).reader(prompt_tail)
    events = [event for piece in pieces for event in reader.push(piece)]
    answer = gathered_answer([*events, *reader.finish("stop")])
    return answer.reasoning, answer.text, len(answer.calls), reader.num_reasoning_tokens


@pytest.mark.parametrize(
    ("tail", "tokens", "expected"),
    [
        ("<|im_start|>assistant\n", "<think>|\n|Hm|.|\n|</think>|\n\n|Yes", ("Hm.", "Yes", 0, 6)),
        ("assistant\n<think>\n", "Hm|.|\n|</|think>|\n|Yes", ("Hm.", "Yes", 0, 5)),
        # Switched off by the prompt: a call is none of the thinking, and a tag is text.
        ("<think>\n\n</think>\n\n", f"{CALL}", ("", "", 1, 0)),
        ("<think>\n\n</think>\n\n", "a|<think>", ("", "a<think>", 0, 0)),
        # The model says at once what it has to say.
        ("assistant\n", "Yes|.", ("", "Yes.", 0, 0)),
        ("assistant\n", "<th|ink|s>", ("", "<thinks>", 0, 0)),
        ("<think>", "Hm| |\n|</think>|Yes", ("Hm ", "Yes", 0, 4)),
        # Cut off: all is thinking.
        ("<think>", "Hm| <|/thin", ("Hm </thin", "", 0, 3)),
        ("<think>", f"{CALL}|</think>|\n|{CALL}", (CALL, "", 1, 2)),
    ],
)
def test_thinking_is_told_by_its_tags(
    tail: str, tokens: str, expected: tuple[str, str, int, int]
) -> None:
    """The prompt's end says how an answer begins; line ends at tags belong to nobody."""
    assert read(tail, *tokens.split("|")) == expected


@given(
    tail=st.sampled_from(["", "<think>", "<think></think>"]),
    written=st.lists(
        st.sampled_from(["<think>", "</think>", "\n", "a", " ", "<", "/think>", "<th"]), max_size=9
    ).map("".join),
    data=st.data(),
)
def test_how_a_text_is_cut_changes_nothing(tail: str, written: str, data: st.DataObject) -> None:
    """Any text in any pieces is split at the same place."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=5)))
    pieces = [written[a:b] for a, b in itertools.pairwise([0, *cuts, len(written)])]
    assert read(tail, *pieces)[:3] == read(tail, written)[:3] == read(tail, *written)[:3]
