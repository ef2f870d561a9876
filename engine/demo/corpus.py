"""Make training examples out of questions.toml: phrasings, rewordings, casing, wrappers, chats.

The model is too small to have learnt English elsewhere, so whatever variation it should bear must
be shown to it. Phrasings marked `unseen`, and the wrappers in `UNSEEN_WRAPPERS`, never appear in
an example, not even by chance through a rewording; they are what is measured. All randomness
comes from the `random.Random` that is handed in. Knows no tokens and no torch.
"""

from __future__ import annotations

import hashlib
import random
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

QUESTIONS_PATH = Path(__file__).parent / "questions.toml"

WRAPPERS = (
    "Hi, {q}",
    "Hello, {q}",
    "Hey, {q}",
    "Hello! {Q}",
    "Please tell me: {q}",
    "Tell me, {q}",
    "Can you tell me: {q}",
    "Question: {Q}",
    "A question: {Q}",
    "I have a question: {q}",
    "I would like to know: {q}",
    "Quick question: {q}",
    "Excuse me, {q}",
    "Please, {q}",
    "So, {q}",
    "Ok, {q}",
    "And {q}",
    "I am new here. {Q}",
    "{Q} Thanks!",
    "{Q} Please answer briefly.",
    "{Q} Please.",
    "Can you explain: {q}",
    "Could you help me? {Q}",
    '"{Q}"',
)
UNSEEN_WRAPPERS = (
    "Hi there, {q}",
    "Help me please: {q}",
    "My question is: {q}",
    "One more question: {q}",
    "{Q} Thank you!",
    "Sorry, {q}",
)
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant",
    "Answer briefly.",
    "You are an assistant for Sluice.",
    "Be concise and friendly.",
    "You answer questions about a server. Use short sentences.",
)
_REWORDINGS = (
    ("How do I ", ("How can I ", "How to ", "How would I ", "How could I ", "How should I ")),
    ("How can I ", ("How do I ", "How could I ", "How might I ")),
    ("How do I ", ("What do I do to ", "What is the way to ", "I want to ", "How does one ")),
    ("What is ", ("What's ", "Whats ", "What exactly is ", "Explain ", "Can you explain ")),
    ("What is the ", ("Tell me the ", "Which is the ", "What would be the ")),
    ("What are ", ("Explain ", "What exactly are ", "Tell me about ")),
    ("Where is ", ("Where do I find ", "Where can I find ", "Where's ")),
    ("Where are ", ("Where do I find ", "Where can I see ")),
    ("Which ", ("What ",)),
    ("Does Sluice ", ("Can Sluice ", "Will Sluice ", "Does it ", "Does the server ")),
    ("Is there ", ("Does Sluice have ", "Do you have ", "Is there already ", "Have you got ")),
    ("Can I ", ("Could I ", "May I ", "Am I able to ", "Is it possible to ")),
    ("Do I need ", ("Must I have ", "Does it need ", "Do you need ")),
    ("What happens ", ("What does Sluice do ", "What will happen ")),
    ("Why ", ("For what reason ", "Tell me why ")),
    ("an API key", ("a key", "my key", "keys")),
    ("API key", ("key", "api token")),
    (" a key", (" an API key", " my key")),
    ("the server", ("Sluice", "it", "the gateway")),
    ("Sluice", ("it", "this", "the project", "this server")),
    ("PostgreSQL", ("Postgres", "the database")),
    ("Postgres", ("PostgreSQL",)),
    ("Redis", ("Valkey",)),
    ("supported", ("available", "possible")),
    ("command", ("commands", "shell command")),
    ("use ", ("work with ", "take ")),
    ("answer", ("response", "reply")),
    ("make ", ("create ", "build ")),
    ("create ", ("make ", "add ")),
    ("list ", ("show ", "see ")),
)


@dataclass(frozen=True, slots=True)
class Fact:
    """Hold one answer, the text in it that must not be missing, and how it is asked for."""

    name: str
    key: str
    answer: str
    ask: tuple[str, ...]
    unseen: tuple[str, ...]

    def is_in(self, text: str) -> bool:
        return contains(text, self.key)


@dataclass(frozen=True, slots=True)
class Variant:
    """Pair a question as it is put with the fact that answers it."""

    question: str
    fact: Fact
    system: str | None = None


def contains(text: str, key: str) -> bool:
    """Tell whether `key` stands in `text`, whatever the case and the white space."""
    return " ".join(key.lower().split()) in " ".join(text.lower().split())


