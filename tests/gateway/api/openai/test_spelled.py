"""Log-probabilities as JSON, from what is kept of each token."""

from __future__ import annotations

import json
from array import array

import pytest

from engine.contract import TokenLogprobs
from gateway.api.openai import spelled
from gateway.api.openai.spelled import SpelledTokens


class Letters:
    """A tokenizer whose tokens are letters; notes which it was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def token_bytes(self, token_id: int) -> bytes:
        self.asked.append(token_id)
        return bytes([97 + token_id])

    def special_id_of(self, token: str) -> int | None:
        return None


def _scored(token_id: int, rank: int) -> TokenLogprobs:
    return TokenLogprobs(token_id, -4.0, rank, array("i", [0, 1]), array("f", [-0.5, -1.5]))


def test_a_completion_lists_the_chosen_token_besides_the_likeliest() -> None:
    """A token that others are likelier than is listed too, one among them once."""
    tokens = SpelledTokens(Letters())  # type: ignore[arg-type]
    assert json.loads(bytes(tokens.text(_scored(7, rank=30)))) == {"a": -0.5, "b": -1.5, "h": -4.0}
    assert json.loads(bytes(tokens.text(_scored(1, rank=2)))) == {"a": -0.5, "b": -1.5}


class Pieces:
    """A tokenizer of three pieces of two characters, and of special tokens."""

    pieces = (b"a", b"\xc3", b"\xa9b", "\u6f22".encode(), b"<s>", b"</s>")

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]

    def special_id_of(self, token: str) -> int | None:
        return {"<s>": 4, "</s>": 5}.get(token)


@pytest.mark.parametrize(
    ("token_ids", "text", "offsets"),
    [
        # 'a', the two halves of 'é', the second with 'b', and one whole character.
        ([0, 1, 2, 3, 0], "", [0, 1, 1, 3, 4, 5]),
        # A special token is none of the text, unless its client wrote it there.
        ([4, 0, 5], "", [0, 0, 1, 1]),
        ([4, 4, 0], "<s>a", [0, 3, 3, 4]),
        ([2, 0], "", [0, 1, 2]),
    ],
)
def test_offsets_are_places_in_the_text(
    token_ids: list[int], text: str, offsets: list[int]
) -> None:
    """They count characters of the text, whatever its tokens are called."""
    tokens = SpelledTokens(Pieces())  # type: ignore[arg-type]
    assert tokens.offsets(token_ids, 0, text) == offsets
    assert tokens.offsets(token_ids, 7)[0] == 7 - (token_ids[0] == 2)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond so many tokens all are forgotten, and spelled the same when they come again."""
    monkeypatch.setattr(spelled, "_MAX_KEPT", 4)
    letters = Letters()
    tokens = SpelledTokens(letters)  # type: ignore[arg-type]
    assert [tokens.name(number) for number in (0, 1, 2, 3, 0)] == list("abcda")
    assert letters.asked == [0, 1, 2, 3]
    assert [tokens.name(number) for number in (4, 0, 4)] == list("eae")
    assert letters.asked == [0, 1, 2, 3, 4, 0]
