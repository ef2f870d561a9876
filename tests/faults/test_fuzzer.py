"""The fuzzer repeats itself, covers its kinds, and sees what a server does wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable

from tests.faults.cases import Target
from tests.faults.fuzzer import Tally, fuzz, make_case
from tests.faults.wire import read_answer

TARGET = Target("127.0.0.1", 1, "sluice_live_x", "sluice-demo")
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def fuzzed(handler: Handler, *, count: int = 60) -> Tally:
    """Fuzz a server that treats every connection as `handler` says."""

    async def scenario() -> Tally:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await handler(reader, writer)
            writer.transport.abort()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 24)
        port = server.sockets[0].getsockname()[1]
        target = Target("127.0.0.1", port, TARGET.key, TARGET.model)
        tally = await fuzz(target, seed=3, count=count, connections=8)
        server.close()
        return tally

    return asyncio.run(scenario())


def answering(answer: bytes) -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 24)
        writer.write(answer)
        await writer.drain()
        writer.write_eof()
        await reader.read(-1)

    return handler


def test_a_case_is_the_same_for_the_same_seed_and_number() -> None:
    """A finding can be sent again; another seed is other cases."""
    first = [make_case(1, number, TARGET) for number in range(50)]
    assert first == [make_case(1, number, TARGET) for number in range(50)]
    assert first != [make_case(2, number, TARGET) for number in range(50)]


def test_cases_cover_every_kind_and_both_sides_of_validity() -> None:
    """Malformed HTTP of every kind, bodies that are JSON and bodies that are not."""
    cases = [make_case(1, number, TARGET) for number in range(3000)]
    assert len({case.kind for case in cases}) == 16
    parsed = []
    for case in cases:
        if case.kind.startswith("body"):
            try:
                parsed.append(isinstance(json.loads(case.sent.partition(b"\r\n\r\n")[2]), dict))
            except (ValueError, RecursionError):
                parsed.append(False)
    assert 0.5 < sum(parsed) / len(parsed) < 0.95


def test_refusals_are_counted_and_no_findings() -> None:
    """A server that answers 400 to everything is faultless."""
    tally = fuzzed(answering(b"HTTP/1.1 400 x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"))
    assert tally.sent == 60
    assert set(tally.statuses) == {"400"}
    assert tally.findings == []
    assert tally.slowest_number is not None


def test_an_answer_of_500_is_a_finding_with_its_bytes() -> None:
    """Each is counted, and names the case that made it."""
    tally = fuzzed(answering(b"HTTP/1.1 500 x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"))
    assert tally.server_errors == tally.failures["status 500"] > 40
    finding = tally.findings[0]
    assert repr(make_case(3, finding.number, TARGET).sent)[:20] == finding.sent[:20]


def test_a_proper_request_without_an_answer_is_a_finding() -> None:
    """What is not HTTP may be cut off; a proper request may not."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 24)

    tally = fuzzed(handler)
    kinds = {finding.kind.split()[0] for finding in tally.findings}
    assert kinds == {"body"}
    assert tally.closed.total() > 0


def test_an_answer_that_breaks_off_is_a_finding() -> None:
    """A stream without its last chunk is no answer."""
    broken = b"HTTP/1.1 200 x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab"
    tally = fuzzed(answering(broken))
    assert any(what.startswith("broken answer") for what in tally.failures)


def test_chunked_answers_are_read_to_their_end() -> None:
    """Interim answers are skipped, chunks are joined, and the next answer is the next one."""

    async def scenario() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(b"HTTP/1.1 100 Continue\r\n\r\n")
        reader.feed_data(b"HTTP/1.1 200 x\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n")
        reader.feed_data(b"1\r\nc\r\n0\r\n\r\nHTTP/1.1 404 x\r\ncontent-length: 1\r\n\r\nd")
        first, second = await read_answer(reader), await read_answer(reader)
        assert (first.status, first.body) == (200, b"abc")
        assert (second.status, second.body) == (404, b"d")

    asyncio.run(scenario())
