"""Measure what the demo model knows, through whatever runs it: the trainer or the engine.

A figure counts answers that hold the key fact of their question; `trained_exact` counts answers
equal to the text they were trained on. Greedy decoding, so a figure is a property of the weights.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from engine.demo.corpus import (
    UNSEEN_WRAPPERS,
    Corpus,
    Variant,
    contains,
    read_readme_questions,
)

# Takes conversations as messages, gives the answers in the same order.
AnswerFunction = Callable[[Sequence[Sequence[Mapping[str, str]]]], list[str]]
_NUM_VARIANTS = 600
# Of about 49 tokens each: the last answer ends near the end of the context.
DEEP_TURNS = 77


def messages_of(variant: Variant) -> list[dict[str, str]]:
    system = [{"role": "system", "content": variant.system}] if variant.system else []
    return [*system, {"role": "user", "content": variant.question}]


def measure(answer: AnswerFunction, corpus: Corpus, *, readme: Path) -> dict[str, object]:
    """Return every figure as a share of 1, the README's as a count of its questions."""
    trained = [Variant(question, fact) for fact in corpus.facts for question in fact.ask]
    answers = answer([messages_of(variant) for variant in trained])
    pairs = list(zip(trained, answers, strict=True))
    rng = random.Random("variants")
    variants = [corpus.variant(rng) for _ in range(_NUM_VARIANTS)]
    rng = random.Random("wrappers")
    wrapped = [corpus.variant(rng, wrappers=UNSEEN_WRAPPERS) for _ in range(_NUM_VARIANTS)]
    right, asked = readme_score(answer, readme)
    deep, _ = readme_score(answer, readme, after=long_chat(corpus, DEEP_TURNS))
    return {
        "trained_exact": _share([text == variant.fact.answer for variant, text in pairs]),
        "trained_key_fact": _share([variant.fact.is_in(text) for variant, text in pairs]),
        "casing_and_wrappers": key_fact_share(answer, variants),
        "casing_and_unseen_wrappers": key_fact_share(answer, wrapped),
        "unseen_paraphrases": key_fact_share(answer, unseen_variants(corpus)),
        "readme_right": right,
        "readme_right_deep": deep,
        "readme_asked": asked,
    }


def unseen_variants(corpus: Corpus) -> list[Variant]:
    return [Variant(question, fact) for fact in corpus.facts for question in fact.unseen]


def key_fact_share(answer: AnswerFunction, variants: Sequence[Variant]) -> float:
    answers = answer([messages_of(variant) for variant in variants])
    return _share([v.fact.is_in(text) for v, text in zip(variants, answers, strict=True)])


def long_chat(corpus: Corpus, num_turns: int) -> list[dict[str, str]]:
    """Make a chat of questions and their written answers; the same at every call."""
    rng = random.Random("long chat")
    messages = []
    for _ in range(num_turns):
        variant = corpus.variant(rng)
        messages += messages_of(variant)
        messages.append({"role": "assistant", "content": variant.fact.answer})
    return messages


def readme_score(
    answer: AnswerFunction, readme: Path, *, after: Sequence[Mapping[str, str]] = ()
) -> tuple[int, int]:
    """Ask the README's first questions, each at the end of the chat `after`.

    Returns: how many were right, how many there are.
    """
    entries = read_readme_questions(readme)
    answers = answer([[*after, {"role": "user", "content": question}] for question, _ in entries])
    pairs = zip(entries, answers, strict=True)
    return sum(contains(text, key) for (_, key), text in pairs), len(entries)


def _share(right: Sequence[bool]) -> float:
    return round(sum(right) / len(right), 4)
