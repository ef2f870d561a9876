"""The parts that messages and results of batches are put together from."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import msgspec

from gateway.api.anthropic.batch_results import writer
from gateway.api.anthropic.content import tool_use
from gateway.api.anthropic.events import Blocks
from gateway.domain.batch import Batch, BatchDraft, BatchState
from tests.gateway.api.anthropic.test_messages import events

AT = datetime(2026, 1, 1, tzinfo=UTC)
ENDED = Batch(
    draft=BatchDraft(UUID(int=1), UUID(int=2), UUID(int=3), "/v1/messages", UUID(int=4), 60),
    **{"state": BatchState.COMPLETED, "paused_for": None, "errors": (), "price_ids": {}},
    **{"output_file_id": None, "error_file_id": None},
    **{"num_items": 2, "num_done": 0, "num_failed": 0, "num_dropped": 2, "enqueued_tokens": 0},
    **{"input_tokens": 0, "cached_tokens": 0, "output_tokens": 0},
    **{"created_at": AT, "expires_at": AT, "in_progress_at": AT, "finalizing_at": AT},
    **{"cancelling_at": None, "ended_at": AT},
)


def test_blocks_follow_each_other_without_gaps() -> None:
    """A block of another kind closes the one before it, after its last delta, and is the next."""
    blocks = Blocks()
    framed = b"".join(
        (
            *(blocks.begin("thinking", {"n": 0}, lambda: {"last": 1}), blocks.delta({})),
            *(blocks.begin("thinking", {"n": 0}), blocks.delta({})),
            *(blocks.begin("text", {"n": 1}), blocks.delta({}), blocks.close(), blocks.close()),
            *(blocks.begin("text", {"n": 2}), blocks.delta({}), blocks.close()),
        )
    )
    told = [
        (event["type"].removeprefix("content_block_"), event["index"])
        for event in events(framed.decode())
    ]
    assert told == [
        *(("start", 0), ("delta", 0), ("delta", 0), ("delta", 0), ("stop", 0)),
        *(("start", 1), ("delta", 1), ("stop", 1)),
        *(("start", 2), ("delta", 2), ("stop", 2)),
    ]


def test_each_line_of_a_batchs_files_is_a_result() -> None:
    """What was answered, refused, cancelled and expired are told apart by what the line has."""
    write = writer(ENDED)

    def result(**line: object) -> object:
        written = write(json.dumps({"id": "x", "custom_id": "a", **line}).encode())
        assert written is not None
        assert json.loads(written)["custom_id"] == "a"
        return json.loads(written)["result"]

    def answered(status: int) -> dict[str, object]:
        return {"response": {"status_code": status, "request_id": "x", "body": {"b": 1}}}

    assert result(**answered(200), error=None) == {"type": "succeeded", "message": {"b": 1}}
    assert result(**answered(400)) == {"type": "errored", "error": {"b": 1}}
    for code, kind in (("batch_expired", "expired"), ("batch_cancelled", "canceled")):
        assert result(response=None, error={"code": code, "message": ""}) == {"type": kind}


def test_a_line_that_failed_a_batch_is_no_result() -> None:
    """Of an input that was not good, what can be read has the batch's fault; the rest has none."""
    failed = replace(ENDED, state=BatchState.FAILED, num_items=0, num_dropped=0)
    write = writer(failed)
    assert write(b"{") is None
    written = write(b'{"custom_id": "a", "method": "POST"}')
    assert written is not None
    assert json.loads(written)["result"]["error"]["error"]["type"] == "invalid_request_error"


def test_an_input_is_one_line_and_otherwise_as_written() -> None:
    """Line ends between values go, as results of batches are lines; what is no object is text."""
    written = '{\n"a": 1.50,\r\n "b": "\\n", "a": 12345678901234567890123}'
    block = json.loads(msgspec.json.encode(tool_use("t", "f", written)))
    assert block["input"] == json.loads(written)
    assert b"\n" not in bytes(tool_use("t", "f", written).input)
    assert b"1.50" in bytes(tool_use("t", "f", written).input)
    assert json.loads(msgspec.json.encode(tool_use("t", "f", "")))["input"] == {}
    for bad in ('{"a": "\n"}', '{"a"', "[]", "7", "{" * 100_000):
        block = json.loads(msgspec.json.encode(tool_use("t", "f", bad)))
        assert (block["input"], block["x_input_text"]) == ({}, bad)
