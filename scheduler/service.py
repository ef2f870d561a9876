"""The thread that drives one engine, and the way in and out of it for an event loop.

Threads. The engine thread alone calls the engine; it takes the lock to plan and to report, never
across a launch or a collect. The event loop's thread takes the same lock to offer and to cancel,
so a refusal or a freed slot never waits for a step. Grants are posted as commands, which the
engine thread runs before its next plan. What a step yields crosses back in one
`call_soon_threadsafe`, and streams are touched by the loop's thread alone. An engine that has its
cores in common with another's waits for its turn before it plans, see `scheduler.engine_turns`.

Failures, from the least on. A row that the engine names as failed ends with an error, alone. A
step that found no memory is taken back: the engine is reset, steps are smaller from then on, and
nobody ends; but a row that found none all by itself is a fault of its step. A launch or collect
that raises is a fault: it ends the rows of its step, the engine is reset and the others go on. On
the third fault within a minute `ready` turns False, until half a minute has passed without one:
requests are still served, but whoever can choose should send them elsewhere. If the reset raises
too, or if the scheduler itself is broken, every stream ends with an error, `healthy` turns False
and stays so, and requests are refused: whoever started the service decides whether to start
another.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from engine.contract import Engine, StepPlan, StepResult
from engine.errors import EngineOutOfMemory
from scheduler.config import SchedulerConfig
from scheduler.core import Scheduler
from scheduler.counts import Counts
from scheduler.engine_turns import Place
from scheduler.errors import Rejected
from scheduler.order import BandShares, Rates
from scheduler.outputs import DrawnTokens, Outputs
from scheduler.policies.registry import levels_of
from scheduler.request import FinishReason, Reject, RejectCode, Request, RequestOutput, Sender
from scheduler.state import Load, Room, SchedulerState, Snapshot
from scheduler.stream import TokenStream

logger = logging.getLogger(__name__)

# What a process that serves gives to `sys.setswitchinterval`. The engine's thread gives up the
# interpreter at every operator and must get it back soon: at Python's default of 5 ms, a busy event
# loop stretches a step of 100 operators to half a second. And a thread that waits asks for it only
# once nobody has given it up for so long: a loop that reads and writes does every few hundred
# microseconds, has it back before the other one is awake, and is never asked.
SWITCH_INTERVAL_S: Final = 0.0001

_MAX_FAULTS = 3
_FAULT_WINDOW_S = 60.0
_QUIET_S = 30.0
# A wait may end a little early.
_LEAST_SLEEP_S = 0.001

_Command = Callable[[float], RequestOutput | None]


def _rejected(answer: Reject) -> Rejected:
    return Rejected(answer.reason, code=answer.code, retry_after_s=answer.retry_after_s)


class EngineService:
    """Serve requests with one scheduler and one engine; see the module.

    All methods belong to the event loop's thread; `clock` gives seconds.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        engine: Engine,
        *,
        place: Place | None = None,
        name: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make it. With a `place` it computes in turns with others; `name` is in its thread's."""
        self._place = place
        # Since the last step was reported.
        self._waited_s = 0.0
        self._scheduler = scheduler
        self._engine = engine
        self._clock = clock
        self._wake = threading.Condition()
        self._commands: deque[_Command] = deque()
        self._in_flight: deque[tuple[StepPlan, object]] = deque()
        self._faults_s: deque[float] = deque(maxlen=_MAX_FAULTS)
        self._streams: dict[str, TokenStream] = {}
        # What turns have yielded, until it is with its streams.
        self._on_their_way: deque[Outputs] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"engine {name}".rstrip(), daemon=True
        )
        self._stopping = False
        self._closed = False
        self._broken = False
        self._ready_from_s = -math.inf
        self._idle = self._is_roused = False
        self._progress_s = clock()

    @property
    def healthy(self) -> bool:
        """Tell whether requests are served: started, not stopping, not broken."""
        return self._thread.is_alive() and not self._stopping and not self._broken

    @property
    def ready(self) -> bool:
        """Tell whether requests should be sent here: healthy, and not after repeated faults."""
        return self.healthy and self._clock() >= self._ready_from_s

    @property
    def stopping(self) -> bool:
        """Tell whether `stop` was called: what ends with an error now is no fault."""
        return self._stopping

    @property
    def last_progress_s(self) -> float:
        """Say when, on the clock, a step last came back; an idle service is always up to date."""
        return self._clock() if self._idle else self._progress_s

    def start(self) -> None:
        """Start the thread; streams belong to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._progress_s = self._clock()
        self._thread.start()

    def stop(self, *, timeout_s: float = 30.0) -> None:
        """End what is left with an error, join the thread and close the engine.

        Blocks for one step at most. The last outputs reach their streams once the event loop turns.
        Safe to call again. A thread that hangs in the engine is left behind after `timeout_s`.
        """
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                logger.error("the engine did not return within %g s", timeout_s)
                return
        if not self._closed:
            self._closed = True
            self._engine.close()

    def submit(self, request: Request) -> TokenStream:
        """Take a request in and return the stream of its tokens.

        Raises: `Rejected`: it cannot be served, or not now; nothing of it is kept.
        """
        # A long prompt takes milliseconds to hash, for which no step should wait.
        prepared = self._scheduler.prepare(request) if self.healthy else None
        with self._wake:
            if not self.healthy:
                raise Rejected(
                    "The engine is not serving.", code=RejectCode.UNAVAILABLE, retry_after_s=None
                )
            answer = self._scheduler.offer(request, self._clock(), prepared)
            self._rouse()
        if isinstance(answer, Reject):
            raise _rejected(answer)
        stream = TokenStream(request.request_id, self.cancel, is_promised=answer.is_promised)
        self._streams[request.request_id] = stream
        return stream

    def check_room(self, sender: Sender, num_requests: int, num_prompt_tokens: int) -> None:
        """Ask whether requests of a sender may all be taken in, which is not known surely before.

        Raises: `Rejected`: they will not.
        """
        with self._wake:
            answer = self._scheduler.refuse_many(sender, num_requests, num_prompt_tokens)
        if answer is not None:
            raise _rejected(answer)

    def cancel(self, request_id: str) -> None:
        """End a request now if it is live: its slot and blocks are free when this returns.

        Its stream has ended then as well: by this, or because it had come to its end before.
        """
        with self._wake:
            if self._broken:
                return
            output = self._scheduler.cancel(request_id, self._clock())
            last = [output] if output is not None else self._overtake(request_id)
            # Its blocks may be what others wait for.
            self._rouse()
        self._deliver(Outputs(last))

    def extend(self, request_id: str, granted_tokens: int | None) -> None:
        """Raise what a request was granted, in output tokens in all; None is no bound."""

        def command(now: float) -> None:
            self._scheduler.extend(request_id, granted_tokens, now)

        self._post(command)

    def finish_granted(self, request_id: str) -> None:
        """Let a request end with `length` where its grant does."""
        self._post(lambda now: self._scheduler.finish_granted(request_id, now))

    def configure(self, config: SchedulerConfig) -> None:
        """Have the scheduler go by another configuration from the next step on.

        Raises: `UnknownPolicy`, and changes nothing.
        """
        levels_of(config.fairness.policy)

        def command(now: float) -> None:
            self._scheduler.configure(config, now)

        self._post(command)

    def set_weight(self, tenant_id: str, weight: float) -> None:
        """Change a tenant's share, that of what it has waiting included."""

        def command(now: float) -> None:
            self._scheduler.set_weight(tenant_id, weight)

        self._post(command)

    def set_organisation_weight(self, organisation_id: str, weight: float) -> None:
        """Do the same to an organisation."""

        def command(now: float) -> None:
            self._scheduler.set_organisation_weight(organisation_id, weight)

        self._post(command)

    def rates(self) -> Rates:
        """Say what is served here a second, by band, organisation and tenant."""
        with self._wake:
            return self._scheduler.rates(self._clock())

    def lean(self, elsewhere: Rates, num_replicas: int) -> None:
        """Weigh less who is served elsewhere, so that the sums go by weights."""
        self._post(lambda now: self._scheduler.lean(elsewhere, num_replicas, now))

    def least_pace_s(self) -> float:
        """Say the shortest time between tokens to promise a tenant; 0 before much is known."""
        with self._wake:
            return self._scheduler.least_pace_s()

    @property
    def config(self) -> SchedulerConfig:
        """Return what the scheduler goes by now."""
        with self._wake:
            return self._scheduler.config

    def state(self, *, max_tenants: int | None = None) -> SchedulerState:
        """Describe what the scheduler holds, band by band, and of each so many tenants, or all."""
        with self._wake:
            return self._scheduler.state(self._clock(), max_tenants=max_tenants)

    def load(self) -> Load:
        """Say how full the scheduler is."""
        with self._wake:
            return self._scheduler.load()

    def is_light(self, sender: Sender) -> bool:
        """Tell whether a sender has little waiting, whatever others have."""
        with self._wake:
            return self._scheduler.is_light(sender)

    def room(self) -> Room:
        """Say what there is for batch work to fill."""
        with self._wake:
            return self._scheduler.room()

    def snapshot(self) -> Snapshot:
        """Count what is queued, running and free."""
        with self._wake:
            return self._scheduler.snapshot()

    def counts(self) -> Counts:
        """Count what was done and is held, by cause, band and size, in some tens of µs."""
        with self._wake:
            return self._scheduler.counts()

    def shares(self) -> tuple[BandShares, ...]:
        """Say how the bands were shared in the last minute that is over."""
        with self._wake:
            return self._scheduler.shares(self._clock())

    def _post(self, command: _Command) -> None:
        with self._wake:
            self._commands.append(command)
            self._rouse()

    def _rouse(self) -> None:
        """Wake the engine's thread, if it sleeps, once the event loop has done what it has ready.

        Woken at once it would take the interpreter from whoever brings the next request, and have a
        step for each. Twice round, as what has come meanwhile is read in the first one. The lock is
        held.
        """
        if self._idle and not self._is_roused:
            assert self._loop is not None
            self._is_roused = True
            self._loop.call_soon(self._loop.call_soon, self._notify)

    def _notify(self) -> None:
        with self._wake:
            self._is_roused = False
            self._wake.notify()

    def _run(self) -> None:
        try:
            while not self._stopping and not self._broken:
                self._turn()
            if not self._broken:
                self._finish("the service stopped")
        except Exception:
            logger.exception("the scheduler failed; its service has ended")
            self._broken = True
        finally:
            if self._place is not None:
                self._place.leave()
        if self._broken:
            self._hand_back(self._fail_streams)

    def _turn(self) -> None:
        """Launch a step if one more may be in flight, then collect the oldest if none may."""
        self._wait_for_turn()
        with self._wake:
            outputs = self._run_commands()
            plan = self._scheduler.plan(self._clock())
            outputs.add(self._scheduler.take_expired())
            if plan is None and not self._in_flight and not outputs:
                self._sleep()
                return
            self._on_their_way.append(outputs)
        if plan is not None:
            self._launch(plan, outputs)
        if self._in_flight and (plan is None or len(self._in_flight) == self._depth):
            self._collect(outputs)
        if outputs:
            self._hand_back(self._deliver_turn, outputs)
        else:
            self._on_their_way.pop()

    def _wait_for_turn(self) -> None:
        """Wait until no other engine computes; before the plan, which has then what came since."""
        if self._place is not None:
            began_s = self._clock()
            self._place.take()
            self._waited_s += self._clock() - began_s

    @property
    def _depth(self) -> int:
        return self._scheduler.info.depth

    def _sleep(self) -> None:
        if self._place is not None:
            self._place.leave()
        self._waited_s = 0.0
        if self._stopping:
            return
        self._idle = True
        self._wake.wait(self._until_expiry_s())
        self._progress_s = self._clock()
        self._idle = False

    def _until_expiry_s(self) -> float | None:
        """Say how long to sleep at most: somebody may wait in vain for a slot of a paused row."""
        expires_s = self._scheduler.expires_s
        if expires_s == math.inf:
            return None
        return min(max(expires_s - self._clock(), _LEAST_SLEEP_S), threading.TIMEOUT_MAX)

    def _run_commands(self) -> Outputs:
        outputs: list[RequestOutput] = []
        while self._commands:
            output = self._commands.popleft()(self._clock())
            if output is not None:
                outputs.append(output)
        return Outputs(outputs)

    def _launch(self, plan: StepPlan, outputs: Outputs) -> None:
        try:
            handle = self._engine.launch(plan)
        except Exception as error:
            self._recover(plan.step_id, error, outputs)
            return
        self._in_flight.append((plan, handle))

    def _collect(self, outputs: Outputs) -> None:
        plan, handle = self._in_flight.popleft()
        try:
            result: StepResult = self._engine.collect(handle)
        except Exception as error:
            self._recover(plan.step_id, error, outputs)
            return
        with self._wake:
            now = self._progress_s = self._clock()
            waited_s, self._waited_s = self._waited_s, 0.0
            outputs.add(self._scheduler.report(result, now, waited_s=waited_s))

    def _recover(self, step_id: int, error: Exception, outputs: Outputs) -> None:
        """Take back or end the rows of a step that raised, and bring the engine back."""
        self._in_flight.clear()
        if not (isinstance(error, EngineOutOfMemory) and self._take_back(step_id, error)):
            self._fail(step_id, error, outputs)
        try:
            self._engine.reset()
        except Exception:
            logger.exception("the engine could not be reset: giving up")
            self._broken = True

    def _take_back(self, step_id: int, error: EngineOutOfMemory) -> bool:
        with self._wake:
            if not self._scheduler.take_back(step_id, self._clock()):
                return False
            now = self._scheduler.snapshot()
        logger.warning(
            "step %d: %s; steps hold at most %d tokens and %d rows from now on",
            step_id,
            error,
            now.max_step_tokens,
            now.max_step_rows,
        )
        return True

    def _fail(self, step_id: int, error: Exception, outputs: Outputs) -> None:
        """End the rows of a step, and count its fault."""
        logger.exception("step %d failed; the engine is reset", step_id, exc_info=error)
        reason = f"{type(error).__name__}: {error}"
        with self._wake:
            now = self._clock()
            outputs.add(self._scheduler.fail_step(step_id, reason, now))
        faults_s = self._faults_s
        faults_s.append(now)
        if len(faults_s) == _MAX_FAULTS and now - faults_s[0] < _FAULT_WINDOW_S:
            self._ready_from_s = now + _QUIET_S
            logger.error(
                "%d faults within %g s: not ready until %g s have passed without one",
                _MAX_FAULTS,
                _FAULT_WINDOW_S,
                _QUIET_S,
            )

    def _finish(self, reason: str) -> None:
        """Wait for what the engine still runs, then end every request that is left."""
        outputs = Outputs()
        while self._in_flight:
            self._collect(outputs)
        with self._wake:
            outputs.add(self._run_commands())
            outputs.add(self._scheduler.reset(reason, self._clock()))
        self._hand_back(self._deliver, outputs)

    def _hand_back(self, callback: Callable[..., None], outputs: Outputs | None = None) -> None:
        """Cross to the event loop's thread, once a step."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback, *(() if outputs is None else (outputs,)))
        except RuntimeError:
            # A closed loop has nobody left who reads; anything else is a bug.
            if not self._loop.is_closed():
                raise
            self._stopping = True

    def _deliver_turn(self, outputs: Outputs) -> None:
        self._on_their_way.popleft()
        self._deliver(outputs)

    def _overtake(self, request_id: str) -> list[RequestOutput]:
        """Return what is on its way to a stream; the lock is held, so that nothing is added."""
        turns = tuple(self._on_their_way)
        return [output for turn in turns for output in turn if output.request_id == request_id]

    def _deliver(self, outputs: Outputs) -> None:
        for part in outputs.parts:
            if isinstance(part, DrawnTokens):
                self._deliver_drawn(part)
            else:
                self._deliver_each(part)

    def _deliver_drawn(self, drawn: DrawnTokens) -> None:
        streams = self._streams
        for request_id, token_id, num_cached, num_output in drawn.rows():
            stream = streams.get(request_id)
            if stream is not None:
                stream.push_token(token_id, num_cached, num_output)

    def _deliver_each(self, outputs: list[RequestOutput]) -> None:
        streams = self._streams
        for output in outputs:
            stream = streams.get(output.request_id)
            # A cancelled request may have had a step's output on its way.
            if stream is None:
                continue
            if output.finish_reason is not None:
                del streams[output.request_id]
            stream.push(output)

    def _fail_streams(self) -> None:
        """End every stream without the scheduler, which may be what is broken."""
        self._deliver_each(
            [
                RequestOutput(request_id, (), FinishReason.ERROR, 0, 0, "the engine has failed")
                for request_id in self._streams
            ]
        )
