"""The GPU engine's logic, on a CPU or on a GPU where there is one: nothing but speed may change."""

from __future__ import annotations

import random
from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoints import load_reference, make_tiny_llama, reference_greedy
from engine.config import EngineConfig
from engine.contract import (
    DecodeRows,
    Engine,
    NewSequence,
    SamplingParams,
    SequenceSlice,
    StepPlan,
    TokenLogprobs,
)
from engine.cpu.runner import TorchEngine
from engine.errors import EngineError, EngineOutOfMemory
from engine.gpu.engine import GpuEngine
from fake_constraint import Spelled
from plan_driver import PlanDriver
from scheduler.config import first_come
from scheduler.core import Scheduler
from scheduler.inline import InlineLoop
from scheduler.request import Admit, Request
from scheduler.state import Snapshot

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NUM_NEW_TOKENS = 24
GREEDY = SamplingParams(max_tokens=NUM_NEW_TOKENS, temperature=0.0, ignore_eos=True)
ROOMY, TIGHT = 128, 10


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    make_tiny_llama(path, eos_token_id=2)
    return path


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Prompts around the edges of blocks and tiles; three of them share a long prefix."""
    rng = random.Random(7)
    shared = [rng.randrange(3, 128) for _ in range(64)]
    lone = [[rng.randrange(3, 128) for _ in range(n)] for n in (1, 15, 16, 33, 70)]
    return [*lone, shared[:], [*shared, 5, 6], [*shared, 9]]


@pytest.fixture(scope="module")
def expected(model_dir: Path, prompts: list[list[int]]) -> list[list[int]]:
    """What transformers continues the prompts with."""
    model = load_reference(model_dir)
    return [reference_greedy(model, prompt, NUM_NEW_TOKENS) for prompt in prompts]


def make(model_dir: Path, kind: Callable[..., Engine] = GpuEngine, **overrides: object) -> Engine:
    settings: dict[str, object] = {
        "model_dir": model_dir,
        "device": DEVICE if kind is GpuEngine else "cpu",
        "dtype": "float32",
        "block_size": 16,
        "num_blocks": ROOMY,
        "max_num_seqs": 10,
        "max_num_batched_tokens": 512,
        "num_threads": 1,
        **overrides,
    }
    return kind(EngineConfig(**settings))  # type: ignore[arg-type]


# Pairs of everything that must not change a token.
CASES = [
    # graphs, chunk, block_size, prefix_cache, preempt
    (True, None, 16, False, False),
    (True, 7, 32, True, False),
    (True, 16, 64, False, True),
    (True, 17, 16, True, True),
    (True, 64, 16, False, False),
    (False, None, 64, True, True),
    (False, 7, 16, False, True),
    (False, 1, 32, True, False),
    (False, 17, 64, False, False),
]


@pytest.mark.parametrize(("graphs", "chunk", "block_size", "prefix_cache", "preempt"), CASES)
def test_greedy_tokens_equal_transformers(
    model_dir: Path,
    prompts: list[list[int]],
    expected: list[list[int]],
    graphs: bool,
    chunk: int | None,
    block_size: int,
    prefix_cache: bool,
    preempt: bool,
) -> None:
    """Whatever the sizes that steps are padded to, and however the work is cut or repeated."""
    engine = make(model_dir, graphs=graphs, block_size=block_size, max_num_batched_tokens=512)
    driver = PlanDriver(
        engine, chunk=chunk, shuffle=True, prefix_cache=prefix_cache, preempt=preempt
    )
    for _ in range(2):
        assert driver.run(prompts, GREEDY) == expected
    assert (driver.num_cached_tokens > 0) == prefix_cache


@dataclass
class Collected:
    """Hold what came of one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)


