"""Encode chats as the server will, and pack them into rows of training.

A row holds several conversations, masked from each other by `Batch.documents`. Only the tokens of
answers are to be learnt, and most conversations are cut after the first tokens of their last
answer: which answer to give is decided there, the rest is recited. Every sixteenth batch, and a
quarter of the last ones, is one long chat a row, as long as the context. Loads no torch.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.demo import MODEL_DIR
from engine.demo.corpus import Corpus
from engine.demo.evaluation import messages_of
from engine.demo.vocabulary import ASSISTANT, EOS, SPECIAL_TOKENS
from engine.text import ChatTemplate, Tokenizer

CONTEXT = 4096
# What all but the last steps know: attention over the whole is most of a long row's work.
FIRST_CONTEXT = 1024
_BATCH_TOKENS = 4096
EOS_ID, ASSISTANT_ID = SPECIAL_TOKENS.index(EOS), SPECIAL_TOKENS.index(ASSISTANT)


class Encoding:
    """Encode chats as the server will: the template's text, no second bos."""

    def __init__(self, model_dir: Path) -> None:
        source = (MODEL_DIR / "chat_template.jinja").read_text()
        (model_dir / "chat_template.jinja").write_text(source)
        template = ChatTemplate.from_dir(model_dir)
        assert template is not None
        self._template = template
        self.tokenizer = Tokenizer.from_dir(model_dir)

    def chat(
        self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool
    ) -> list[int]:
        text = self._template.render(messages, add_generation_prompt=add_generation_prompt)
        return list(self.tokenizer.encode(text, add_special_tokens=False))


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of packed conversations; `labels` is −1 where nothing is to be learnt."""

    tokens: Sequence[list[int]]  # [num_rows, length]
    labels: Sequence[list[int]]  # [num_rows, length]
    documents: Sequence[list[int]]  # [num_rows, length]: which conversation a token belongs to
    offset: int  # the position of a row's first token


@dataclass(frozen=True, slots=True)
class Mixture:
    """Say what a batch is made of."""

    hard: bool  # harder questions
    cut: float  # share of the conversations whose last answer is cut
    cut_after: tuple[int, int]  # tokens of the answer that are left
    num_turns: tuple[int, int, int]  # weights of one, two, three turns
    context: int = FIRST_CONTEXT  # tokens
    long: float = 1 / 16  # share of the batches that are chats as long as the context


# Answers are learnt by heart first; then almost every token goes into telling questions apart.
RECITING = Mixture(hard=False, cut=0.6, cut_after=(4, 16), num_turns=(65, 20, 15))
CHOOSING = Mixture(hard=True, cut=0.85, cut_after=(3, 12), num_turns=(75, 17, 8))
STRETCHING = replace(CHOOSING, context=CONTEXT, long=1 / 4)


def make_batch(encoding: Encoding, corpus: Corpus, rng: random.Random, mixture: Mixture) -> Batch:
    """Draw 4,096 tokens of training."""
    long = rng.random() < mixture.long
    length = mixture.context if long else 128
    draw = _long_chat if long else _conversation
    num_rows = _BATCH_TOKENS // length
    rows = [_row(lambda: draw(encoding, corpus, rng, mixture), length) for _ in range(num_rows)]
    tokens, labels, documents = zip(*rows, strict=True)
    return Batch(tokens, labels, documents, rng.randint(0, mixture.context - length))


def _row(draw: Callable[[], list[int]], length: int) -> tuple[list[int], list[int], list[int]]:
    tokens: list[int] = []
    labels: list[int] = []
    documents: list[int] = []
    for number in itertools.count():
        if len(tokens) > length:
            break
        ids = draw()
        tokens += ids
        labels += _labels(ids)
        documents += [number] * len(ids)
    return tokens[:length], labels[:length], documents[:length]


def _conversation(
    encoding: Encoding, corpus: Corpus, rng: random.Random, mixture: Mixture
) -> list[int]:
    num_turns = rng.choices((1, 2, 3), mixture.num_turns)[0]
    ids = _chat(encoding, corpus, rng, num_turns, mixture)
    if rng.random() < mixture.cut:
        last_answer = len(ids) - ids[::-1].index(ASSISTANT_ID)
        return ids[: last_answer + rng.randint(*mixture.cut_after)]
    return ids


def _long_chat(
    encoding: Encoding, corpus: Corpus, rng: random.Random, mixture: Mixture
) -> list[int]:
    # A turn has 25 tokens and more.
    return _chat(encoding, corpus, rng, mixture.context // 25, mixture)


def _chat(
    encoding: Encoding, corpus: Corpus, rng: random.Random, num_turns: int, mixture: Mixture
) -> list[int]:
    messages: list[dict[str, str]] = []
    for turn in range(num_turns):
        variant = corpus.example(rng, hard=mixture.hard)
        messages += messages_of(variant)[0 if turn == 0 else -1 :]
        messages.append({"role": "assistant", "content": variant.fact.answer})
    return encoding.chat(messages, add_generation_prompt=False)


def _labels(ids: list[int]) -> list[int]:
    """Shift by one, and keep what stands in an answer, its end token included."""
    labels = []
    inside = False
    for here, following in zip(ids, [*ids[1:], -1], strict=True):
        inside = here == ASSISTANT_ID or (inside and here != EOS_ID)
        labels.append(following if inside else -1)
    return labels
