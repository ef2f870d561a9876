"""Calls in what a model writes: told from text, however it comes, as three families write them."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.services.answers import (
    CALL_FORMATS,
    AnswerFormat,
    CallEnd,
    CallStart,
    Event,
    Finish,
    Reading,
    Text,
    gathered_answer,
    merged,
)

NAMES = frozenset(["weather", "time"])
Called = list[tuple[str, str]]


def events_of(
    family: str, pieces: Sequence[str], *, is_one_call: bool = False, stop: Sequence[str] = ()
) -> list[Event]:
    """What is read of pieces, joined where it is of one kind; ids are numbers."""
    ids = map(str, itertools.count())
    reading = Reading(
        AnswerFormat(CALL_FORMATS[family], thinks=True), NAMES, is_one_call, lambda: next(ids)
    )
    reader = reading.reader("", stop)
    events = [event for piece in pieces for event in reader.push(piece)]
    return merged([*events, *reader.finish("stop")])


def read(family: str, *pieces: str, is_one_call: bool = False) -> tuple[str, Called]:
    answer = gathered_answer(events_of(family, pieces, is_one_call=is_one_call))
    return answer.text, [(call.name, call.arguments) for call in answer.calls]


ODD = '{"city": "a } \\" <tool_call> { \\\\", "days": [1, {"x": 2.50}], "u": "\\u00e9é"}'
CASES: list[tuple[str, str, str, Called]] = [
    (
        "hermes",
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        "",
        [("weather", '{"city": "Paris"}')],
    ),
    (
        "hermes",
        f'I look.\n\n<tool_call>\n{{"name": "weather", "arguments": {ODD}}}\n</tool_call>\n'
        '<tool_call>{"name": "time", "arguments": {}}</tool_call>\n',
        "I look.",
        [("weather", ODD), ("time", "{}")],
    ),
    (
        "hermes",
        '<tool_call>{"arguments": {"a":1}, "name": "time"}</tool_call>',
        "",
        [("time", '{"a":1}')],
    ),
    ("hermes", '<tool_call>{"name": "time"}</tool_call> Done.', "Done.", [("time", "{}")]),
    ("hermes", '<tool_call>{"name": "time", "arguments": null}', "", [("time", "{}")]),
    (
        "hermes",
        '<tool_call>{"name": "time", "arguments": "{\\"a\\": 1}"}',
        "",
        [("time", '{"a": 1}')],
    ),
    # Forgotten: a brace, the closing tag.
    ("hermes", '<tool_call>{"name": "time", "arguments": {}</tool_call>', "", [("time", "{}")]),
    (
        "hermes",
        '<tool_call>{"name": "time", "arguments": {}}<tool_call>{"name": "time", "arguments": {}}',
        "",
        [("time", "{}"), ("time", "{}")],
    ),
    # Cut off.
    ("hermes", '<tool_call>{"name": "time", "arguments": {"a', "", [("time", '{"a')]),
    ("hermes", '<tool_call>{"name": "time", "arguments": {}}</tool', "", [("time", "{}")]),
    ("hermes", '<tool_call>{"name": "ti', '<tool_call>{"name": "ti', []),
    ("hermes", "a < b <tool", "a < b <tool", []),
    # No call of ours.
    ("hermes", "A <tool_call> is a tag. ", "A <tool_call> is a tag. ", []),
    (
        "hermes",
        '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
        [],
    ),
    (
        "hermes",
        '<tool_call>{"name": "time", "arguments": 5}</tool_call>',
        '<tool_call>{"name": "time", "arguments": 5}</tool_call>',
        [],
    ),
    (
        "hermes",
        '<tool_call>oh <tool_call>{"name": "time", "arguments": {}}</tool_call>',
        "<tool_call>oh",
        [("time", "{}")],
    ),
    (
        "llama3",
        '{"name": "weather", "parameters": {"city": "Rome"}}',
        "",
        [("weather", '{"city": "Rome"}')],
    ),
    (
        "llama3",
        '<|python_tag|>{"name": "time", "parameters": {}}; {"name": "weather", "parameters": {}}',
        "",
        [("time", "{}"), ("weather", "{}")],
    ),
    (
        "llama3",
        '{"name": "time", "parameters": {}} ; {"name": "weather", "parameters": {}}',
        "",
        [("time", "{}"), ("weather", "{}")],
    ),
    ("llama3", '{"type": "function", "name": "time", "parameters": {}}', "", [("time", "{}")]),
    ("llama3", '{"name": "Ada", "born": 1815}', '{"name": "Ada", "born": 1815}', []),
    ("llama3", "See {this} and [that].", "See {this} and [that].", []),
    ("llama3", "<|python_tag|>time.now(zone='a')", "<|python_tag|>time.now(zone='a')", []),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"c": "]"}}, '
        '{"name": "time", "arguments": {}}]',
        "",
        [("weather", '{"c": "]"}'), ("time", "{}")],
    ),
    (
        "mistral",
        '[TOOL_CALLS]weather[CALL_ID]abc123XYZ[ARGS]{"c": 1}',
        "",
        [("weather", '{"c": 1}')],
    ),
    (
        "mistral",
        'Well. [TOOL_CALLS]time[ARGS]{}[TOOL_CALLS]weather{"c": 1}',
        "Well.",
        [("time", "{}"), ("weather", '{"c": 1}')],
    ),
    ("mistral", "[TOOL_CALLS]shell[ARGS]{}", "[TOOL_CALLS]shell[ARGS]{}", []),
    ("mistral", "[TOOL_CALLS]", "[TOOL_CALLS]", []),
    ("mistral", "[TOOL_CALLS] \n", "[TOOL_CALLS] \n", []),
    ("mistral", "[TOOL_CALLS][]", "[TOOL_CALLS][]", []),
]


@pytest.mark.parametrize(
    ("family", "written", "text", "calls"), CASES, ids=lambda case: str(case)[:40]
)
def test_calls_are_told_from_text(family: str, written: str, text: str, calls: Called) -> None:
    """Names, arguments byte for byte, and what is text; one character at a time just the same."""
    assert read(family, written) == (text, calls)
    assert read(family, *written) == (text, calls)


FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>"),
    *("<think>", "</think>", '{"name": "time", "arguments": ', '{"name": "weather", "parameters":'),
    *(
        '{"name": "',
        "time",
        "weather",
        "{",
        "}",
        "[",
        "]",
        '"',
        "\\",
        ",",
        ";",
        ":",
        " ",
        "\n",
        "x",
    ),
    *("é", "{}", '{"a": "}"}', "<", '"arguments"', "no", " " * 300),
]


@pytest.mark.parametrize("family", sorted(CALL_FORMATS))
@given(written=st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join), data=st.data())
def test_how_a_text_is_cut_changes_nothing(family: str, written: str, data: st.DataObject) -> None:
    """Any text in any pieces gives the same events, in order: each call is begun once and ended."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=8)))
    ends = itertools.pairwise([0, *cuts, len(written)])
    stop = data.draw(st.lists(st.text("ae <\n{}", min_size=1, max_size=3), max_size=2))
    whole = events_of(family, [written], stop=stop)
    assert events_of(family, [written[a:b] for a, b in ends], stop=stop) == whole
    assert events_of(family, list(written), stop=stop) == whole
    started = [event.index for event in whole if isinstance(event, CallStart)]
    ended = [event.index for event in whole if isinstance(event, CallEnd)]
    assert started == ended == list(range(len(started)))
    assert isinstance(whole[-1], Finish)
    assert whole[-1].num_calls == len(started)