def schedule(
    engine: Engine, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
) -> tuple[list[Collected], Snapshot]:
    """Let the scheduler drive, with as many steps in flight as the engine takes."""
    scheduler = Scheduler(engine.info, first_come())
    loop = InlineLoop(scheduler, engine, lambda: 0.0)
    for index, (prompt, wanted) in enumerate(zip(prompts, params, strict=True)):
        request = Request(
            request_id=str(index),
            tenant_id="t",
            key_id="k",
            prompt_token_ids=array("i", prompt),
            params=wanted,
            cache_salt=b"t",
            arrival_s=0,
        )
        assert isinstance(scheduler.offer(request, 0), Admit)
    found: defaultdict[str, Collected] = defaultdict(Collected)
    while True:
        for output in loop.turn():
            assert output.error is None
            one = found[output.request_id]
            one.tokens += output.token_ids
            one.logprobs += output.logprobs or ()
            # A prompt's first token has none.
            one.prompt_logprobs += [each for each in output.prompt_logprobs or () if each]
        if loop.idle:
            break
    snapshot = scheduler.snapshot()
    assert snapshot.free_blocks == snapshot.total_blocks
    return [found[str(index)] for index in range(len(prompts))], snapshot


@pytest.mark.parametrize("num_blocks", [ROOMY, TIGHT])
@pytest.mark.parametrize(
    ("graphs", "overlap", "budget"),
    [(True, True, 256), (True, True, 17), (True, False, 7), (False, True, 7), (False, False, 256)],
)
def test_steps_that_overlap_draw_the_same_tokens(
    model_dir: Path,
    prompts: list[list[int]],
    expected: list[list[int]],
    graphs: bool,
    overlap: bool,
    budget: int,
    num_blocks: int,
) -> None:
    """A step that is launched before the one before came back finds its tokens on the device."""
    engine = make(
        model_dir,
        graphs=graphs,
        overlap=overlap,
        max_num_batched_tokens=budget,
        num_blocks=num_blocks,
    )
    assert engine.info.depth == (2 if overlap else 1)
    found, snapshot = schedule(engine, prompts, [GREEDY] * len(prompts))
    assert [one.tokens for one in found] == expected
    assert (snapshot.num_preemptions > 0) == (num_blocks == TIGHT)


def _surface() -> list[SamplingParams]:
    """Ask for everything that a request can, some of it in the same batch."""
    common = {"max_tokens": NUM_NEW_TOKENS}
    spelled = Spelled([range(at, at + 40, 3) for at in range(3, 20)], end=2)
    return [
        SamplingParams(**common, temperature=0.8, seed=1, constraint=spelled),
        SamplingParams(**common, temperature=0.9, top_k=20, top_p=0.9, min_p=0.02, seed=-2),
        SamplingParams(**common, temperature=0.0, repetition_penalty=1.4, presence_penalty=0.3),
        SamplingParams(
            **common, temperature=0.7, seed=3, frequency_penalty=1.5, logprobs=3, constraint=spelled
        ),
        SamplingParams(**common, temperature=0.0, logit_bias=((5, 9.0), (9, -4.0)), logprobs=0),
        SamplingParams(**common, temperature=1.0, seed=4, min_tokens=10, stop_token_ids=(7, 8)),
        SamplingParams(**common, temperature=0.0, prompt_logprobs=2),
        SamplingParams(**common, temperature=0.0, prompt_logprobs=0, logprobs=1),
    ]


@pytest.mark.parametrize("num_blocks", [ROOMY, TIGHT])
@pytest.mark.parametrize("graphs", [True, False])
def test_all_of_sampling_equals_the_cpu_engine(
    model_dir: Path, prompts: list[list[int]], graphs: bool, num_blocks: int
) -> None:
    """Draws, penalties, biases and log-probabilities are those of the engine on a CPU."""
    sizes = {"num_blocks": num_blocks, "max_num_batched_tokens": 50}
    wanted, _ = schedule(make(model_dir, TorchEngine, **sizes), prompts, _surface())
    found, snapshot = schedule(make(model_dir, graphs=graphs, **sizes), prompts, _surface())
    assert [len(found[index].tokens) for index in (0, 3)] == [17, 17]
    assert [one.tokens for one in found] == [one.tokens for one in wanted]
    for ours, theirs in zip(found, wanted, strict=True):
        _assert_close(ours.logprobs, theirs.logprobs)
        _assert_close(ours.prompt_logprobs, theirs.prompt_logprobs)
    assert (snapshot.num_preemptions > 0) == (num_blocks == TIGHT)


