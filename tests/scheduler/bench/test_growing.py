"""What workloads state before they are done, on a simulated engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import cast

import pytest

from engine.demo import MODEL_DIR
from engine.models.hf_config import load_model_config
from engine.simulated import SimulatedEngine
from fakes import UNIT_COST
from scheduler.bench.engine_bench import WORKLOADS
from scheduler.bench.part import grow
from scheduler.bench.roofline import Ceilings, ModelWork
from scheduler.bench.setup import Bench, Options
from scheduler.bench.transformers_peer import TransformersPeer


class EngineOfManyDrivers(SimulatedEngine):
    """Let steps be counted anew after a reset, as an engine that computes does."""

    def reset(self) -> None:
        super().reset()
        self._last_step_id = -1


class Peer:
    """Answer each prompt at once, and note how it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def generate(
        self, prompts: Sequence[Sequence[int]], num_output_tokens: int
    ) -> tuple[float, list[list[int]]]:
        self.asked.append("static")
        return 1.0, [[0] * num_output_tokens for _ in prompts]

    def generate_batch(
        self, prompts: Sequence[Sequence[int]], num_output_tokens: int, *, warm: bool
    ) -> tuple[float, list[list[int]]]:
        self.asked.append("warm" if warm else "plain")
        return 1.0, [[0] * num_output_tokens for _ in prompts]

    def stop_batching(self) -> None:
        self.asked.append("stop")


def make_bench(peer: Peer | None = None, **options: tuple[int, ...] | int) -> Bench:
    return Bench(
        options=Options(scale=0.02, **options),  # type: ignore[arg-type]
        slug="tiny",
        uses_native=False,
        own_dtype="float32",
        engine=EngineOfManyDrivers(
            UNIT_COST,
            vocab_size=50,
            max_model_len=2048,
            max_num_seqs=16,
            max_num_batched_tokens=1024,
            num_blocks=2048,
            block_size=4,
        ),
        peer=cast(TransformersPeer | None, peer),
        work=ModelWork(load_model_config(MODEL_DIR), 4),
        ceilings=Ceilings(1e9, 1e9),
        draw=random.Random(1),
    )


@pytest.mark.parametrize("workload", ["decode-sweep", "host-share"])
def test_each_batch_is_stated_when_it_is_measured(workload: str) -> None:
    """A run that is cut short has the figures of the batches before."""
    bench = make_bench(batches=(2, 4), rounds=1)
    states = [
        (part.complete, {key.rpartition("_b")[2][0] for key in part.figures})
        for part in grow(WORKLOADS[workload](bench))
    ]
    assert states == [(False, {"2"}), (False, {"2", "4"}), (True, {"2", "4"})]


def test_peer_is_stated_before_it_takes_the_memory() -> None:
    """What was compared is written before continuous batching is called as it is documented."""
    peer = Peer()
    parts = grow(WORKLOADS["peer"](make_bench(peer, batches=(16,), rounds=1)))
    first = set(next(parts).figures)
    assert "plain" not in peer.asked
    *_, last = parts
    assert peer.asked == ["static", "warm", "static", "warm", "stop", "plain"]
    assert first == {
        *("transformers_tiny_b16_fp32_ratio", "transformers_cb_warm_tiny_b16_fp32_ratio")
    }
    assert set(last.figures) - first == {"transformers_cb_tiny_b16_fp32_ratio"}


@pytest.mark.parametrize("workload", ["prefill", "mixed", "shared-prefix", "nano", "1k1k"])
def test_each_round_is_stated_when_it_is_measured(workload: str) -> None:
    """After a round that warms up there are figures from the first round on, then of both."""
    states = [
        (part.complete, len(next(iter(part.samples.values()))), set(part.figures))
        for part in grow(WORKLOADS[workload](make_bench(rounds=2)))
    ]
    names = states[0][2]
    assert names
    assert states == [(False, 1, names), (False, 2, names), (True, 2, names)]
