"""Opens what a bench runs on: an engine, the peer beside it, and the machine's ceilings.

Engine and peer load the same weights (random ones that transformers has saved, where it is
installed), compute in the same dtype, and share the process and so the threads.
"""

from __future__ import annotations

import gc
import json
import os
import random
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.contract import Engine, EngineInfo
from engine.demo import MODEL_DIR
from engine.models.hf_config import load_model_config
from engine.open import open_engine
from scheduler.bench.drive import BenchError, Driver
from scheduler.bench.roofline import Ceilings, ModelWork
from scheduler.bench.shapes import SHAPES, write_config
from scheduler.bench.transformers_peer import TransformersPeer, is_installed, save_checkpoint

_DTYPE_NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_KV_CACHE_BYTES_CPU = 2 << 30
DEMO = "demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Say what to measure and how long; `None` leaves the choice to the engine or the workload.

    `model_dir` is measured instead of `shape` where it is given; without weights in it, or with
    `dummy`, they are random, and there is no peer with `dummy`. `scale` multiplies the requests of
    `nano`, `1k1k`, `64k`, `uneven` and `loop-lag` and their lengths. `step_tokens` are what a step
    computes at most. `step-sweep` writes its profile to `profile_out`. `weight_dtype`, `kv_dtype`,
    `graphs`, `dependent_launch` and `fused_matvec` are as in `EngineConfig`; `kv_cache_bytes` too,
    where the bench is not to choose. `ceiling_rounds` are those of the measurement of the ceilings.
    """

    shape: str = "llama-30m"
    model_dir: Path | None = None
    dummy: bool = False
    dtype: str | None = None
    device: str = "cpu"
    num_threads: int | None = None
    batches: tuple[int, ...] | None = None
    rounds: int = 5
    scale: float = 0.125
    native: str = "auto"
    peers: bool = True
    profile_out: Path | None = None
    step_tokens: int | None = None
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    graphs: bool = True
    dependent_launch: bool | None = None
    fused_matvec: bool | None = None
    kv_cache_bytes: int | None = None
    ceiling_rounds: int = 5

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def eight_bits(self) -> str:
        """Name in a figure what has 8 bits: nothing as it comes by itself."""
        weights = "_fp8" if self.weight_dtype == "fp8" else ""
        return f"{weights}_fp8kv" if self.kv_dtype == "fp8" else weights

    @property
    def switches(self) -> str:
        """Name in a figure what was not left to the engine."""
        dependent = {None: "", True: "_dependent", False: "_no_dependent"}[self.dependent_launch]
        matvec = {None: "", True: "_matvec", False: "_no_matvec"}[self.fused_matvec]
        return f"{dependent}{matvec}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Hold what a workload measures with; `slug` names the model in figures.

    `uses_native` tells whether the compiled operators compute, where that was left to the engine.
    """

    options: Options
    slug: str
    uses_native: bool
    own_dtype: str
    engine: Engine
    peer: TransformersPeer | None
    work: ModelWork
    ceilings: Ceilings
    draw: random.Random

    @property
    def info(self) -> EngineInfo:
        return self.engine.info

    @property
    def dtype_name(self) -> str:
        return _DTYPE_NAMES[self.info.dtype]

    @property
    def subject(self) -> str:
        """Name in a figure what is measured: the model, and what is not as it comes by itself."""
        torch_alone = "_torch" if self.options.native == "off" else ""
        dtype = "" if self.info.dtype == self.own_dtype else f"_{self.dtype_name}"
        return f"{self.slug}{torch_alone}{dtype}{self.options.eight_bits}{self.options.switches}"

    def driver(self) -> Driver:
        """Start over with an empty KV cache."""
        self.engine.reset()
        return Driver(self.engine)

    def prompt(self, num_tokens: int) -> list[int]:
        """Draw a prompt that no other shares a beginning with."""
        return [self.draw.randrange(self.info.vocab_size) for _ in range(num_tokens)]


