"""How a model writes what is not plain text: told by its chat template, or by a setting."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from engine.text import ChatTemplate, StopStrings
from gateway.random_bits import RandomBits
from gateway.services.answers import hermes, llama, mistral
from gateway.services.answers.call_log import CallLog
from gateway.services.answers.reader import AnswerReader, ReadsCalls
from gateway.services.answers.thinking import CLOSING, OPENING, Thinking

_MISTRAL_ID: Final = re.compile(r"[A-Za-z0-9]{9}", re.ASCII)
_ID_BYTES: Final = 12
_BITS: Final = RandomBits()


@dataclass(frozen=True, slots=True)
class CallFormat:
    """Say how calls are written: which special tokens are part of it, and what reads them.

    `marker` opens a call. `has_short_ids`: templates take ids of nine letters and digits alone.
    """

    name: str
    marker: str
    spelled: frozenset[str]
    reader: Callable[[CallLog], ReadsCalls]
    has_short_ids: bool = False

    def id_for_template(self, call_id: str) -> str:
        """Return an id that templates take; that of a call and that of its result stay the same."""
        if not self.has_short_ids or _MISTRAL_ID.fullmatch(call_id):
            return call_id
        return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]


HERMES: Final = CallFormat("hermes", hermes.MARKER, frozenset([hermes.MARKER]), hermes.hermes_calls)
LLAMA: Final = CallFormat("llama3", llama.MARKER, frozenset([llama.MARKER]), llama.llama_calls)
MISTRAL: Final = CallFormat(
    "mistral",
    mistral.MARKER,
    frozenset([mistral.MARKER, mistral.ARGUMENTS_MARKER, mistral.ID_MARKER]),
    mistral.mistral_calls,
    has_short_ids=True,
)
CALL_FORMATS: Final = {each.name: each for each in (HERMES, LLAMA, MISTRAL)}
_THINKING: Final = frozenset([OPENING, CLOSING])


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """Say how a model writes calls, None where nobody can tell, and whether it thinks in tags."""

    calls: CallFormat | None = None
    thinks: bool = False


PLAIN: Final = AnswerFormat()


def answer_format(
    template: ChatTemplate | None, *, calls: str = "auto", reasoning: str = "auto"
) -> AnswerFormat:
    """Tell a model's format by its template, or as the settings say."""
    source = "" if template is None else template.source
    named = _calls_in(source) if calls == "auto" else CALL_FORMATS.get(calls)
    thinks = CLOSING in source if reasoning == "auto" else reasoning == "think"
    return AnswerFormat(named, thinks)


def _calls_in(source: str) -> CallFormat | None:
    if mistral.MARKER in source:
        return MISTRAL
    # Qwen3-Coder's calls have the same tag around XML.
    if hermes.MARKER in source and "<function=" not in source:
        return HERMES
    return LLAMA if "python_tag" in source or "ipython" in source else None


def new_call_id() -> str:
    """Make an id of a call, as long as OpenAI's."""
    return f"call_{_BITS.take(_ID_BYTES).hex()}"


@dataclass(frozen=True, slots=True)
class Reading:
    """Say how one request's answer is read: what its tools are, and whether it may make one call.

    Without `names` no calls are looked for; where they `are_forced` there is nothing else.
    """

    format: AnswerFormat
    names: Collection[str] = frozenset()
    is_one_call: bool = False
    new_id: Callable[[], str] = new_call_id
    are_forced: bool = False

    @property
    def spelled(self) -> frozenset[str]:
        """Return the special tokens that the reader has to see."""
        calls = self.format.calls.spelled if self.format.calls and self.names else frozenset()
        return calls | _THINKING if self.format.thinks else calls

    def reader(self, prompt_tail: str, stop: Sequence[str] = ()) -> AnswerReader:
        """Make the reader of one answer; the end of its prompt says how that begins.

        It looks for `stop` strings if it `reads_calls`; else the text is all that there is.
        """
        calls = self.format.calls if self.names else None
        return AnswerReader(
            thinking=Thinking(prompt_tail) if self.format.thinks else None,
            calls=None if calls is None else calls.reader(CallLog(self.names, self.new_id)),
            is_one_call=self.is_one_call,
            are_forced=self.are_forced,
            stops=StopStrings(stop if calls is not None else ()),
        )
