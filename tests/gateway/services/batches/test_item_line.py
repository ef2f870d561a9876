"""`gateway.services.batches.item_line`: the quick way says what the careful one says."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.services.batches.item_line import (
    BadLine,
    ItemLine,
    read_any_line,
    read_good_line,
    read_line,
)
from gateway.services.json_shape import MAX_JSON_DEPTH

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"

values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.lists(st.integers(0, 9), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(0, 9), max_size=2),
)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "model": st.one_of(st.just("demo"), values),
        "prompt": st.one_of(st.just("Hello"), values),
        "messages": values,
        "stream": values,
        "n": values,
        "max_tokens": values,
        "max_completion_tokens": values,
        "other": values,
    },
)
lines = st.fixed_dictionaries(
    {},
    optional={
        "custom_id": st.one_of(st.just("one"), st.sampled_from(["", "é" * 129]), values),
        "method": st.one_of(st.just("POST"), values),
        "url": st.one_of(st.sampled_from([CHAT, TEXT]), values),
        "body": st.one_of(bodies, values),
        "other": values,
    },
)


def _careful(line: bytes, endpoint: str) -> ItemLine | None:
    try:
        return read_any_line(line, endpoint)
    except BadLine:
        return None


@given(
    body=bodies,
    url=st.sampled_from([CHAT, TEXT]),
    endpoint=st.sampled_from([CHAT, TEXT]),
    whole=lines,
    uses_whole=st.booleans(),
)
def test_the_quick_way_agrees(
    body: dict[str, object],
    url: str,
    endpoint: str,
    whole: dict[str, object],
    uses_whole: bool,
) -> None:
    """Whatever the quick way takes, the careful one takes as the same."""
    asked = {"custom_id": "one", "method": "POST", "url": url, "body": body}
    line = json.dumps(whole if uses_whole else asked).encode()
    quick = read_good_line(line, endpoint)
    assert quick is None or quick == _careful(line, endpoint)


def test_usual_lines_go_the_quick_way() -> None:
    """What SDKs write needs no second look, bounds and choices included."""
    for body, tokens in (
        ({"prompt": "Hello"}, 2 + 16),
        ({"prompt": "Hello", "max_tokens": 4, "n": 3, "stream": False}, 2 + 12),
        ({"prompt": [1, 2, 3], "max_tokens": 9, "max_completion_tokens": 0}, 3),
        ({"prompt": "Hello", "max_tokens": -5, "n": 0}, 2),
    ):
        asked = {"custom_id": "é", "method": "POST", "url": TEXT, "body": {"model": "m", **body}}
        line = json.dumps(asked).encode()
        quick = read_good_line(line, TEXT)
        assert quick is not None
        assert quick.enqueued_tokens == tokens
        assert quick == read_any_line(line, TEXT)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"custom_id": ""}, "invalid_value"),
        ({"custom_id": "x" * 257}, "invalid_value"),
        ({"custom_id": "a\x00b"}, "invalid_value"),
        ({"method": "GET"}, "invalid_method"),
        ({"url": CHAT}, "invalid_url"),
        ({"body": {"model": "m", "prompt": "p", "stream": True}}, "streaming_unsupported"),
        ({"body": {"model": "m"}}, "missing_required_parameter"),
        ({"body": {"prompt": "p"}}, "missing_required_parameter"),
        ({"body": {"model": 1, "prompt": "p"}}, "invalid_type"),
    ],
)
def test_what_is_wrong_is_said(fields: dict[str, object], code: str) -> None:
    """A line that the quick way does not take is refused by the careful one, by its code."""
    good = {"custom_id": "one", "method": "POST", "url": TEXT}
    line = json.dumps({**good, "body": {"model": "m", "prompt": "p"}, **fields}).encode()
    assert read_good_line(line, TEXT) is None
    with pytest.raises(BadLine) as refused:
        read_line(line, TEXT)
    assert refused.value.code == code


@pytest.mark.parametrize("place", ["line", "body"])
def test_nothing_is_built_of_what_nobody_looks_at(place: str) -> None:
    """Unknown fields cost their bytes: made into objects, they would hold up everybody."""
    unknown: dict[str, object] = {f"{number:x}": 0 for number in range(60_000)}
    asked = {"custom_id": "one", "method": "POST", "url": TEXT}
    if place == "line":
        line = json.dumps({**asked, **unknown, "body": {"model": "m"}}).encode()
    else:
        line = json.dumps({**asked, "body": {"model": "m", **unknown}}).encode()
    tracemalloc.start()
    with pytest.raises(BadLine, match="prompt"):
        read_line(line, TEXT)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 4 * len(line)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"custom_id": "x" * 100_000}, "invalid_value"),
        ({"method": "x" * 100_000}, "invalid_method"),
        ({"url": "x" * 100_000}, "invalid_url"),
        ({"body": {"model": "x" * 100_000, "prompt": "p"}}, "invalid_value"),
    ],
)
def test_a_name_that_is_too_long_is_not_decoded(fields: dict[str, object], code: str) -> None:
    """It is refused by its length, and its line by the field."""
    good = {"custom_id": "one", "method": "POST", "url": TEXT}
    line = json.dumps({**good, "body": {"model": "m", "prompt": "p"}, **fields}).encode()
    with pytest.raises(BadLine, match="too long") as refused:
        read_line(line, TEXT)
    assert refused.value.code == code


def test_a_number_of_many_digits_counts_for_nothing() -> None:
    """It is left to whoever runs the line, who refuses it."""
    body = b'{"model":"m","prompt":"p","max_tokens":' + b"9" * 60_000 + b"}"
    line = b'{"custom_id":"one","method":"POST","url":"/v1/completions","body":' + body + b"}"
    assert read_line(line, TEXT).enqueued_tokens == 1 + 16


def test_bytes_that_are_no_text_are_refused_in_fields_that_nobody_reads() -> None:
    """A line is UTF-8 throughout."""
    line = (
        b'{"custom_id":"one","method":"POST","url":"/v1/completions",'
        b'"body":{"model":"m","prompt":"p","user":"\xff"}}'
    )
    assert read_good_line(line, TEXT) is None
    with pytest.raises(BadLine, match="not UTF-8"):
        read_line(line, TEXT)


@pytest.mark.parametrize(
    "value",
    ["[" + "[]," * 50_000 + "[]]", "{" + '"":0,' * 70_000 + '"":0}', "[" + "1," * 300_000 + "1]"],
    ids=["lists", "names", "numbers"],
)
@pytest.mark.parametrize("place", ["prompt", "other"])
def test_a_long_line_holds_what_a_request_may(place: str, value: str) -> None:
    """One that its request would be refused for is told so before a decoder passes over it."""
    long = f'{{"custom_id":"a","method":"POST","url":"{TEXT}","body":{{"model":"m",%s}}}}'
    with pytest.raises(BadLine, match="The request holds more than") as told:
        read_line((long % f'"prompt":"x","{place}":{value}').encode(), TEXT)
    assert told.value.code == "invalid_json_line"


def test_a_long_line_is_as_deep_as_a_request_may_be() -> None:
    """What is around a request counts for nothing of its depth."""
    deep = "[" * (MAX_JSON_DEPTH - 1) + "]" * (MAX_JSON_DEPTH - 1)
    body = f'{{"model":"m","prompt":"{"x" * 70_000}","other":{deep}}}'
    line = f'{{"custom_id":"a","method":"POST","url":"{TEXT}","body":{body}}}'
    assert read_line(line.encode(), TEXT).model == "m"
    with pytest.raises(BadLine, match="The request is nested too deeply"):
        read_line(line.replace(deep, f"[{deep}]").encode(), TEXT)
