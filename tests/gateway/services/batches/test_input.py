"""What a batch's input is taken for: lines in, items or errors out, however it is cut."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.domain.batch import LineError
from gateway.services.batches import batch_input
from gateway.services.batches.batch_input import MAX_ITEMS, BatchInput
from gateway.services.batches.input_lines import InputLines
from gateway.services.batches.item_line import MAX_LINE_BYTES

ENDPOINT = "/v1/completions"


def request(custom_id: str = "a", **changes: Any) -> dict[str, Any]:
    body = {"model": "sim", "prompt": "hi"} | changes.pop("body", {})
    return {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": body} | changes


def line(custom_id: str = "a", **changes: Any) -> bytes:
    return json.dumps(request(custom_id, **changes)).encode()


def without(name: str) -> bytes:
    fields = request()
    holder = fields["body"] if name.startswith("body.") else fields
    del holder[name.removeprefix("body.")]
    return json.dumps(fields).encode()


def read(data: bytes, chunk_bytes: int = 1 << 16) -> BatchInput:
    asked = BatchInput(ENDPOINT, {"sim": "sim", "alias": "sim"}.get)
    for first in range(0, len(data), chunk_bytes):
        if not asked.is_over:
            asked.feed(data[first : first + chunk_bytes])
    asked.end()
    return asked


def told(asked: BatchInput) -> Sequence[tuple[str, int | None, str | None]]:
    return [(error.code, error.line, error.param) for error in asked.errors]


def slices(data: bytes, asked: BatchInput) -> list[dict[str, Any]]:
    """Return what the items' places in the file hold."""
    return [
        json.loads(data[item.offset_bytes : item.offset_bytes + item.size_bytes])
        for item in sorted(asked.items(), key=lambda item: item.line)
    ]


@pytest.mark.parametrize("chunk_bytes", [1, 7, 1 << 16])
@pytest.mark.parametrize(
    "data",
    [
        b"\n".join([line("a"), line("b")]),
        b"\r\n".join([line("a"), line("b"), b""]),
        b"\xef\xbb\xbf" + line("a") + b"\n" + line("b") + b"\n",
        b"\n\n" + line("a") + b"\n  \t\n \n" + b"  " + line("b") + b"  \n\n",
    ],
    ids=["last line not ended", "CRLF", "BOM", "blank lines"],
)
def test_lines_are_found_however_they_end(data: bytes, chunk_bytes: int) -> None:
    """An item's place in the file is its JSON, whatever is around it and however it is read."""
    asked = read(data, chunk_bytes)
    assert not asked.errors
    assert [fields["custom_id"] for fields in slices(data, asked)] == ["a", "b"]


@pytest.mark.parametrize(
    ("bad", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"[1]", "invalid_json_line", None),
        (line()[:-5], "invalid_json_line", None),
        (line() + b" {}", "invalid_json_line", None),
        (b"[" * 100_000, "invalid_json_line", None),
        (line(body={"prompt": "?"}).replace(b"?", b"\xff"), "invalid_json_line", None),
        (without("custom_id"), "missing_required_parameter", "custom_id"),
        (without("method"), "missing_required_parameter", "method"),
        (without("url"), "missing_required_parameter", "url"),
        (without("body"), "missing_required_parameter", "body"),
        (without("body.model"), "missing_required_parameter", "body.model"),
        (without("body.prompt"), "missing_required_parameter", "body.prompt"),
        (line(custom_id=7), "invalid_type", "custom_id"),  # type: ignore[arg-type]
        (line(""), "invalid_value", "custom_id"),
        (line("ä" * 129), "invalid_value", "custom_id"),
        (line("a\x00"), "invalid_value", "custom_id"),
        (line(method="GET"), "invalid_method", "method"),
        (line(url="/v1/chat/completions"), "invalid_url", "url"),
        (line(url="x" * 9999), "invalid_url", "url"),
        (json.dumps(request() | {"body": []}).encode(), "invalid_type", "body"),
        (line(body={"model": ["sim"]}), "invalid_type", "body.model"),
        (line(body={"model": "no"}), "model_not_found", "body.model"),
        (line(body={"stream": True}), "streaming_unsupported", "body.stream"),
        (line("first"), "duplicate_custom_id", "custom_id"),
        (b" " * (MAX_LINE_BYTES + 1), "line_too_long", None),
    ],
)
def test_a_bad_line_is_told_with_its_number(bad: bytes, code: str, param: str | None) -> None:
    """Its code is OpenAI's, and the lines after it are looked at as well."""
    asked = read(b"\n".join([line("first"), b"", bad, line("last"), b"{"]))
    assert told(asked) == [(code, 3, param), ("invalid_json_line", 5, None)]
    assert all(len(error.message) < 300 for error in asked.errors)


