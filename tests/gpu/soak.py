"""Random requests, cancellations and preemptions on a device, for as long as one likes.

Prompts come from a small pool whose greedy continuations are known, so every token of every
request is checked: whatever else ran beside it, it must be what the prompt gives alone. When the
engine is idle, all blocks must be free.
"""

from __future__ import annotations

import random
import tempfile
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import transformers

from engine.config import EngineConfig
from engine.contract import Engine, SamplingParams
from scheduler.bench.drive import Driver, Job
from scheduler.bench.part import Part, grow
from scheduler.bench.report import Figure, at_least, at_most
from scheduler.config import first_come
from scheduler.core import Scheduler
from scheduler.inline import InlineLoop
from scheduler.request import Admit, FinishReason, Request, RequestOutput
from tests.checkpoints import make_tiny
from tests.gpu.asked import Asked

_MAX_TOKENS = 48
_WAVE = 40
_STATED_EVERY_S = 1.0


def run(asked: Asked, _: str = "") -> Iterator[tuple[str, Part]]:
    """Soak until the deadline, in waves that each end idle; figures come every second."""
    for part in grow(_waves(asked)):
        yield "soak", part


def _waves(asked: Asked) -> Iterator[Part]:
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix="sluice-gpu-") as name:
        model_dir = Path(name)
        make_tiny(model_dir, transformers.LlamaForCausalLM, eos_token_id=None)
        config = EngineConfig(
            model_dir=model_dir,
            device=asked.device,
            dtype="float32",
            block_size=16,
            num_blocks=32,
            max_num_seqs=12,
            max_num_batched_tokens=64,
            num_threads=1,
        )
        with asked.engine(config) as engine:
            soak = _Soak(engine, random.Random(11))
            started_s = stated_s = time.monotonic()
            # Two waves at least: the second meets what the first has left in the cache.
            while not asked.deadline.passed or soak.num_waves < 2:
                soak.wave()
                if soak.num_waves == 1 or time.monotonic() > stated_s + _STATED_EVERY_S:
                    yield _state(soak, time.monotonic() - started_s)
                    stated_s = time.monotonic()
        yield _state(soak, time.monotonic() - started_s)


def _state(soak: _Soak, elapsed_s: float) -> Part:
    snapshot = soak.scheduler.snapshot()
    return Part(
        {
            "soak_requests": Figure(soak.num_requests, "requests"),
            "soak_seconds": Figure(elapsed_s, "s"),
            "soak_preemptions": at_least(snapshot.num_preemptions, 1, "preemptions"),
            "soak_cancelled": at_least(soak.num_cancelled, 1, "requests"),
            "soak_wrong": at_most(len(soak.wrong), 0, "requests"),
            "soak_blocks_lost": at_most(soak.blocks_lost, 0, "blocks"),
        },
        {
            "wrong": soak.wrong[:20],
            "waves": soak.num_waves,
            "steps": snapshot.num_steps,
            "output_tokens": snapshot.num_output_tokens,
            "cached_tokens": snapshot.num_cached_tokens,
        },
    )


@dataclass(slots=True)
class _Live:
    prompt: int
    max_tokens: int
    tokens: list[int] = field(default_factory=list)


class _Soak:
    """Offer and cancel at random, and check what comes back."""

    def __init__(self, engine: Engine, draw: random.Random) -> None:
        self.num_requests = self.num_cancelled = self.num_waves = self.blocks_lost = 0
        self.wrong: list[str] = []
        self._draw = draw
        self._live: dict[str, _Live] = {}
        self._prompts = self._make_prompts()
        jobs = [Job(prompt=prompt, num_output_tokens=_MAX_TOKENS) for prompt in self._prompts]
        # Each alone, in a scheduler of its own: nothing beside it, nothing before it.
        self._expected = [Driver(engine).run([job]).tokens[0] for job in jobs]
        engine.reset()
        self.scheduler = Scheduler(engine.info, first_come())
        self._loop = InlineLoop(self.scheduler, engine, time.monotonic)

    def wave(self) -> None:
        """Run a few dozen requests from first to last."""
        self.num_waves += 1
        to_offer = _WAVE
        while to_offer or self._live:
            while to_offer and self._draw.random() < 0.5:
                self._offer()
                to_offer -= 1
            if self._live and self._draw.random() < 0.05:
                self._cancel(self._draw.choice(list(self._live)))
            for output in self._loop.turn():
                self._take(output)
        snapshot = self.scheduler.snapshot()
        self.blocks_lost = max(self.blocks_lost, snapshot.total_blocks - snapshot.free_blocks)

    def _make_prompts(self) -> list[list[int]]:
        lengths = (1, 15, 16, 17, 40, 64, 90)
        own = [[self._draw.randrange(3, 128) for _ in range(n)] for n in lengths]
        return own + [own[-1][:33] + prompt[:20] for prompt in own]

    def _offer(self) -> None:
        request_id = str(self.num_requests)
        self.num_requests += 1
        live = _Live(self._draw.randrange(len(self._prompts)), self._draw.randint(1, _MAX_TOKENS))
        now = time.monotonic()
        request = Request(
            request_id=request_id,
            tenant_id="soak",
            key_id="soak",
            prompt_token_ids=array("i", self._prompts[live.prompt]),
            params=SamplingParams(max_tokens=live.max_tokens, temperature=0),
            cache_salt=b"soak",
            arrival_s=now,
        )
        assert isinstance(self.scheduler.offer(request, now), Admit)
        self._live[request_id] = live

    def _cancel(self, request_id: str) -> None:
        del self._live[request_id]
        self.num_cancelled += 1
        output = self.scheduler.cancel(request_id, time.monotonic())
        if output is None or output.finish_reason is not FinishReason.CANCELLED:
            self.wrong.append(f"request {request_id} was live and could not be cancelled")

    def _take(self, output: RequestOutput) -> None:
        live = self._live.get(output.request_id)
        if live is None:
            self.wrong.append(f"request {output.request_id} spoke after its end")
            return
        live.tokens += output.token_ids
        if output.finish_reason is None:
            return
        del self._live[output.request_id]
        expected = self._expected[live.prompt][: live.max_tokens]
        if output.finish_reason is not FinishReason.LENGTH or live.tokens != expected:
            self.wrong.append(
                f"request {output.request_id}: prompt {live.prompt}, {output.finish_reason}, "
                f"{live.tokens} instead of {expected}, {output.error}"
            )