def read_facts(path: Path = QUESTIONS_PATH) -> tuple[Fact, ...]:
    """Read the facts; a key that its own answer lacks is a mistake of ours."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))["fact"]
    facts = tuple(
        Fact(t["name"], t["key"], t["answer"], tuple(t["ask"]), tuple(t["unseen"])) for t in tables
    )
    assert all(fact.is_in(fact.answer) for fact in facts)
    return facts


def corpus_sha256(path: Path = QUESTIONS_PATH) -> str:
    """Identify the text that a model was trained on."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_readme_questions(readme: Path) -> list[tuple[str, str]]:
    """Read `- *Question?* — Answer with the **key fact**.` lines under "First questions".

    Returns: pairs of question and key fact.
    """
    text = readme.read_text(encoding="utf-8")
    section = re.search(r"^## First questions$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if section is None:
        return []
    entry = re.compile(r"^- \*(?P<question>[^*]+)\* — .*?\*\*(?P<key>[^*]+)\*\*", re.MULTILINE)
    entries = entry.finditer(section[1])
    return [(e["question"], e["key"].strip("`").replace("`", "")) for e in entries]


class Corpus:
    """Draw examples. `variant` is what the tests measure, `example` what training sees."""

    def __init__(self, facts: Sequence[Fact]) -> None:
        self.facts = tuple(facts)
        self._unseen = {_normalised(question) for fact in facts for question in fact.unseen}

    def variant(
        self, rng: random.Random, *, wrappers: Sequence[str] = WRAPPERS + UNSEEN_WRAPPERS
    ) -> Variant:
        """Draw a trained phrasing in another casing or wrapper."""
        fact = rng.choice(self.facts)
        question = rng.choice(fact.ask)
        kind = rng.randrange(3)
        if kind != 0:
            question = _wrap(question, rng.choice(wrappers))
        if kind != 1:
            question = _recase(question, rng)
        return Variant(question, fact)

    def example(self, rng: random.Random, *, hard: bool = False) -> Variant:
        """Draw a question as training sees it: reworded, wrapped, recased, with small slips.

        Args: `hard`: recase more, and to capitals more often.
        """
        while True:
            fact = rng.choice(self.facts)
            plain = rng.choice(fact.ask)
            if rng.random() < 0.35:
                plain = _reword(plain, rng)
            question = _disguise(plain, rng, hard=hard)
            if self._unseen.isdisjoint((_normalised(plain), _normalised(question))):
                break
        system = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.2 else None
        return Variant(question, fact, system)


def _disguise(question: str, rng: random.Random, *, hard: bool) -> str:
    if rng.random() < 0.35:
        question = _wrap(question, rng.choice(WRAPPERS))
    if rng.random() < 0.10:
        question = _drop_word(question, rng)
    if rng.random() < 0.10:
        question = _typo(question, rng)
    if rng.random() < (0.55 if hard else 0.40):
        question = _recase(question, rng, hard=hard)
    if rng.random() < 0.30:
        question = _repunctuate(question, rng)
    return question


def _normalised(question: str) -> str:
    return " ".join(re.sub(r"[^\w]+", " ", question.lower()).split())


def _reword(question: str, rng: random.Random) -> str:
    fitting = [(old, new) for old, new in _REWORDINGS if old in question]
    for old, new in rng.sample(fitting, min(len(fitting), rng.choice((1, 1, 2)))):
        question = question.replace(old, rng.choice(new), 1)
    return question


def _wrap(question: str, wrapper: str) -> str:
    # A first letter goes small inside a sentence, unless the word is a name.
    small = question if re.match(r"Sluice|I\b|[A-Z]{2}", question) else _first(question, str.lower)
    return wrapper.replace("{q}", small).replace("{Q}", question)


def _recase(question: str, rng: random.Random, *, hard: bool = False) -> str:
    kind = rng.randrange(10)
    if kind < (4 if hard else 6):
        return question.lower()
    if kind < (7 if hard else 8):
        return question.upper()
    if kind < 9:
        return question.title()
    return _first(question, str.swapcase)


def _first(text: str, change: Callable[[str], str]) -> str:
    return change(text[:1]) + text[1:]


def _repunctuate(question: str, rng: random.Random) -> str:
    bare = question.rstrip("?!. ")
    return rng.choice(("", " ", "")) + bare + rng.choice(("", "", "?", "??", " ?", ".", "!", "?\n"))


def _drop_word(question: str, rng: random.Random) -> str:
    words = question.split(" ")
    if len(words) > 4:
        del words[rng.randrange(len(words) - 1)]
    return " ".join(words)


def _typo(question: str, rng: random.Random) -> str:
    at = rng.randrange(max(1, len(question) - 1))
    kind = rng.randrange(3)
    if kind == 0:
        return question[:at] + question[at + 1 :]
    if kind == 1:
        return question[:at] + question[at : at + 2][::-1] + question[at + 2 :]
    return question[:at] + question[at : at + 1] + question[at:]
