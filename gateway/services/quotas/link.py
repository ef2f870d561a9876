"""The way to the shared counters: what can wait rides along, and what hangs is cut off.

An operation that nobody waits for (`post`) is sent with the next one that somebody does (`ask`),
in front of it, or after a few milliseconds. It stays queued until it was answered, in its place:
operations are safe to repeat.

What requests ask for in one turn of the loop (`join`) is one call in the next. That costs a request
a turn, and spares more than calls: requests that came together stay together, and reach the engine
in one step. With the first of each turn sent at once, 16 clients cost half as much again. Its
answers are told where they are read, so no turn goes by between.

After five failures in a row the breaker opens: `ask` fails at once, and only `probe` tries, once a
second, until it succeeds. A reply also tells the counters' own time, which is the only clock that
windows go by, and which life of the counters it is: where they have forgotten, `on_epoch` is
called once with the new one.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from heapq import merge
from itertools import count
from operator import itemgetter
from typing import Any, Final

from gateway.domain.counters import Answer, CounterReply, Failed, Found, Op
from gateway.domain.limits import BASE_S
from gateway.errors import CountersUnavailable, InternalFailure
from gateway.ports import Clock, QuotaCounters
from gateway.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

# So long something is held without word of who holds it.
LEASE_S: Final = 30.0
_OPENS_AFTER: Final = 5
_POST_WITHIN_S: Final = 0.01
_MAX_RIDERS: Final = 50
# In one call, as the counters do nothing else meanwhile.
_MAX_JOINED: Final = 32

OnAnswer = Callable[[Answer], None]
# number, operation, who is told
_Rider = tuple[int, Op, OnAnswer | None]
_Answered = asyncio.Future[Answer | Exception]
_Joined = Sequence[tuple[Op, _Answered]]


class CounterLink:
    """Ask the counters, or learn at once that they cannot be asked."""

    def __init__(
        self,
        counters: QuotaCounters,
        clock: Clock,
        metrics: Metrics,
        *,
        build_s: float,
        first_build_s: float | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        """Begin; counters that are empty at the first call are built in `first_build_s`.

        Those that are emptied later are not before as many gateways are back as there were, for at
        most `lease_s`.
        """
        self._counters = counters
        self._clock = clock
        self._metrics = metrics
        self._build_s = build_s
        self._first_build_s = build_s if first_build_s is None else first_build_s
        self._posted: deque[_Rider] = deque()
        self._joined: list[tuple[Op, _Answered]] = []
        self._running: set[asyncio.Task[None]] = set()
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._num_failures = 0
        self._epoch: str | None = None
        self._built_us = 0
        self._offset_s = clock.time() - clock.monotonic()
        self.answered_s = clock.monotonic()
        self.on_epoch: Callable[[], None] = lambda: None
        # How many gateways lived when the counters were last heard of, and how long each of them
        # may hold something without being heard of.
        self.num_gateways = 1
        self._lease_s = lease_s

    @property
    def is_open(self) -> bool:
        """Tell whether the counters are taken for gone."""
        return self._num_failures >= _OPENS_AFTER

    @property
    def epoch(self) -> str:
        """Name the life of the counters that was met last; empty before the first."""
        return self._epoch or ""

    @property
    def num_posted(self) -> int:
        """Count what waits to be sent."""
        return len(self._posted)

    def now_s(self) -> float:
        """Return the counters' time, since 1970, as it was told last."""
        return self._clock.monotonic() + self._offset_s

    def built_in_s(self) -> float:
        """Return how long hard limits still let nothing through; 0: not at all."""
        return max(self._built_us / 1_000_000 + BASE_S - self.now_s(), 0.0)

    def silent_s(self) -> float:
        """Return for how long the counters have not answered."""
        return self._clock.monotonic() - self.answered_s

    async def ask(self, *ops: Op) -> Sequence[Answer]:
        """Do operations now; return their answers. Raises: `CountersUnavailable`."""
        self._check_open()
        return [_done(answer) for answer in await self._run(ops)]

    async def join(self, op: Op) -> Answer:
        """Do an operation in one call with those that come in the same turn of the loop.

        Raises: `CountersUnavailable`.
        """
        self._check_open()
        loop = asyncio.get_running_loop()
        if not self._joined:
            loop.call_soon(self._send_joined)
        answered: _Answered = loop.create_future()
        self._joined.append((op, answered))
        answer = await answered
        if isinstance(answer, CountersUnavailable):
            # One for each: whoever raises an error adds to its traceback.
            raise CountersUnavailable(detail=answer.detail, retry_after_s=1) from answer
        if isinstance(answer, Exception):
            raise InternalFailure(detail=f"the counters failed: {answer!r}") from answer
        return _done(answer)

    async def probe(self, *ops: Op) -> Sequence[Answer]:
        """Do operations even though the breaker is open. Raises: `CountersUnavailable`."""
        return [_done(answer) for answer in await self._run(ops)]

    def post(self, op: Op, on_answer: OnAnswer | None = None) -> None:
        """Have an operation done soon, once the counters answer; `on_answer` gets what they say."""
        self._posted.append((next(self._numbers), op, on_answer))
        if self._timer is None and not self.is_open:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_POST_WITHIN_S, self._start_flush)

    async def flush(self) -> None:
        """Send what is posted. Raises: `CountersUnavailable`: some of it is still queued."""
        while self._posted:
            await self._run(())

    async def close(self) -> None:
        """Send nothing more by itself."""
        if self._timer is not None:
            self._timer.cancel()
        if self._flushing is not None:
            await asyncio.gather(self._flushing, return_exceptions=True)

    def _check_open(self) -> None:
        if self.is_open:
            raise CountersUnavailable(retry_after_s=1)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _send_joined(self) -> None:
        """Do what was asked for in the turn before."""
        # Not of who has left: what undoes it may be posted already, and goes in front.
        joined = [(op, answered) for op, answered in self._joined if not answered.done()]
        self._joined.clear()
        for first in range(0, len(joined), _MAX_JOINED):
            self._begin_joined(joined[first : first + _MAX_JOINED])

    def _begin_joined(self, joined: _Joined) -> None:
        """Send operations so that their answers are told where they are read."""
        riders = self._take_riders()
        ops = [op for _, op, _ in riders]
        ops += [op for op, _ in joined]
        sent_s = self._clock.monotonic()

        def on_reply(reply: CounterReply | Exception) -> None:
            if isinstance(reply, Exception):
                self._put_back(riders)
                if isinstance(reply, CountersUnavailable):
                    self._failed(reply, len(joined))
                self._joined_failed(joined, reply)
            elif reply.epoch is None:
                self._put_back(riders)
                self._start(self._run_joined(joined))
            else:
                try:
                    answers = self._read(reply, riders, sent_s)
                except Exception as exc:
                    self._joined_failed(joined, exc)
                else:
                    _tell(joined, answers)

        try:
            is_begun = self._counters.begin(ops, on_reply)
        except Exception as exc:
            self._put_back(riders)
            self._joined_failed(joined, exc)
            return
        if not is_begun:
            self._put_back(riders)
            self._start(self._run_joined(joined))

    async def _run_joined(self, joined: _Joined) -> None:
        try:
            answers = await self._run([op for op, _ in joined], num_asking=len(joined))
        except Exception as exc:
            self._joined_failed(joined, exc)
        else:
            _tell(joined, answers)

    def _joined_failed(self, joined: _Joined, exc: Exception) -> None:
        """Tell who asked; where one of many is to blame, ask for each again."""
        if isinstance(exc, CountersUnavailable) or len(joined) == 1:
            _tell(joined, [exc] * len(joined))
        else:
            self._start(self._run_one_by_one(joined))

    async def _run_one_by_one(self, joined: _Joined) -> None:
        for one in joined:
            await self._run_joined([one])

    def _start_flush(self) -> None:
        self._timer = None
        if self._flushing is None and self._posted:
            self._flushing = asyncio.create_task(self._flush_quietly())

    async def _flush_quietly(self) -> None:
        try:
            await self.flush()
        except CountersUnavailable:
            pass  # `probe` comes back to it
        except Exception:
            logger.exception("counters could not be told of what was used")
        finally:
            self._flushing = None

    async def _run(self, ops: Sequence[Op], *, num_asking: int = 1) -> Sequence[Answer]:
        riders = self._take_riders()
        all_ops = [*(op for _, op, _ in riders), *ops]
        sent_s = self._clock.monotonic()
        try:
            reply = await self._counters.run(all_ops)
            while reply.epoch is None:
                await self._found()
                reply = await self._counters.run(all_ops)
        except BaseException as exc:
            self._put_back(riders)
            if isinstance(exc, CountersUnavailable):
                self._failed(exc, num_asking)
            raise
        return self._read(reply, riders, sent_s)

    def _take_riders(self) -> Sequence[_Rider]:
        posted = self._posted
        return [posted.popleft() for _ in range(min(len(posted), _MAX_RIDERS))]

    def _put_back(self, riders: Sequence[_Rider]) -> None:
        """Queue again what was not answered, in its place."""
        if riders:
            # Others that were sent after them may have failed, and be back, before them.
            self._posted = deque(merge(riders, self._posted, key=itemgetter(0)))

    def _read(
        self, reply: CounterReply, riders: Sequence[_Rider], sent_s: float
    ) -> Sequence[Answer]:
        """Note what a reply says and tell the riders; returns the answers to who asked."""
        self._answered(reply, sent_s)
        answers = reply.answers
        for (_, op, on_answer), answer in zip(riders, answers, strict=False):
            if isinstance(answer, Failed):
                logger.error("the counters could not do %s: %s", type(op).__name__, answer.detail)
            elif on_answer is not None:
                on_answer(answer)
        return answers[len(riders) :]

    async def _found(self) -> None:
        """Begin a new life of the counters, unless somebody else was quicker."""
        build_s = self._first_build_s if self._epoch is None else self._build_s
        build_us = int(build_s * 1_000_000)
        wait_us = int(self._lease_s * 1_000_000) if self.num_gateways > 1 else 0
        found = Found(uuid.uuid4().hex, build_us, wait_us, self.num_gateways)
        reply = await self._counters.run([found])
        # At its first call a process finds what private counters always are.
        level = logging.INFO if self._epoch is None else logging.WARNING
        logger.log(level, "the counters were empty: they begin anew as %s", reply.epoch)

    def _answered(self, reply: CounterReply, sent_s: float) -> None:
        now_s = self._clock.monotonic()
        self.answered_s = now_s
        self._built_us = reply.built_us
        self._offset_s = reply.now_us / 1_000_000 + BASE_S - (sent_s + now_s) / 2
        if self._num_failures:
            if self.is_open:
                logger.warning("the counters answer again")
            self._num_failures = 0
            self._metrics.quota_degraded.set(0)
        if reply.epoch != self._epoch:
            known, self._epoch = self._epoch, reply.epoch
            if known is not None:
                self.on_epoch()

    def _failed(self, exc: CountersUnavailable, num_asking: int) -> None:
        was_open = self.is_open
        self._num_failures += num_asking
        if self.is_open and not was_open:
            self._metrics.quota_degraded.set(1)
            logger.error(
                "the counters do not answer (%s): rates are kept by each process, hard quotas let "
                "nothing through",
                exc.detail,
            )


def _tell(joined: _Joined, answers: Sequence[Answer | Exception]) -> None:
    for (_, answered), answer in zip(joined, answers, strict=True):
        if not answered.done():
            answered.set_result(answer)


def _done(answer: Answer) -> Answer:
    if isinstance(answer, Failed):
        raise InternalFailure(detail=f"the counters failed: {answer.detail}")
    return answer
