"""Prompts become tokens once, whatever is asked of them."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.contract import SamplingParams
from gateway.services.inference import InferenceService, Job
from gateway.services.models import ServedModel

pytestmark = pytest.mark.anyio


class CountingTokenizer:
    """Turn a text into as many tokens as it has characters, and count how often."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def encode(self, text: str) -> array[int]:
        self.texts.append(text)
        return array("i", range(len(text)))


async def test_choices_of_a_prompt_share_one_tokenisation() -> None:
    """Three choices of each of two texts are two tokenisations, and each job keeps its own seed."""
    tokenizer = CountingTokenizer()
    model: Any = SimpleNamespace(
        name="m", tokenizer=tokenizer, info=SimpleNamespace(max_model_len=100, vocab_size=100)
    )
    jobs = [
        Job(request_id=f"{text}{seed}", prompt=text, params=SamplingParams(max_tokens=4, seed=seed))
        for text in ("one", "three")
        for seed in range(3)
    ]
    inference = InferenceService(salt_key=b"salt" * 8)
    prepared = await inference.prepare(cast(ServedModel, model), jobs, choices_per_prompt=3)
    inference.close()
    assert tokenizer.texts == ["one", "three"]
    assert [len(one.prompt) for one in prepared] == [3, 3, 3, 5, 5, 5]
    assert [one.params.seed for one in prepared] == [0, 1, 2, 0, 1, 2]
