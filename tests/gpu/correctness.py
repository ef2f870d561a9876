"""Is what the engine computes on a device what transformers computes there, in float32?

For every architecture that the registry knows, tiny random checkpoints: the log-probabilities of
a prompt, in the error of their norm, and greedy tokens whatever the chunks, the block sizes, the
preemptions, the prefix cache and the order of the batch. bfloat16 is held against the same float32
reference. A GPU rounds differently from a CPU, so the reference runs on the same device.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch
import transformers

from engine.config import EngineConfig
from engine.contract import Engine, SamplingParams
from engine.models.registry import known_architectures
from scheduler.bench.drive import Driver, Job
from scheduler.bench.part import Part, grow
from scheduler.bench.report import Figure, at_most
from tests.checkpoints import make_tiny
from tests.gpu.asked import Asked
from tests.gpu.prompt_scores import prompt_logprobs
from tests.plan_driver import PlanDriver

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
# What sets a family apart, beside its plain shape; an architecture without an entry has that alone.
_VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "LlamaForCausalLM": ({"tie_word_embeddings": True}, {"rope_parameters": _LLAMA3_ROPE}),
    "MistralForCausalLM": ({"sliding_window": 24},),
    "Qwen3ForCausalLM": ({"head_dim": 32},),
}
_NUM_NEW_TOKENS = 16
# By dtype, and its name in a figure, what the error of log-probabilities may be.
_BOUNDS = (("float32", "fp32", 1e-4), ("bfloat16", "bf16", 5e-2))


@dataclass(frozen=True, slots=True)
class Case:
    """Name one way to run a batch that must not change its tokens."""

    block_size: int
    graphs: bool
    chunk: int | None
    preempt: bool
    prefix_cache: bool


@dataclass(slots=True)
class Checked:
    """Gather what was found on one checkpoint: the cases that differ, and the errors by dtype."""

    overrides: dict[str, Any]
    cases: int = 0
    wrong: list[str] = field(default_factory=list)
    error: dict[str, float] = field(default_factory=dict)


def run(asked: Asked, name: str) -> Iterator[tuple[str, Part]]:
    """Check the engine on a family, or on all of them."""
    # A bar for every tiny checkpoint tells nobody anything.
    transformers.utils.logging.disable_progress_bar()
    for family in known_architectures() if name == "all" else (name,):
        for part in grow(_check_family(family, asked)):
            yield f"correctness {family}", part


def _check_family(family: str, asked: Asked) -> Iterator[Part]:
    """Check a family's checkpoints; what the time did not suffice for is counted as left out."""
    checked: list[Checked] = []
    left_out = 0
    for overrides in ({}, *(() if asked.quick else _VARIANTS.get(family, ()))):
        if asked.deadline.passed:
            left_out += 1
            continue
        with tempfile.TemporaryDirectory(prefix="sluice-gpu-") as name:
            model_dir = Path(name)
            make_tiny(model_dir, getattr(transformers, family), eos_token_id=None, **overrides)
            checked.append(Checked(overrides))
            for _ in _check(model_dir, asked, checked[-1]):
                yield _state(family, checked, left_out)
    yield _state(family, checked, left_out)


def _state(family: str, checked: Sequence[Checked], left_out: int) -> Part:
    name = f"correctness_{family.removesuffix('ForCausalLM').lower()}"
    errors = {
        f"{name}_{short}_logprob_error": at_most(max(values), bound, "ratio")
        for dtype, short, bound in _BOUNDS
        # What has not been measured is not stated.
        if (values := [one.error[dtype] for one in checked if dtype in one.error])
    }
    return Part(
        {
            f"{name}_cases": Figure(sum(one.cases for one in checked), "cases"),
            f"{name}_cases_wrong": at_most(sum(len(one.wrong) for one in checked), 0, "cases"),
            f"{name}_checkpoints_left_out": at_most(left_out, 0, "checkpoints"),
            **errors,
        },
        {"checkpoints": [asdict(one) for one in checked]},
    )


