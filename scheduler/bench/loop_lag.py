"""How late an event loop gets to its work while an engine's thread serves a full batch beside it.

Tokens of every row of every step cross to the loop, which wakes a reader for each; the engine's
thread plans and launches, and holds Python's lock while it does. A ticker on the loop asks to be
woken every few milliseconds and notes by how much it was late, as any other request would be. The
threads take turns at the interpreter as often as in a gateway.
"""

from __future__ import annotations

import asyncio
import sys
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from engine.contract import SamplingParams
from scheduler.bench.borrowed_engine import BorrowedEngine
from scheduler.bench.drive import BenchError, percentile
from scheduler.bench.gpu_goals import at_most_on_gpu
from scheduler.bench.part import Part, Row
from scheduler.bench.report import Figure
from scheduler.bench.setup import Bench
from scheduler.config import first_come
from scheduler.core import Scheduler
from scheduler.request import FinishReason, Request
from scheduler.service import SWITCH_INTERVAL_S, EngineService
from scheduler.stream import TokenStream

_NUM_READERS = 256
_PROMPT_TOKENS = 64
_OUTPUT_TOKENS = 256
_TICK_S = 0.002
_GOAL_MS = 20.0


def loop_lag(bench: Bench) -> Part:
    """Let 256 readers have 256 tokens each (both times `scale`) while a ticker looks on."""
    num_readers = max(1, min(round(_NUM_READERS * bench.options.scale), bench.info.max_num_seqs))
    num_tokens = max(2, round(_OUTPUT_TOKENS * bench.options.scale))
    late_ms: list[list[float]] = []
    rates: list[float] = []
    for _ in range(bench.options.rounds + 1):
        bench.engine.reset()
        with _switching_as_served():
            late_s, wall_s = asyncio.run(_serve(bench, num_readers, num_tokens))
        late_ms.append([seconds * 1000 for seconds in late_s])
        rates.append(num_readers * num_tokens / wall_s)
    del late_ms[0], rates[0]  # the first round warms up
    p99_ms = median(percentile(values, 0.99) for values in late_ms)
    name = f"loop_lag_{bench.subject}"
    return Part(
        {
            f"{name}_p99_ms": at_most_on_gpu(bench, p99_ms, _GOAL_MS, "ms"),
            f"{name}_max_ms": Figure(max(map(max, late_ms)), "ms"),
            f"{name}_output_tokens_per_s": Figure(median(rates), "tokens/s"),
        },
        {
            "readers": num_readers,
            "num_output_tokens": num_tokens,
            "switch_interval_s": SWITCH_INTERVAL_S,
            "p50_ms": [percentile(values, 0.5) for values in late_ms],
            "p99_ms": [percentile(values, 0.99) for values in late_ms],
        },
        [Row(f"{num_readers} readers", median(rates), note=f"loop p99 {p99_ms:.1f} ms late")],
    )


@contextmanager
def _switching_as_served() -> Iterator[None]:
    """Let threads take turns as in a process that serves, and as before afterwards."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


async def _serve(bench: Bench, num_readers: int, num_tokens: int) -> tuple[list[float], float]:
    """Return by how many seconds the ticker was late, tick by tick, and how long it all took."""
    engine = BorrowedEngine(bench.engine)
    service = EngineService(Scheduler(engine.info, first_come(max_num_queued=1 << 30)), engine)
    requests = [_request(bench, number, num_tokens) for number in range(num_readers)]
    late_s: list[float] = []
    ticked = asyncio.Event()
    ticker = asyncio.create_task(_tick(late_s, ticked))
    service.start()
    try:
        started_s = time.perf_counter()
        streams = []
        for request in requests:
            streams.append(service.submit(request))
            # Requests do not all come in one turn of the loop.
            await asyncio.sleep(0)
        await asyncio.gather(*map(_read, streams))
        wall_s = time.perf_counter() - started_s
        await ticked.wait()  # a small run may end before the first tick
    finally:
        await asyncio.to_thread(service.stop)
        ticker.cancel()
    return late_s, wall_s


async def _tick(late_s: list[float], ticked: asyncio.Event) -> None:
    while True:
        due_s = time.perf_counter() + _TICK_S
        await asyncio.sleep(_TICK_S)
        late_s.append(time.perf_counter() - due_s)
        ticked.set()


async def _read(stream: TokenStream) -> None:
    async for delta in stream:
        if delta.finish_reason is FinishReason.ERROR:
            raise BenchError(f"a request failed: {delta.error}")


def _request(bench: Bench, number: int, num_tokens: int) -> Request:
    return Request(
        request_id=str(number),
        tenant_id="bench",
        key_id="bench",
        prompt_token_ids=array("i", bench.prompt(_PROMPT_TOKENS)),
        params=SamplingParams(max_tokens=num_tokens, seed=number, ignore_eos=True),
        cache_salt=b"bench",
        arrival_s=time.monotonic(),
    )