def test_a_stop_string_ends_a_text_and_no_call() -> None:
    """It is looked for neither in calls nor across them, and what it ends has no call behind it."""
    call = '<tool_call>\n{"name": "time", "arguments": {"at": "stop"}}\n</tool_call>'
    stops = ["stop", "\n", "}"]
    answer = gathered_answer(
        events_of("hermes", list(f"a st{call}\n{call}op, stop{call}"), stop=stops)
    )
    assert answer.text == "a stop, "
    assert [one.arguments for one in answer.calls] == ['{"at": "stop"}'] * 2


@given(text=st.text(st.sampled_from("ab <tool_c{[|\n"), max_size=30))
@example("a \n")
def test_a_text_without_calls_stays_as_it_is(text: str) -> None:
    """Where nothing is a call, nothing of a text is lost."""
    for family in CALL_FORMATS:
        assert read(family, *text) == (text, [])


@given(
    arguments=st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text(max_size=3), inner, max_size=3)
            ),
            max_leaves=6,
        ),
        max_size=4,
    ),
    is_ascii=st.booleans(),
)
def test_any_arguments_come_through(arguments: dict[str, object], is_ascii: bool) -> None:
    """Whatever stands in arguments, markers among it, is handed on byte for byte."""
    given_text = json.dumps(arguments, ensure_ascii=is_ascii)
    hermes = f'<tool_call>\n{{"name": "time", "arguments": {given_text}}}\n</tool_call>'
    llama = f'{{"name": "time", "parameters": {given_text}}}'
    mistral = "[TOOL_CALLS]time[ARGS]" + given_text
    for family, written in (("hermes", hermes), ("llama3", llama), ("mistral", mistral)):
        assert read(family, *written) == ("", [("time", given_text)])


