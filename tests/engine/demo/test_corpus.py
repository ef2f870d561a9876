"""Training examples: what is held out stays out, and everything is drawn from the seed."""

from __future__ import annotations

import random
import re

import pytest

from engine.demo.corpus import UNSEEN_WRAPPERS, WRAPPERS, Corpus, Fact, contains, read_facts


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus(read_facts())


def words(question: str) -> str:
    return " ".join(re.findall(r"\w+", question.lower()))


def test_held_out_phrasings_never_become_examples(corpus: Corpus) -> None:
    """No rewording or slip turns a trained phrasing into one that is to be measured."""
    unseen = {words(question) for fact in corpus.facts for question in fact.unseen}
    rng = random.Random(1)
    assert unseen.isdisjoint(words(corpus.example(rng).question) for _ in range(20_000))
    assert unseen.isdisjoint(words(question) for fact in corpus.facts for question in fact.ask)
    assert set(WRAPPERS).isdisjoint(UNSEEN_WRAPPERS)


def test_a_rewording_that_would_give_a_held_out_phrasing_is_drawn_again() -> None:
    """The check is on the finished question, not on the list of phrasings alone."""
    fact = Fact("f", "x", "x", ("How do I start?",), ("How can I start?",))
    corpus = Corpus([fact])
    rng = random.Random(1)
    drawn = {words(corpus.example(rng).question) for _ in range(2_000)}
    assert "how could i start" in drawn
    assert "how can i start" not in drawn


def test_no_phrasing_asks_for_two_facts(corpus: Corpus) -> None:
    """Each phrasing has one right answer."""
    asked = [words(question) for fact in corpus.facts for question in fact.ask + fact.unseen]
    assert len(asked) == len(set(asked))


def test_the_same_seed_gives_the_same_examples(corpus: Corpus) -> None:
    """Training can be repeated."""
    one, other = random.Random("s"), random.Random("s")
    for _ in range(100):
        assert corpus.example(one) == corpus.example(other)
        assert corpus.variant(one) == corpus.variant(other)


def test_a_key_fact_is_found_whatever_the_case_and_the_spaces() -> None:
    """Figures count facts, not typography."""
    assert contains("Run  `MAKE\nserve`.", "make serve")
    assert not contains("make test", "make serve")
