"""One request from its first byte to its bill, as moments: what traces, logs and records say.

Marks are taken on the way, at a few hundred nanoseconds each; whether anybody reads them is decided
at the end. Nothing of what a tenant sent is kept here, no prompt, no answer, no header, no key, but
where an operator has switched it on for a tenant (`Content`), and then by traces alone.

Phases follow each other without a gap, as to enter one leaves the one before: they always sum to
the whole, however a request ends, and the last of a request that failed is the one it failed in.
What happens inside of a phase is told beside it (`during`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from gateway.domain.price import Price
from scheduler.facts import RequestFacts

# Of one request. What is extended again and again, or fails so, is told of no further.
MAX_REMARKS: Final = 64
MAX_CONTENT_CHARS: Final = 8192
# A phase that took less, and has nothing to say, is counted with the next one.
_NOTHING_S: Final = 20e-6

Detail = dict[str, str | int | float | bool]


class Phase(NamedTuple):
    """Tell of one phase; times are in seconds on `time.monotonic`'s clock.

    `name` is one of `gateway.telemetry.names`; `detail` are attributes beside the times, of the
    server's own words and numbers alone.
    """

    name: str
    begin_s: float
    end_s: float
    detail: Detail | None = None


class Remark(NamedTuple):
    """Tell of one moment: a limit that bound, a grant extended, a store that was away."""

    name: str
    at_s: float
    detail: Detail | None = None


class SpanName(NamedTuple):
    """Name a span of somebody else's; both ids are other than zero."""

    trace_id: int
    span_id: int


class HasFacts(Protocol):
    """Be told by the scheduler what became of one generation, at its end.

    `facts` are None until then, and stay so for what the scheduler never ended in order.
    """

    @property
    def facts(self) -> RequestFacts | None: ...
    @property
    def is_over(self) -> bool: ...


@dataclass(slots=True)
class Content:
    """Hold the beginning of what a tenant sent and was answered, `MAX_CONTENT_CHARS` of each.

    `input` are messages, a role and a text each; `output` are texts, a choice each.
    """

    input: list[tuple[str, str]] = field(default_factory=list)
    output: list[str] = field(default_factory=list)

    def sent(self, messages: Iterable[tuple[str, str]]) -> None:
        """Keep what was sent, as far as there is room."""
        left = MAX_CONTENT_CHARS
        for role, text in messages:
            self.input.append((role, text[:left]))
            left -= len(text)
            if left <= 0:
                return

    def answered(self, choice: int, text: str) -> None:
        """Keep more of a choice's text, as far as there is room for all choices."""
        while len(self.output) <= choice:
            self.output.append("")
        left = MAX_CONTENT_CHARS - sum(map(len, self.output))
        if left > 0:
            self.output[choice] += text[:left]


