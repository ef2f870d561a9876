"""How deep a body may be, and how much it may hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.services import json_shape
from gateway.services.json_shape import (
    MAX_JSON_CONTAINERS,
    MAX_JSON_DEPTH,
    MAX_JSON_DIGITS,
    MAX_JSON_FRACTIONS,
    MAX_JSON_STRINGS,
    MAX_JSON_VALUES,
    check_shape,
)


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def many(value: bytes, num: int) -> bytes:
    return b"[" + b",".join([value] * num) + b"]"


def test_a_body_may_be_as_deep_as_allowed_and_no_deeper() -> None:
    """32 levels pass, 33 do not, wherever they are."""
    check_shape(nested(MAX_JSON_DEPTH))
    with pytest.raises(InvalidRequest):
        check_shape(nested(MAX_JSON_DEPTH + 1))
    with pytest.raises(InvalidRequest):
        check_shape(b'{"a": [1, ' + b'{"b":' * MAX_JSON_DEPTH + b"1")


def test_wide_is_not_deep() -> None:
    """Brackets beside each other pass up to their number, those in texts in any number."""
    check_shape(json.dumps([{"role": "user", "content": "[" * 99}] * 200).encode())
    check_shape(json.dumps({"a": 'quo"te' + "{[\\" * 99}).encode())
    check_shape(json.dumps({"a": '[1],{"b": "c"},' * 300_000}).encode())


@pytest.mark.parametrize(
    ("value", "most"),
    [
        (b"[]", MAX_JSON_CONTAINERS - 1),
        (b"{}", MAX_JSON_CONTAINERS - 1),
        (b'""', MAX_JSON_STRINGS),
        (b"1", MAX_JSON_VALUES + 1),
    ],
)
def test_a_body_may_hold_so_much_and_no_more(value: bytes, most: int) -> None:
    """At the bound it passes, with one more it does not; a text of the same is one value."""
    check_shape(many(value, most))
    with pytest.raises(InvalidRequest):
        check_shape(many(value, most + 1))
    check_shape(json.dumps(many(value, most + 1).decode()).encode())


@pytest.mark.parametrize("number", [b"1.5", b"1e300", b"-2E-9"])
def test_few_numbers_may_take_long_to_read(number: bytes) -> None:
    """512 with a fraction or an exponent pass, 513 do not, beside any number of other words."""
    words = [b"true", b"false", b"null", b"7", b'"1.5e1"'] * 200
    few = [number] * MAX_JSON_FRACTIONS
    check_shape(b"[" + b",".join([*words, *few]) + b"]")
    with pytest.raises(InvalidRequest, match="fraction or an exponent"):
        check_shape(b"[" + b",".join([*words, *few, number]) + b"]")
    with pytest.raises(InvalidRequest, match="fraction or an exponent"):
        check_shape(b"[" + b",".join([*few, number]) + b"]")


def test_a_number_may_be_so_long() -> None:
    """1,024 digits pass, 1,025 do not, where the body is long; in a text any number does."""
    room = b'{"a":"' + b"x" * json_shape._SHORT_BYTES + b'","b":%b}'
    check_shape(room % (b"0." + b"0" * (MAX_JSON_DIGITS - 2)))
    with pytest.raises(InvalidRequest, match="digits"):
        check_shape(room % (b"0." + b"0" * (MAX_JSON_DIGITS - 1)))
    check_shape(room % (b'"' + b"0" * 2 * MAX_JSON_DIGITS + b'"'))


def test_a_string_without_end_is_left_to_the_decoder() -> None:
    """Megabytes of an unfinished string are passed over."""
    check_shape(b"{}" * 40 + b'"' + b"\\" * (4 << 20))


JSON: st.SearchStrategy[Any] = st.deferred(
    lambda: (
        st.none()
        | st.integers()
        | st.text(alphabet='ab"\\[]{},:\n')
        | st.lists(JSON, max_size=3)
        | st.dictionaries(st.text(alphabet='a"\\[{,', max_size=3), JSON, max_size=3)
    )
)


@given(JSON, st.booleans())
def test_what_is_counted_is_what_is_there(value: Any, ascii_only: bool) -> None:
    """With the bounds of a text's own counts it passes, with any of them one lower it does not."""
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    depth, strings, containers, commas = _counts(value)
    bounds = {
        "MAX_JSON_DEPTH": depth,
        "MAX_JSON_STRINGS": strings,
        "MAX_JSON_CONTAINERS": containers,
        "MAX_JSON_VALUES": commas,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_shape, "_SHORT_BYTES", 0)
        patch.setattr(json_shape, "_PART_BYTES", 3)
        for name, bound in bounds.items():
            patch.setattr(json_shape, name, bound)
        check_shape(text)
        for name, bound in bounds.items():
            # Fewer containers than levels is no bound that anybody sets.
            if bound and (name != "MAX_JSON_CONTAINERS" or bound > depth):
                patch.setattr(json_shape, name, bound - 1)
                with pytest.raises(InvalidRequest):
                    check_shape(text)
                patch.setattr(json_shape, name, bound)


def _counts(value: Any) -> tuple[int, int, int, int]:
    """Return the depth, the strings with the names, the lists and objects, the commas."""
    if isinstance(value, str):
        return 0, 1, 0, 0
    if not isinstance(value, list | dict):
        return 0, 0, 0, 0
    names = len(value) if isinstance(value, dict) else 0
    inner = [_counts(item) for item in (value.values() if names else value)]
    depth, strings, containers, commas = zip(*inner, strict=True) if inner else ((0,), (), (), ())
    return (
        1 + max(depth),
        names + sum(strings),
        1 + sum(containers),
        max(len(value) - 1, 0) + sum(commas),
    )


def test_the_documents_have_the_bounds() -> None:
    """What operations.md promises is what is checked."""
    text = (Path(__file__).parents[3] / "docs/operations.md").read_text()
    bounds = (MAX_JSON_DEPTH, MAX_JSON_CONTAINERS, MAX_JSON_STRINGS, MAX_JSON_VALUES)
    levels, containers, strings, values = (f"{bound:,}" for bound in bounds)
    assert f"{levels} levels, {containers} lists and objects, {strings} strings, {values}" in text
    fractions, digits = f"{MAX_JSON_FRACTIONS:,}", f"{MAX_JSON_DIGITS:,}"
    assert f"{fractions} numbers with a fraction or an exponent, {digits} digits" in text


def test_what_a_text_ends_with_is_counted_too() -> None:
    """The last word is one more number, though no bracket or comma comes behind it."""
    check_shape(b",".join([b"1.5"] * MAX_JSON_FRACTIONS + [b"1"]))
    with pytest.raises(InvalidRequest, match="fraction"):
        check_shape(b",".join([b"1.5"] * (MAX_JSON_FRACTIONS + 1)))
