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
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
import transformers

from engine.config import EngineConfig
from engine.contract import Engine, SamplingParams
from engine.models.registry import known_architectures
from scheduler.bench.drive import Driver, Job
from scheduler.bench.part import Part
from scheduler.bench.report import Figure, at_most
from scheduler.bench.setup import load_engine
from tests.checkpoints import make_tiny
from tests.gpu.asked import Asked
from tests.gpu.kernel_tests import run_kernel_tests
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
_FLOAT32_BOUND = 1e-4
_BFLOAT16_BOUND = 5e-2


@dataclass(frozen=True, slots=True)
class Case:
    """Name one way to run a batch that must not change its tokens."""

    block_size: int
    graphs: bool
    chunk: int | None
    preempt: bool
    prefix_cache: bool


def run(asked: Asked) -> Iterator[tuple[str, Part]]:
    """Run the kernels' own tests where they are compiled, then check the engine on all families."""
    if asked.on_gpu:
        yield "kernels", run_kernel_tests(timeout_s=asked.deadline.left_s / 2)
    yield "correctness", _check_families(asked)


def _check_families(asked: Asked) -> Part:
    """Check all families; what the time did not suffice for is counted as left out."""
    part = Part()
    results: list[dict[str, Any]] = []
    left_out = wrong = 0
    errors = {"float32": 0.0, "bfloat16": 0.0}
    for architecture, overrides in _checkpoints(asked.quick):
        if asked.deadline.passed:
            left_out += 1
            continue
        with tempfile.TemporaryDirectory(prefix="sluice-gpu-") as name:
            model_dir = Path(name)
            make_tiny(
                model_dir, getattr(transformers, architecture), eos_token_id=None, **overrides
            )
            result = _check(model_dir, asked)
        results.append({"architecture": architecture, "overrides": overrides, **result})
        wrong += len(result["wrong"])
        for dtype, error in result["error"].items():
            errors[dtype] = max(errors[dtype], error)
    num_cases = sum(result["cases"] for result in results)
    part.figures = {
        "correctness_cases": Figure(num_cases, "cases"),
        "correctness_cases_wrong": at_most(wrong, 0, "cases"),
        "correctness_checkpoints_left_out": at_most(left_out, 0, "checkpoints"),
        "correctness_fp32_logprob_error": at_most(errors["float32"], _FLOAT32_BOUND, "ratio"),
        "correctness_bf16_logprob_error": at_most(errors["bfloat16"], _BFLOAT16_BOUND, "ratio"),
    }
    part.samples = {"checkpoints": results}
    return part


def _checkpoints(quick: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    for architecture in known_architectures():
        yield architecture, {}
        if not quick:
            yield from ((architecture, overrides) for overrides in _VARIANTS.get(architecture, ()))


def _cases(asked: Asked) -> dict[tuple[int, bool], list[Case]]:
    """List the cases by what needs an engine of its own: block size, and graphs on a GPU."""
    if asked.quick:
        return {(16, True): [Case(16, True, None, False, False), Case(16, True, 7, True, True)]}
    engines = [(16, True), (64, True)] + ([(32, False)] if asked.on_gpu else [])
    ways = list(product((None, 1, 7, 17), (False, True), (False, True)))
    return {engine: [Case(*engine, *way) for way in ways] for engine in engines}


def _check(model_dir: Path, asked: Asked) -> dict[str, Any]:
    """Compare one checkpoint's log-probabilities and tokens; names the cases that differ."""
    device = asked.device
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    model = model.to(device).eval()
    draw = random.Random(5)
    prompts = [[draw.randrange(3, 128) for _ in range(n)] for n in (1, 15, 16, 17, 40, 70)]
    prompts += [prompts[-1][:50] + prompt[:9] for prompt in prompts[:3]]
    expected = [_greedy(model, prompt) for prompt in prompts]
    wrong = []
    num_cases = 1
    for (block_size, graphs), cases in _cases(asked).items():
        num_cases += len(cases)
        engine = _load(model_dir, device, block_size, graphs=graphs)
        wrong += [str(case) for case in cases if _tokens(engine, case, prompts) != expected]
        engine.close()
    if _scheduled(model_dir, device, prompts) != expected:
        wrong.append("scheduler, few blocks")
    error = {
        dtype: _logprob_error(model, model_dir, device, dtype, prompts[5])
        for dtype in ("float32", "bfloat16")
    }
    return {"cases": num_cases, "wrong": wrong, "error": error}


@torch.inference_mode()
def _greedy(model: torch.nn.Module, prompt: Sequence[int]) -> list[int]:
    """Continue a prompt greedily, everything computed anew for each token."""
    tokens = list(prompt)
    device = next(model.parameters()).device
    for _ in range(_NUM_NEW_TOKENS):
        logits = model(torch.tensor([tokens], device=device)).logits
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def _load(model_dir: Path, device: str, block_size: int, *, graphs: bool) -> Engine:
    return load_engine(
        EngineConfig(
            model_dir=model_dir,
            device=device,
            dtype="float32",
            block_size=block_size,
            num_blocks=128,
            max_num_seqs=16,
            num_threads=1,
            graphs=graphs,
        )
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


def _scheduled(model_dir: Path, device: str, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Let the scheduler drive, with so few blocks that it must preempt."""
    engine = load_engine(
        EngineConfig(
            model_dir=model_dir,
            device=device,
            dtype="float32",
            block_size=16,
            num_blocks=12,
            max_num_seqs=8,
            max_num_batched_tokens=32,
            num_threads=1,
        )
    )
    jobs = [Job(prompt=prompt, num_output_tokens=_NUM_NEW_TOKENS) for prompt in prompts]
    run = Driver(engine).run(jobs)
    engine.close()
    return run.tokens


@torch.inference_mode()
def _logprob_error(
    model: torch.nn.Module, model_dir: Path, device: str, dtype: str, prompt: Sequence[int]
) -> float:
    """Return ‖ours − reference‖ / ‖reference‖ over the log-probabilities of a prompt's tokens."""
    logits = model(torch.tensor([list(prompt)], device=device)).logits[0, :-1]
    chosen = torch.tensor(prompt[1:], device=device)[:, None]
    reference = torch.log_softmax(logits.double(), dim=-1).gather(1, chosen)[:, 0].cpu()
    ours = torch.tensor(prompt_logprobs(model_dir, device, dtype, prompt), dtype=torch.float64)
    return float((ours - reference).norm() / reference.norm())
