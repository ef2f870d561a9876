"""The peer is measured by whole answers alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from checkpoints import make_tiny_llama
from scheduler.bench.drive import BenchError
from scheduler.bench.transformers_peer import TransformersPeer, page_size_option

PROMPTS = [[3, 4, 5], [6, 7, 8]]


@dataclass
class Answer:
    generated_tokens: list[int] = field(default_factory=lambda: [1, 2])
    error: str | None = None


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> TransformersPeer:
    path: Path = tmp_path_factory.mktemp("tiny")
    make_tiny_llama(path, eos_token_id=None)
    return TransformersPeer(path, dtype="float32", device="cpu")


def test_both_ways_give_the_same_tokens(peer: TransformersPeer) -> None:
    """Continuous batching answers each prompt with what a static batch does, in their order."""
    _, expected = peer.generate(PROMPTS, 5)
    for _ in range(2):  # the second meets the manager of the first
        elapsed_s, tokens = peer.generate_batch(PROMPTS, 5, warm=True)
        assert tokens == expected
        assert elapsed_s > 0
    peer.stop_batching()


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"req_1": Answer()}, "answered 1 of 2 requests"),
        ({}, "answered 0 of 2 requests"),
        ({"req_1": Answer(), "req_0": Answer([1])}, "gave a request 1 of 2 tokens"),
        ({"req_1": Answer(), "req_0": Answer([1, 2, 3])}, "gave a request 3 of 2 tokens"),
        ({"req_0": Answer(), "req_1": Answer(error="no page")}, "failed at req_1: no page"),
    ],
)
def test_batch_that_is_not_whole_is_no_result(
    peer: TransformersPeer,
    monkeypatch: pytest.MonkeyPatch,
    answers: dict[str, Answer],
    message: str,
) -> None:
    """A batch in which a request failed, is missing or ended early is refused by name."""
    monkeypatch.setattr(peer._model, "generate_batch", lambda *_, **__: answers)
    with pytest.raises(BenchError, match=message):
        peer.generate_batch(PROMPTS, 2, warm=False)


def test_static_batch_that_ended_early_is_no_result(
    peer: TransformersPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer tokens than were asked for are refused, not timed."""
    generate = peer._model.generate
    monkeypatch.setattr(peer._model, "generate", lambda *args, **options: generate(*args)[:, :4])
    peer._model.generation_config.max_new_tokens = 1
    with pytest.raises(BenchError, match="gave a request 1 of 2 tokens"):
        peer.generate(PROMPTS, 2)


def test_answers_come_in_the_order_of_prompts(
    peer: TransformersPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers in the names order them, not when each ended."""
    answers = {f"req_{n}": Answer([n, n]) for n in (10, 9, 2)}
    monkeypatch.setattr(peer._model, "generate_batch", lambda *_, **__: answers)
    _, tokens = peer.generate_batch([*PROMPTS, [9]], 2, warm=False)
    assert tokens == [[2, 2], [9, 9], [10, 10]]


def test_pages_are_called_as_the_version_calls_them() -> None:
    """`page_size` where there is one, even beside its old name; else `block_size`."""

    # Any: what its versions take besides.
    def old(block_size: int = 1, **_: Any) -> None: ...

    def new(page_size: int = 1, *, block_size: int | None = None, **_: Any) -> None: ...

    assert page_size_option(old) == {"block_size": 256}  # type: ignore[arg-type]
    assert page_size_option(new) == {"page_size": 256}  # type: ignore[arg-type]