def cpu_s_of(family: str, tail: str, opening: str, num_pieces: int) -> float:
    """How long a reader is at work on spaces behind an opening, none of which says anything."""
    reading = Reading(AnswerFormat(CALL_FORMATS[family], thinks=True), NAMES)
    reader = reading.reader(tail)
    reader.push(opening)
    began_s = time.thread_time()
    for _ in range(num_pieces):
        assert reader.push("\n" * 16) == []
    return time.thread_time() - began_s


@pytest.mark.parametrize(
    ("family", "tail", "opening"),
    [
        *(("hermes", "</think>", opening) for opening in ("a", "<tool_call>", "<tool_call>{")),
        ("hermes", "</think>", '<tool_call>{"name": "time", "arguments": {}}'),
        ("llama3", "</think>", '{"name": "time", "parameters": {}}'),
        ("llama3", "</think>", ""),
        ("mistral", "</think>", "[TOOL_CALLS]"),
        ("hermes", "", ""),
        ("hermes", "<think>", "a"),
    ],
)
def test_spaces_that_go_on_cost_what_their_pieces_do(family: str, tail: str, opening: str) -> None:
    """An answer of line ends alone, which `logit_bias` can ask for, is not read again for each."""
    few_s = min(cpu_s_of(family, tail, opening, 500) for _ in range(3))
    assert cpu_s_of(family, tail, opening, 8000) < 60 * few_s


def test_one_call_ends_the_answer() -> None:
    """Where one call is wanted, the second is dropped, and the text behind the first too."""
    call = '<tool_call>{"name": "time", "arguments": {}}</tool_call>'
    assert read("hermes", *(call + call + "x"), is_one_call=True) == ("", [("time", "{}")])


@pytest.mark.parametrize(
    ("family", "call"),
    [
        ("hermes", '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'),
        ("llama3", '{"name": "time", "parameters": {}}'),
        ("mistral", "[TOOL_CALLS]time[ARGS]{}"),
    ],
)
def test_a_forced_call_that_is_cut_off_is_no_text(family: str, call: str) -> None:
    """Wherever that is: before its name is whole there is nothing, and then a call."""
    reading = Reading(AnswerFormat(CALL_FORMATS[family]), NAMES, are_forced=True)
    for end in range(1, len(call)):
        reader = reading.reader("")
        answer = gathered_answer([*reader.push(call[:end]), *reader.finish("length")])
        assert answer.text == ""
        assert [one.name for one in answer.calls] in ([], ["time"])


def test_text_is_not_held_for_longer_than_it_may_be_a_marker() -> None:
    """What cannot open a call is handed on at once."""
    reader = Reading(AnswerFormat(CALL_FORMATS["hermes"]), NAMES).reader("")
    assert reader.push("a <tool") == [Text("a")]
    assert reader.push("box") == [Text(" <toolbox")]


def test_a_call_is_told_before_it_is_over() -> None:
    """Its name comes with its first argument, whole, and arguments as they are written."""
    reader = Reading(AnswerFormat(CALL_FORMATS["hermes"]), NAMES, new_id=lambda: "id").reader("")
    assert reader.push('<tool_call>{"name": "ti') == []
    assert reader.push('me",' + " " * 200) == []
    assert reader.push('"arguments": ') == []
    [start, first] = reader.push('{"zone": "Eur')
    assert start == CallStart(0, "id", "time")
    [more] = reader.push("ope")
    assert [getattr(each, "text", "") for each in (first, more)] == ['{"zone": "Eur', "ope"]