@contextmanager
def open_bench(options: Options) -> Iterator[Bench]:
    """Load the model, and the peer where it is wanted and installed; measure the ceilings.

    Raises: `EngineError`, `BenchError`: it cannot be measured, in one line.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch:
        model_dir, load_format = _prepare(options, Path(scratch))
        config = load_model_config(model_dir)
        wants_peer = options.peers and load_format == "auto" and is_installed()
        engine_config = EngineConfig(
            model_dir=model_dir,
            load_format=load_format,
            dtype=options.dtype,
            device=options.device,
            kv_cache_bytes=options.kv_cache_bytes
            or _kv_cache_bytes(options.device, shared=wants_peer),
            num_threads=options.num_threads,
            native=options.native,
            weight_dtype=options.weight_dtype,
            kv_dtype=options.kv_dtype,
            graphs=options.graphs,
            dependent_launch=options.dependent_launch,
            fused_matvec=options.fused_matvec,
            **_given(max_num_batched_tokens=options.step_tokens),
        )
        with opened_engine(engine_config) as engine, ExitStack() as stack:
            dtype = engine.info.dtype
            peer = None
            if wants_peer:
                peer = TransformersPeer(model_dir, dtype=dtype, device=options.device)
                stack.callback(peer.close)
            name = options.shape if options.model_dir is None else options.model_dir.resolve().name
            yield Bench(
                options=options,
                slug=re.sub(r"[^a-z0-9]+", "_", name.lower()),
                uses_native=getattr(engine, "uses_native", False),
                own_dtype=config.dtype,
                engine=engine,
                peer=peer,
                work=ModelWork(
                    config,
                    4 if dtype == "float32" else 2,
                    body_itemsize=1 if options.weight_dtype == "fp8" else None,
                    kv_itemsize=1 if options.kv_dtype == "fp8" else None,
                ),
                ceilings=_measure_ceilings(options, dtype),
                draw=random.Random(7),
            )


def describe_device(device: str) -> tuple[str, dict[str, Any]]:
    """Return the name of the report for a device, and what to say of it there."""
    import torch

    if not device.startswith("cuda"):
        return "engine-cpu", {}
    name = torch.cuda.get_device_name(device)
    memory_gib = round(torch.cuda.get_device_properties(device).total_memory / 2**30, 1)
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"gpu-{slug}", {"gpu": name, "gpu_memory_gib": memory_gib, "cuda": torch.version.cuda}


def run_conditions() -> dict[str, Any]:
    """Say what else decides a figure: how many threads compute, and how they wait."""
    import torch

    return {
        "torch_threads": torch.get_num_threads(),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
    }


def _prepare(options: Options, scratch: Path) -> tuple[Path, str]:
    """Find or make the model directory, and say how its weights are loaded."""
    if options.model_dir is None and options.shape == DEMO:
        return MODEL_DIR, "auto"
    if options.model_dir is not None and any(options.model_dir.glob("*.safetensors")):
        return options.model_dir, "dummy" if options.dummy else "auto"
    if options.model_dir is not None:
        # Refused here if there is no config, or none that the engine knows.
        load_model_config(options.model_dir)
        config = json.loads((options.model_dir / "config.json").read_bytes())
    elif options.shape in SHAPES:
        config = SHAPES[options.shape]
    else:
        names = ", ".join((*SHAPES, DEMO))
        raise BenchError(f"no shape is called {options.shape!r}: choose one of {names}")
    write_config(config, scratch)
    load_model_config(scratch)
    if not options.peers or options.dummy or not is_installed():
        return scratch, "dummy"
    save_checkpoint(config, scratch)
    return scratch, "auto"


def load_engine(config: EngineConfig) -> Engine:
    """Load the model on the engine that serves its device; all benches get theirs here."""
    return open_engine(config)


@contextmanager
def opened_engine(config: EngineConfig) -> Iterator[Engine]:
    """Load the model, and in the end give back all that it took: the next one may need it."""
    engine = load_engine(config)
    try:
        yield engine
    finally:
        engine.close()
        give_memory_back(config.device)


def give_memory_back(device: str) -> None:
    """Free what only circles hold, and on a GPU what torch keeps of that for itself."""
    gc.collect()
    if device.startswith("cuda"):
        import torch

        # A device that has failed gives nothing back.
        with suppress(RuntimeError):
            torch.cuda.empty_cache()


def _given(**sizes: int | None) -> dict[str, Any]:
    """Keep what was said, so that the rest is as the engine has it by itself."""
    return {name: value for name, value in sizes.items() if value is not None}


def _kv_cache_bytes(device: str, *, shared: bool) -> int | None:
    """Take enough for every workload: on a GPU what the engine finds free, or a third with a peer.

    The peer's cache holds its workload and a quarter more, and its logits of a step are of float32.
    """
    import torch

    if not device.startswith("cuda") or not torch.cuda.is_available():
        return _KV_CACHE_BYTES_CPU
    if not shared:
        return None
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return int(free_bytes) // 3


def _measure_ceilings(options: Options, dtype: str) -> Ceilings:
    """Measure the rate of the products that most of a step is."""
    from scheduler.bench.ceilings import measure_ceilings

    in_eight_bits = options.on_gpu and options.weight_dtype == "fp8"
    return measure_ceilings(
        device=options.device,
        dtype="float8_e4m3fn" if in_eight_bits else dtype,
        rounds=options.ceiling_rounds,
    )
