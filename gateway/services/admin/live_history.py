"""The last ten minutes of this process, a sample every two seconds: for charts.

Samples are taken whether somebody looks or not, so they cost what counters cost: no tenant is
looked at, and nothing is asked of a store. A sample that was missed is a gap, and never made up.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.background import Background
from gateway.ports import Clock
from gateway.services.requests.recent import FirstTokens, RecentRequests
from scheduler.request import Band
from scheduler.state import SchedulerState

SAMPLE_S: Final = 2.0
HISTORY_S: Final = 600.0


class TellsState(Protocol):
    def state(self, *, max_tenants: int | None = None) -> SchedulerState: ...


class IsSampled(Protocol):
    """Name what is scheduled; `ServedModel` is one."""

    @property
    def service(self) -> TellsState: ...


@dataclass(frozen=True, slots=True)
class Sample:
    """Say how it was at a moment, in seconds since 1970; all models together.

    `queued` is how many requests waited in each band. Rates are of tokens a second since the
    sample before, None where there was none.
    """

    at_s: float
    queued: dict[Band, int]
    num_running: int
    kv_used: float
    prompt_tokens_per_s: float | None
    output_tokens_per_s: float | None
    first_tokens: FirstTokens


class LiveHistory:
    """Keep samples; enter `running` to have them taken."""

    def __init__(
        self, models: Iterable[IsSampled], recent: RecentRequests, *, clock: Clock = time
    ) -> None:
        self._models = tuple(models)
        self._recent = recent
        self._clock = clock
        self._samples: deque[Sample] = deque(maxlen=int(HISTORY_S / SAMPLE_S))
        # When tokens were counted last, and how many of prompts and of answers there were.
        self._counted: tuple[float, int, int] | None = None

    def running(self) -> Background:
        """Take samples while the block runs."""
        return Background("sampling what goes on", self.sample, interval_s=SAMPLE_S, at_once=True)

    async def sample(self) -> None:
        """Take one."""
        states = [model.service.state(max_tenants=0) for model in self._models]
        queued = dict.fromkeys(Band, 0)
        for state in states:
            for band in state.bands:
                queued[band.band] += band.queued
        counts = [state.counts for state in states]
        num_blocks = sum(one.total_blocks for one in counts)
        num_free = sum(one.free_blocks for one in counts)
        input_rate, output_rate = self._rates(
            sum(one.num_prompt_tokens for one in counts),
            sum(one.num_output_tokens for one in counts),
        )
        self.keep(
            Sample(
                at_s=self._clock.time(),
                queued=queued,
                num_running=sum(one.running for one in counts),
                kv_used=1.0 - num_free / num_blocks if num_blocks else 0.0,
                prompt_tokens_per_s=input_rate,
                output_tokens_per_s=output_rate,
                first_tokens=self._recent.first_tokens(),
            )
        )

    def keep(self, sample: Sample) -> None:
        """Keep a sample, the newest."""
        self._samples.append(sample)

    def samples(self) -> Sequence[Sample]:
        """Return those of the last ten minutes, the oldest first."""
        since_s = self._clock.time() - HISTORY_S
        return [sample for sample in self._samples if sample.at_s >= since_s]

    def newest(self) -> Sample | None:
        """Return the newest sample; None before the first."""
        return self._samples[-1] if self._samples else None

    def _rates(self, num_input: int, num_output: int) -> tuple[float | None, float | None]:
        now_s, before = self._clock.monotonic(), self._counted
        self._counted = (now_s, num_input, num_output)
        if before is None or now_s <= before[0]:
            return None, None
        span_s = now_s - before[0]
        # An engine that was built anew counts from 0.
        return max(0, num_input - before[1]) / span_s, max(0, num_output - before[2]) / span_s
