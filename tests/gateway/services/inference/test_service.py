"""Prompts become tokens once, whatever is asked of them."""

from __future__ import annotations

import threading
from array import array
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from engine.contract import SamplingParams
from gateway.services.fair_pool import FairPool
from gateway.services.inference.chat_text import Message
from gateway.services.inference.models import ServedModel
from gateway.services.inference.service import InferenceService, Job

pytestmark = pytest.mark.anyio


class CountingTokenizer:
    """Turn a text into as many tokens as it has characters, and count how often."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.threads: list[str] = []

    def encode(self, text: str, *, add_special_tokens: bool = True) -> array[int]:
        self.texts.append(text)
        self.threads.append(threading.current_thread().name)
        return array("i", range(len(text)))


async def test_choices_of_a_prompt_share_one_tokenisation() -> None:
    """Three choices of each of two texts are two tokenisations, and each job keeps its own seed."""
    tokenizer = CountingTokenizer()
    jobs = [
        Job(request_id=f"{text}{seed}", prompt=text, params=SamplingParams(max_tokens=4, seed=seed))
        for text in ("one", "three")
        for seed in range(3)
    ]
    inference = InferenceService(salt_key=b"salt" * 8, pool=FairPool())
    prepared = await inference.prepare(uuid4(), _model(tokenizer), jobs, choices_per_prompt=3)
    inference.pool.close()
    assert tokenizer.texts == ["one", "three"]
    assert [len(one.prompt) for one in prepared] == [3, 3, 3, 5, 5, 5]
    assert [one.params.seed for one in prepared] == [0, 1, 2, 0, 1, 2]


async def test_only_long_prompts_are_worth_a_thread() -> None:
    """A short one is tokenised on the event loop, a long one, or many messages, beside it."""
    tokenizer = CountingTokenizer()
    inference = InferenceService(salt_key=b"salt" * 8, pool=FairPool())
    many = tuple(Message("user", "") for _ in range(20))
    for prompt in ("short", "long" * 200, (Message("user", "Hi"),), many):
        job = Job(request_id="r", prompt=prompt, params=SamplingParams(max_tokens=4))
        await inference.prepare(uuid4(), _model(tokenizer), [job])
    inference.pool.close()
    here = threading.current_thread().name
    assert [thread == here for thread in tokenizer.threads] == [True, False, True, False]


class Template:
    """Render a chat as its contents, with a sign for each message."""

    def render(self, messages: list[dict[str, str]], **said: object) -> str:
        return "".join("#" + message["content"] for message in messages)


def _model(tokenizer: CountingTokenizer) -> ServedModel:
    info = SimpleNamespace(max_model_len=1000, vocab_size=1000)
    model: Any = SimpleNamespace(name="m", tokenizer=tokenizer, info=info, chat_template=Template())
    return cast(ServedModel, model)