def test_a_line_of_50_mb_is_never_held() -> None:
    """It is passed over to its end, and what is kept of it is nothing."""
    lines = InputLines()
    for _ in range(50):
        assert list(lines.feed(b"x" * 1_000_000)) == []
        assert len(lines._held) <= MAX_LINE_BYTES
    [long] = lines.feed(b"\n")
    assert (long.line, long.text) == (1, None)
    [after] = lines.feed(b"{}\n")
    assert (after.line, after.offset_bytes, after.text) == (2, 50_000_001, b"{}")


@pytest.mark.parametrize("data", [b"", b"\n \r\n", b"\xef\xbb\xbf\n"])
def test_an_input_without_requests_is_told(data: bytes) -> None:
    """A batch of nothing is a mistake."""
    assert told(read(data)) == [("empty_file", None, None)]


def test_gzip_is_told_once() -> None:
    """What is compressed is named as such, and not read on as lines."""
    data = gzip.compress(b"\n".join(line(str(i)) for i in range(2000)))
    assert told(read(data)) == [("unsupported_file_format", 1, None)]


def test_one_request_too_many_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many are taken; at the next one it is over."""
    assert MAX_ITEMS == 50_000
    monkeypatch.setattr(batch_input, "MAX_ITEMS", 5)
    data = b"\n".join(line(str(i)) for i in range(6))
    assert not read(data.rpartition(b"\n")[0]).errors
    assert told(read(data + b"\n" + b"{\n" * 9)) == [("too_many_tasks", 6, None)]


def test_blank_lines_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of nothing but line ends is not read to its own."""
    monkeypatch.setattr(batch_input, "MAX_LINES", 1000)
    asked = read(b"\n" * 5000, 100)
    assert told(asked) == [("too_many_tasks", None, None)]
    assert asked.is_over


def test_a_hundred_errors_are_told() -> None:
    """Then it is read no further: what is wrong with so many is wrong with all."""
    asked = read(b"{\n" * 5000, 100)
    assert [error.line for error in asked.errors] == list(range(1, 101))
    assert asked.errors[0] == LineError(
        "invalid_json_line", "This line is not parseable as valid JSON.", 1
    )


def test_what_begins_alike_runs_together() -> None:
    """The first of a group keeps its place, and those that share more are closer."""
    shared = ["A" * 600, "B" * 600, "A" * 600, "B" * 600]
    prompts = [f"{text}{i // 2}" for i, text in enumerate(shared)]
    prompts += ["A" * 200, f"{'A' * 600}{'x' * 2000}", "short"]
    data = b"\n".join(line(str(i), body={"prompt": text}) for i, text in enumerate(prompts))
    asked = read(data)
    ordered = [int(item.custom_id) for item in asked.items()]
    assert ordered == [0, 2, 5, 4, 1, 3, 6]
    assert [item.place for item in asked.items()] == list(range(7))


def test_models_are_told_by_their_own_names() -> None:
    """An alias is the model that it names; what is alike for two models is not run together."""
    names = ["sim", "alias", "sim"]
    data = b"\n".join(line(str(i), body={"model": name}) for i, name in enumerate(names))
    asked = read(data)
    assert asked.models == ["sim"]
    assert [item.custom_id for item in asked.items()] == ["0", "2", "1"]


def test_what_a_request_may_cost_is_estimated() -> None:
    """A token for four bytes of the prompt, and all that its answers may have."""
    bodies = [
        {"prompt": "x" * 398, "max_tokens": 50},
        {"prompt": "x" * 398},
        {"prompt": "x" * 398, "max_tokens": 50, "n": 3},
        {"prompt": "x" * 398, "max_tokens": "many", "n": []},
        {"prompt": "x" * 398, "max_tokens": 10**30},
    ]
    data = b"\n".join(line(str(i), body=body) for i, body in enumerate(bodies))
    items = sorted(read(data).items(), key=lambda item: item.line)
    counts = [item.enqueued_tokens for item in items]
    assert counts[:4] == [101 + 50, 101 + 16, 101 + 150, 101 + 16]
    assert counts[4] < 2**31
