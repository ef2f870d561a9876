"""The engine bench on a device, with random weights in the shapes of real models."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from engine.models.registry import known_architectures
from scheduler.bench.engine_bench import measure
from scheduler.bench.part import Part
from scheduler.bench.setup import DEMO, Options
from tests.gpu.deadline import Deadline

_WORKLOADS = ("nano", "decode-sweep", "shared-prefix", "prefill", "mixed")
CONFIGS = sorted((Path(__file__).parent / "configs").glob("*.json"))


def run(device: str, deadline: Deadline, *, quick: bool) -> Iterator[tuple[str, Part]]:
    """Measure each shape that the registry can serve, until the deadline."""
    if quick:
        options = Options(
            shape=DEMO,
            device=device,
            num_threads=1,
            batches=(1, 2),
            rounds=1,
            scale=0.01,
            peers=False,
        )
        yield from measure(options, ("decode-sweep", "nano"))
        return
    for number, path in enumerate(CONFIGS):
        share = Deadline(deadline.left_s / (len(CONFIGS) - number))
        [architecture] = json.loads(path.read_text())["architectures"]
        if architecture not in known_architectures():
            sys.stderr.write(f"{path.stem}: {architecture} cannot be served yet\n")
            continue
        with tempfile.TemporaryDirectory(prefix="sluice-gpu-") as name:
            model_dir = Path(name) / path.stem
            model_dir.mkdir()
            (model_dir / "config.json").write_bytes(path.read_bytes())
            yield from _measure(model_dir, device, share)


def _measure(model_dir: Path, device: str, deadline: Deadline) -> Iterator[tuple[str, Part]]:
    """Measure one shape, the figures that the documents quote first."""
    options = Options(model_dir=model_dir, device=device, rounds=2, scale=1.0, dummy=True)
    for title, part in measure(options, _WORKLOADS):
        yield title, part
        if deadline.passed:
            sys.stderr.write(f"the time was up after {title}\n")
            return