def _assert_close(ours: Sequence[TokenLogprobs], theirs: Sequence[TokenLogprobs]) -> None:
    assert [(one.token_id, one.rank) for one in ours] == [
        (one.token_id, one.rank) for one in theirs
    ]
    for one, other in zip(ours, theirs, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [token_id for token_id, _ in one.top] == [token_id for token_id, _ in other.top]


def test_a_constraint_that_is_left_nothing_is_the_rows_own_fault(
    model_dir: Path, prompts: list[list[int]]
) -> None:
    """Where a bias hides the only token that a mask leaves, the row ends as unmet, and alone."""
    engine = make(model_dir)
    unmet = SamplingParams(max_tokens=9, min_tokens=5, constraint=Spelled([[40]], end=2))
    driver = PlanDriver(engine)
    driver.run(prompts[:2], [unmet, GREEDY])
    assert driver.unmet == {0}


def test_slots_forget_their_penalties(model_dir: Path, prompts: list[list[int]]) -> None:
    """Who takes the slot of a penalised request draws as if nobody had been there."""
    engine = make(model_dir, max_num_seqs=2)
    penalised = SamplingParams(
        max_tokens=8, temperature=0.0, ignore_eos=True, repetition_penalty=3.0
    )
    plain = PlanDriver(engine).run(prompts[:2], GREEDY)
    assert PlanDriver(engine).run(prompts[:2], penalised) != [one[:8] for one in plain]
    assert PlanDriver(engine).run(prompts[:2], [penalised, GREEDY])[1] == plain[1]
    assert PlanDriver(engine).run(prompts[:2], GREEDY) == plain


def _with_nan(path: Path) -> Path:
    make_tiny_llama(path, eos_token_id=2)
    file = path / "model.safetensors"
    weights = load_file(file)
    weights["model.embed_tokens.weight"][77] = float("nan")
    # A head of its own: a tied one would make every row's logits NaN.
    save_file(weights, file)
    return path


def test_a_row_that_is_not_finite_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks' next user, and who shared its step, go on; so do their log-probabilities."""
    # A file with a NaN is refused; what overflows in a step alone is not seen before.
    monkeypatch.setattr("engine.models.loader._is_finite", lambda tensor: True)
    engine = make(_with_nan(tmp_path), num_blocks=30)
    clean = [[i, 3, 4] * 7 for i in range(6)]
    wanted = [
        SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True, logprobs=i % 3 or None)
        for i in range(7)
    ]
    alone = PlanDriver(engine).run(clean, wanted[:6])
    for _ in range(3):
        driver = PlanDriver(engine, shuffle=True)
        assert driver.run([*clean, [5, 77, 6] * 6], wanted) == [*alone, []]
        assert driver.failures == {6: "the logits are not finite"}