@dataclass(slots=True)
class Timeline:
    """Gather what happened to one request; the gateway's layers add to it as it passes.

    `began_ns` is the wall clock's time since 1970 at `began_s`, which together place all other
    times. `route` is the route's pattern, never the path that was asked for. `facts` are of its
    generations, in their order, as far as they were taken in. `status` is that of the answer's
    head, 0 where none was sent; `code` the error's, empty without one; `limit` the limit that
    refused or ended it. `outcome` is of the ledger's words. `stall_s` is how long writes waited for
    the client, of `num_events` that took `num_bytes`; the longest time between two of them was
    `max_gap_s`. `phases` tile the time from `began_s` to `ended_s`; `inner` lie within them.
    `batch_id`, `attempt`, `previous_id`: it was an item of a batch, tried before as that request.
    `content` is None but where its tenant's traces show it. `parent` is the span that its client
    named; its trace is that one's only if it `is_continued`. It `is_sampled` if it is to be kept,
    and `is_drawn` if that is for no reason but its id; it `is_kept` once its trace, or its record
    where no traces are sent, has got a place, so that its id leads somewhere.
    """

    request_id: str
    began_s: float
    began_ns: int
    method: str = ""
    route: str = ""
    parent: SpanName | None = None
    is_continued: bool = False
    tracestate: str | None = None
    tenant_id: UUID | None = None
    organisation_id: UUID | None = None
    key_id: UUID | None = None
    model: str = ""
    tier: str = ""
    is_stream: bool = False
    num_choices: int = 1
    max_tokens: int = 0
    phases: list[Phase] = field(default_factory=list)
    inner: list[Phase] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    facts: Sequence[RequestFacts] = ()
    generations: Sequence[HasFacts] = ()
    status: int = 0
    code: str = ""
    limit: str = ""
    outcome: str = ""
    finish_reasons: tuple[str, ...] = ()
    ended_s: float | None = None
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    nano_usd: int = 0
    price: Price | None = None
    num_events: int = 0
    num_bytes: int = 0
    stall_s: float = 0.0
    max_gap_s: float = 0.0
    first_write_s: float | None = None
    last_write_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    is_degraded: bool = False
    ttft_slo_s: float | None = None
    tpot_slo_s: float | None = None
    batch_id: UUID | None = None
    attempt: int = 0
    previous_id: UUID | None = None
    content: Content | None = None
    trace_id: int = 0
    is_sampled: bool = False
    is_drawn: bool = False
    is_kept: bool = False
    _name: str = ""
    _since_s: float = 0.0
    _detail: Detail | None = None

    def enter(self, name: str, at_s: float) -> None:
        """Begin a phase, and end the one before."""
        if self._name:
            if self._detail is None and at_s - self._since_s < _NOTHING_S:
                self._name = name
                return
            self.phases.append(Phase(self._name, self._since_s, at_s, self._detail))
            self._since_s, self._detail = at_s, None
        else:
            self._since_s = self.began_s
        self._name = name

    def note(self, key: str, value: str | int | float | bool) -> None:
        """Say something of the phase that runs."""
        if self._detail is None:
            self._detail = {}
        self._detail[key] = value

    def during(self, phase: Phase) -> None:
        """Tell of what took a part of the phase that runs."""
        self.inner.append(phase)

    def remark(self, name: str, at_s: float, detail: Detail | None = None) -> None:
        """Tell of a moment; of very many, of the first."""
        if len(self.remarks) < MAX_REMARKS:
            self.remarks.append(Remark(name, at_s, detail))

    def failed(self, code: str | None, limit: str = "") -> None:
        """Say what refused or ended it, in the words of the gateway's errors."""
        self.code = code or "failed"
        self.limit = limit or self.limit

    def end(self, at_s: float) -> None:
        """End the last phase and the request; a second call does nothing."""
        if self.ended_s is not None:
            return
        if self._name:
            self.phases.append(Phase(self._name, self._since_s, at_s, self._detail))
            self._name, self._detail = "", None
        self.ended_s = at_s

    @property
    def is_complete(self) -> bool:
        """Tell whether all of its generations have said what became of them, or never will."""
        return all(one.is_over for one in self.generations)

    def take_facts(self) -> None:
        """Keep the facts of its generations, and let go of these: they hold text."""
        if self.generations:
            told = [one.facts for one in self.generations]
            self.facts = tuple(facts for facts in told if facts is not None)
            self.generations = ()

    def missed(self) -> frozenset[str]:
        """Return which of what its tenant is promised did not hold: of `ttft` and `tpot`.

        A request that drew no token missed nothing: how it ended says what became of it.
        """
        first_s, last_s = self.first_token_s, self.last_token_s
        if first_s is None:
            return frozenset()
        missed = set()
        if self.ttft_slo_s is not None and first_s - self.began_s > self.ttft_slo_s:
            missed.add("ttft")
        # Choices of one request draw side by side.
        num_gaps = self.output_tokens / max(1, len(self.facts)) - 1
        slo_s = None if last_s is None or num_gaps <= 0 else self.tpot_slo_s
        if slo_s is not None and last_s is not None and last_s - first_s > slo_s * num_gaps:
            missed.add("tpot")
        return frozenset(missed)
