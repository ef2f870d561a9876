"""A raw-socket HTTP fuzzer: seeded cases, many a connection, and a tally of what came back.

Case number `i` of a seed is always the same bytes, so a finding is its number. Four in five are
proper requests with doubtful bodies, which a worker sends one after the other on a connection
that it keeps; the others are malformed HTTP, each on a connection of its own. Bytes for which
HTTP promises no answer are followed, after a while without one, by a half-close: a server that
still holds the connection after that is counted as hung.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from tests.faults.bodies import body_case
from tests.faults.cases import Case, Target
from tests.faults.malformed import malformed_case
from tests.faults.wire import Answer, BadAnswer, NoAnswer, read_answer

# How long a server may take for a proper request in a busy batch.
ANSWER_S: Final = 60.0
# How long the malformed is left to a server before the half-close, and after it.
PATIENCE_S: Final = 0.5
HUNG_S: Final = 15.0
MAX_FINDINGS: Final = 100
MALFORMED_SHARE: Final = 0.2
_SHOWN_BYTES: Final = 2000
_COUNTERS: Final = ("statuses", "kinds", "closed", "waited", "failures")


def make_case(seed: int, number: int, target: Target) -> Case:
    """Return a case; the same for the same arguments."""
    draw = random.Random(f"{seed}:{number}")
    malformed = draw.random() < MALFORMED_SHARE
    return (malformed_case if malformed else body_case)(draw, target)


@dataclass(frozen=True, slots=True)
class Finding:
    """Name a case and what was wrong with its answer; long bytes are cut."""

    number: int
    kind: str
    what: str
    sent: str
    received: str


@dataclass
class Tally:
    """Count what a server did with the cases.

    `closed` counts, by kind, connections closed without an answer, which is a server's right for
    what is not HTTP; `waited` those where it waited for more until the half-close. `failures`
    are answers of 500 and more, proper requests without a whole answer, and hangs.
    """

    sent: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    closed: Counter[str] = field(default_factory=Counter)
    waited: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    slowest_s: float = 0.0
    slowest_number: int | None = None

    @property
    def server_errors(self) -> int:
        """Return how many answers were 500 or more."""
        return sum(count for status, count in self.statuses.items() if status >= "500")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; `asdict` would take a Counter apart wrongly."""
        plain = {name: dict(getattr(self, name)) for name in _COUNTERS}
        return {
            "sent": self.sent,
            **plain,
            "findings": [asdict(finding) for finding in self.findings],
            "slowest_s": self.slowest_s,
            "slowest_number": self.slowest_number,
        }

    def answered(self, number: int, case: Case, answer: Answer, seconds: float) -> None:
        """Count one answer."""
        self.statuses[str(answer.status)] += 1
        self.kinds[f"{case.kind}: {answer.status // 100}xx"] += 1
        if seconds > self.slowest_s:
            self.slowest_s, self.slowest_number = seconds, number
        if answer.status >= 500:
            self.failed(number, case, f"status {answer.status}", answer.body)

    def failed(self, number: int, case: Case, what: str, received: bytes = b"") -> None:
        """Keep a failure, with its bytes while there are few."""
        self.failures[what] += 1
        if len(self.findings) < MAX_FINDINGS:
            shown = (repr(data[:_SHOWN_BYTES]) for data in (case.sent, received))
            self.findings.append(Finding(number, case.kind, what, *shown))


async def fuzz(
    target: Target, *, seed: int, count: int, connections: int = 16, first: int = 0
) -> Tally:
    """Send cases `first` to `first + count` from so many connections at once."""
    tally = Tally()
    numbers = iter(range(first, first + count))
    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(_Worker(target, seed, tally).run(numbers))
    return tally


class _Worker:
    """Send cases one after the other; keep the connection between proper requests."""

    def __init__(self, target: Target, seed: int, tally: Tally) -> None:
        self._target = target
        self._seed = seed
        self._tally = tally
        self._kept: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            case = make_case(self._seed, number, self._target)
            self._tally.sent += 1
            try:
                if case.kind.startswith("body"):
                    await self._proper(number, case)
                else:
                    await self._malformed(number, case)
            except ConnectionRefusedError:
                self._tally.failed(number, case, "connection refused")
                await asyncio.sleep(0.05)
        self._drop()

    async def _proper(self, number: int, case: Case) -> None:
        fresh = self._kept is None
        reader, writer = self._kept or await self._open()
        self._kept = (reader, writer)
        started = time.perf_counter()
        answer, keep = None, False
        try:
            writer.write(case.sent)
            if case.leaves:
                return
            async with asyncio.timeout(ANSWER_S):
                answer = await read_answer(reader)
            keep = not answer.closes
        except TimeoutError:
            self._tally.failed(number, case, f"no answer in {ANSWER_S:g} s")
        except (NoAnswer, OSError) as exc:
            # Refusals that end a connection, as of a body that is too large, may overtake it.
            if fresh:
                self._tally.failed(number, case, f"no answer: {type(exc).__name__}")
            else:
                self._tally.closed["kept connection"] += 1
        except BadAnswer as exc:
            self._tally.failed(number, case, f"broken answer: {str(exc)[:40]}", str(exc).encode())
        finally:
            if not keep:
                self._drop()
        if answer is not None:
            self._tally.answered(number, case, answer, time.perf_counter() - started)
        elif not fresh and not case.leaves:
            await self._proper(number, case)

    async def _malformed(self, number: int, case: Case) -> None:
        reader, writer = await self._open()
        started = time.perf_counter()
        try:
            writer.write(case.sent)
            async with asyncio.timeout(ANSWER_S if case.answers else PATIENCE_S):
                for _ in range(case.answers or 1):
                    answer = await read_answer(reader)
                    self._tally.answered(number, case, answer, time.perf_counter() - started)
                    if answer.closes:
                        break
        except TimeoutError:
            self._tally.waited[case.kind] += 1
            await self._after_half_close(number, case, reader, writer)
        except (NoAnswer, OSError):
            self._tally.closed[case.kind] += 1
        except BadAnswer as exc:
            # A server need not speak HTTP to who does not.
            if case.answers:
                self._tally.failed(number, case, f"broken answer: {str(exc)[:40]}")
            self._tally.closed[case.kind] += 1
        finally:
            writer.transport.abort()

    async def _after_half_close(
        self, number: int, case: Case, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            writer.write_eof()
            try:
                async with asyncio.timeout(HUNG_S):
                    data = await reader.read(-1)
            except TimeoutError:
                self._tally.failed(number, case, "hung")
                return
            if data.startswith(b"HTTP/1.1 5"):
                self._tally.statuses[data[9:12].decode()] += 1
                self._tally.failed(number, case, f"status {data[9:12].decode()}", data)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._target.host, self._target.port)

    def _drop(self) -> None:
        if self._kept is not None:
            self._kept[1].transport.abort()
            self._kept = None
