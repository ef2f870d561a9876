"""`traceparent` and `tracestate`, read to the letter."""

from __future__ import annotations

import pytest

from gateway.domain.timeline import SpanName
from gateway.telemetry.trace_context import (
    read_traceparent,
    read_tracestate,
    root_span_id,
    traceparent,
)

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
READ = SpanName(int(TRACE, 16), int(SPAN, 16))


@pytest.mark.parametrize(
    "value", [f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00", f"cc-{TRACE}-{SPAN}-01-new"]
)
def test_a_valid_parent_is_read(value: str) -> None:
    """Of this version and of later ones, which may say more."""
    assert read_traceparent([value.encode()]) == READ


@pytest.mark.parametrize(
    "value",
    [
        "",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00_{TRACE}_{SPAN}_01",
        f"cc-{TRACE}-{SPAN}-01x",
        f"cc-{TRACE}-{SPAN}-01-{'x' * 300}",
        f"00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01",
    ],
)
def test_what_breaks_a_rule_is_passed_over(value: str) -> None:
    """Lengths, letters, zeros, versions: one fault and there is no parent."""
    assert read_traceparent([value.encode()]) is None


def test_two_parents_are_none() -> None:
    """Nobody can say which of them was meant."""
    value = f"00-{TRACE}-{SPAN}-01".encode()
    assert read_traceparent([]) is None
    assert read_traceparent([value, value]) is None


@pytest.mark.parametrize(
    ("values", "read"),
    [
        (["a=1", "b@x=2"], "a=1,b@x=2"),
        (["a=1 , b=2"], "a=1,b=2"),
        ([], None),
        (["a=" + "1" * 600], None),
        (["A=1"], None),
        (["a"], None),
        ([",".join(f"k{n}=1" for n in range(33))], None),
        (["a=1\x00"], None),
    ],
)
def test_a_state_is_read_whole_or_not_at_all(values: list[str], read: str | None) -> None:
    """At most 512 bytes and 32 members, each of the letters that it may have."""
    assert read_tracestate(value.encode() for value in values) == read


def test_what_is_written_is_valid() -> None:
    """Our own header can be read by the same rules, whatever the request's id."""
    for request_id in (1 << 64, (1 << 128) - 1, 5):
        written = traceparent(request_id, root_span_id(request_id), is_sampled=True)
        assert read_traceparent([written]) == SpanName(request_id, root_span_id(request_id))