def _cases(asked: Asked) -> dict[tuple[int, bool], list[Case]]:
    """List the cases by what needs an engine of its own: block size, and graphs on a GPU."""
    if asked.quick:
        return {(16, True): [Case(16, True, None, False, False), Case(16, True, 7, True, True)]}
    engines = [(16, True), (64, True)] + ([(32, False)] if asked.on_gpu else [])
    ways = list(product((None, 1, 7, 17), (False, True), (False, True)))
    return {engine: [Case(*engine, *way) for way in ways] for engine in engines}


def _check(model_dir: Path, asked: Asked, checked: Checked) -> Iterator[None]:
    """Compare one checkpoint's tokens and log-probabilities; stops whenever there is more."""
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    model = model.to(asked.device).eval()
    draw = random.Random(5)
    prompts = [[draw.randrange(3, 128) for _ in range(n)] for n in (1, 15, 16, 17, 40, 70)]
    prompts += [prompts[-1][:50] + prompt[:9] for prompt in prompts[:3]]
    expected = [_greedy(model, prompt) for prompt in prompts]
    for (block_size, graphs), cases in _cases(asked).items():
        with asked.engine(_config(model_dir, asked, block_size, graphs=graphs)) as engine:
            for case in cases:
                checked.cases += 1
                if _tokens(engine, case, prompts) != expected:
                    checked.wrong.append(str(case))
        yield
    checked.cases += 1
    if _scheduled(model_dir, asked, prompts) != expected:
        checked.wrong.append("scheduler, few blocks")
    yield
    for dtype, _, _ in _BOUNDS:
        checked.error[dtype] = _logprob_error(model, model_dir, asked, dtype, prompts[5])
        yield


@torch.inference_mode()
def _greedy(model: torch.nn.Module, prompt: Sequence[int]) -> list[int]:
    """Continue a prompt greedily, everything computed anew for each token."""
    tokens = list(prompt)
    device = next(model.parameters()).device
    for _ in range(_NUM_NEW_TOKENS):
        logits = model(torch.tensor([tokens], device=device)).logits
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def _config(model_dir: Path, asked: Asked, block_size: int, *, graphs: bool) -> EngineConfig:
    return EngineConfig(
        model_dir=model_dir,
        device=asked.device,
        dtype="float32",
        block_size=block_size,
        num_blocks=128,
        max_num_seqs=16,
        max_num_batched_tokens=2_048,
        num_threads=1,
        graphs=graphs,
    )


def _tokens(engine: Engine, case: Case, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    engine.reset()
    driver = PlanDriver(
        engine,
        chunk=case.chunk,
        shuffle=True,
        prefix_cache=case.prefix_cache,
        preempt=case.preempt,
    )
    params = SamplingParams(max_tokens=_NUM_NEW_TOKENS, temperature=0)
    return driver.run(prompts, params)


def _scheduled(model_dir: Path, asked: Asked, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Let the scheduler drive, with so few blocks that it must preempt."""
    config = EngineConfig(
        model_dir=model_dir,
        device=asked.device,
        dtype="float32",
        block_size=16,
        num_blocks=12,
        max_num_seqs=8,
        max_num_batched_tokens=32,
        num_threads=1,
    )
    jobs = [Job(prompt=prompt, num_output_tokens=_NUM_NEW_TOKENS) for prompt in prompts]
    with asked.engine(config) as engine:
        return Driver(engine).run(jobs).tokens


@torch.inference_mode()
def _logprob_error(
    model: torch.nn.Module, model_dir: Path, asked: Asked, dtype: str, prompt: Sequence[int]
) -> float:
    """Return ‖ours − reference‖ / ‖reference‖ over the log-probabilities of a prompt's tokens."""
    logits = model(torch.tensor([list(prompt)], device=asked.device)).logits[0, :-1]
    chosen = torch.tensor(prompt[1:], device=asked.device)[:, None]
    reference = torch.log_softmax(logits.double(), dim=-1).gather(1, chosen)[:, 0].cpu()
    ours = torch.tensor(prompt_logprobs(asked, model_dir, dtype, prompt), dtype=torch.float64)
    return float((ours - reference).norm() / reference.norm())
