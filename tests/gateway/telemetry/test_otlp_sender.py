"""What a receiver of traces answers, and what of that is taken for taken."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway.telemetry.otlp_sender import OtlpSender
from tests.trace_receiver import TAKEN, receiving

LONG = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n"


def sent(monkeypatch: pytest.MonkeyPatch, answer: Sequence[bytes]) -> list[bool]:
    """Post twice to a receiver that answers so; return what each was told to be."""
    with receiving(answer) as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        sender = OtlpSender()
        try:
            return [sender.send(b""), sender.send(b"")]
        finally:
            sender.close()


@pytest.mark.parametrize("answer", [(TAKEN,), (LONG, b"x"), (LONG, *[b"x" * 65536] * 256)])
def test_an_answer_is_not_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch, answer: Sequence[bytes]
) -> None:
    """A receiver whose answer never ends, or comes byte by byte, holds up and fills nothing."""
    assert sent(monkeypatch, answer) == [True, True]


def test_a_receiver_that_is_elsewhere_has_taken_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A redirect, as from http to https, is not followed, and so is no success."""
    moved = b"HTTP/1.1 301 Moved\r\nlocation: https://127.0.0.1/\r\ncontent-length: 0\r\n\r\n"
    assert sent(monkeypatch, [moved]) == [False, False]
