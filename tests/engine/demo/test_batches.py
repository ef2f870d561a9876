"""Packed rows: only answers are learnt, conversations do not see each other."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.demo import MODEL_DIR
from engine.demo.batches import (
    ASSISTANT_ID,
    CHOOSING,
    CONTEXT,
    EOS_ID,
    FIRST_CONTEXT,
    RECITING,
    STRETCHING,
    Batch,
    Encoding,
    make_batch,
)
from engine.demo.corpus import Corpus, read_facts
from engine.demo.vocabulary import SPECIAL_TOKENS


@pytest.fixture(scope="module")
def encoding(tmp_path_factory: pytest.TempPathFactory) -> Encoding:
    directory: Path = tmp_path_factory.mktemp("model")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (directory / file).write_bytes((MODEL_DIR / file).read_bytes())
    return Encoding(directory)


@pytest.fixture(scope="module")
def batches(encoding: Encoding) -> list[Batch]:
    corpus = Corpus(read_facts())
    return [
        make_batch(encoding, corpus, random.Random(seed), mixture)
        for mixture, num_batches in ((RECITING, 40), (CHOOSING, 40), (STRETCHING, 10))
        for seed in range(num_batches)
    ]


def test_rows_are_full_and_stay_inside_the_context(batches: list[Batch]) -> None:
    """Every row of a batch has one length; positions end at the context."""
    lengths = {len(row) for batch in batches for row in batch.tokens}
    assert lengths == {128, FIRST_CONTEXT, CONTEXT}
    for batch in batches:
        assert batch.offset + len(batch.tokens[0]) <= CONTEXT


def test_a_label_is_the_next_token_of_the_same_answer(batches: list[Batch]) -> None:
    """Nothing of a question, and nothing of the next conversation, is to be learnt."""
    markers = set(range(len(SPECIAL_TOKENS))) - {EOS_ID}
    num_labels = 0
    for batch in batches:
        for tokens, labels, documents in zip(
            batch.tokens, batch.labels, batch.documents, strict=True
        ):
            for at in range(len(tokens) - 1):
                if labels[at] < 0:
                    assert tokens[at] != ASSISTANT_ID or documents[at] != documents[at + 1]
                    continue
                num_labels += 1
                assert labels[at] == tokens[at + 1]
                assert documents[at] == documents[at + 1]
                assert labels[at] not in markers
    assert num_labels > 10_000


def test_a_conversation_starts_a_document(batches: list[Batch]) -> None:
    """The mask's documents begin exactly where a chat begins."""
    bos = SPECIAL_TOKENS.index("<|bos|>")
    for batch in batches:
        for tokens, documents in zip(batch.tokens, batch.documents, strict=True):
            for at in range(1, len(tokens)):
                assert (documents[at] != documents[at - 1]) == (tokens[at] == bos)