def test_a_plan_that_contradicts_the_table_fails_before_it_runs(
    model_dir: Path, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """A bug of the planner is told, and a reset makes the engine as good as new."""
    engine = make(model_dir)
    sequence = NewSequence(0, "a", array("i", prompts[3]), 33, 0, (), GREEDY)
    bad = StepPlan(0, admitted=(sequence,), slices=(SequenceSlice(0, 0, 33, (0,), True),))
    with pytest.raises(AssertionError, match="tokens without a block"):
        engine.launch(bad)
    engine.reset()
    old = DecodeRows()
    old.append(0, 3, 1)
    with pytest.raises(AssertionError, match="decode of an old token"):
        engine.launch(StepPlan(1, decodes=old))
    engine.reset()
    assert PlanDriver(engine).run(prompts, GREEDY) == expected


def test_a_slot_changes_hands_while_a_step_is_in_flight(
    model_dir: Path, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """Released and admitted in one plan, with blocks that the step before may still read."""
    engine = make(model_dir)
    first = NewSequence(3, "a", array("i", prompts[1]), 15, 0, (), GREEDY)
    second = NewSequence(3, "b", array("i", prompts[2]), 16, 0, (), GREEDY)
    before = StepPlan(0, admitted=(first,), slices=(SequenceSlice(3, 0, 15, (9,), True),))
    after = StepPlan(
        1, admitted=(second,), slices=(SequenceSlice(3, 0, 16, (9,), True),), released=(3,)
    )
    handles = [engine.launch(before), engine.launch(after)]
    assert list(engine.collect(handles[0]).token_ids) == expected[1][:1]
    result = engine.collect(handles[1])
    assert (list(result.slots), list(result.token_ids)) == ([3], expected[2][:1])
    decodes = DecodeRows()
    decodes.append(3, 16, 5)
    result = engine.collect(engine.launch(StepPlan(2, decodes=decodes)))
    assert list(result.token_ids) == expected[2][1:2]


def test_an_empty_plan_still_applies_its_deltas(model_dir: Path) -> None:
    """A plan without tokens returns no rows, and its admissions count."""
    engine = make(model_dir)
    sequence = NewSequence(0, "a", array("i", [4, 5]), 2, 0, (), GREEDY)
    result = engine.collect(engine.launch(StepPlan(0, admitted=(sequence,))))
    assert (result.step_id, len(result.slots), result.failed) == (0, 0, {})
    plan = StepPlan(1, slices=(SequenceSlice(0, 0, 2, (1,), True),))
    assert list(engine.collect(engine.launch(plan)).slots) == [0]


def test_a_step_without_memory_says_so(
    model_dir: Path, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an allocator raises comes out as EngineOutOfMemory, and a reset mends it."""
    engine = make(model_dir)
    alone = PlanDriver(engine).run(prompts[:2], GREEDY)

    def without_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    with monkeypatch.context() as patch:
        patch.setattr("engine.gpu.program.Program.run_model", without_memory)
        with pytest.raises(EngineOutOfMemory, match="a step of 16 tokens found no memory"):
            PlanDriver(engine).run(prompts[:2], GREEDY)
    engine.reset()
    assert PlanDriver(engine).run(prompts[:2], GREEDY) == alone


def test_a_sequence_that_would_break_its_step_fails_alone(
    model_dir: Path, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """A token beyond the vocabulary never reaches the device."""
    driver = PlanDriver(make(model_dir), shuffle=True)
    assert driver.run([*prompts, [1, 9999]], GREEDY) == [*expected, []]
    assert driver.failures == {len(prompts): "a token id is outside the vocabulary"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"num_blocks": 0}, "raise kv_cache_bytes or num_blocks"),
        ({"num_blocks": 1 << 40}, "cannot be allocated on .*; lower num_blocks"),
        ({"dtype": "int4"}, "dtype 'int4' is not supported"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    model_dir: Path, overrides: dict[str, object], message: str
) -> None:
    """A configuration that cannot work is refused at construction, in one line."""
    with pytest.raises(EngineError, match=message) as caught:
        make(model_dir, **overrides)
    assert "\n" not in str(caught.value)


def test_steps_that_only_pad_touch_nobody(
    model_dir: Path, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """What is run to record graphs, at every size, leaves sequences and blocks as they are."""
    engine = make(model_dir)
    assert isinstance(engine, GpuEngine)
    programs = [program for each in engine._programs._captured for program in each]
    assert len(programs) > 5
    launch = engine.launch

    def launch_among_padding(plan: StepPlan) -> object:
        for program in programs:
            engine._fill_padding(program)
            program.run_model()
            program.run_draw()
        return launch(plan)

    engine.launch = launch_among_padding  # type: ignore[method-assign]
    few = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
    found = PlanDriver(engine, chunk=33).run(prompts, few)
    assert found == [one[:4] for one in expected]
