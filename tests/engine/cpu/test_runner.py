"""TorchEngine: greedy tokens against transformers, sampling, limits, failures."""

from __future__ import annotations

import random
import subprocess
import sys
from array import array
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoints import load_reference, make_tiny_llama, reference_greedy
from engine.config import EngineConfig
from engine.contract import (
    Capability,
    DecodeRows,
    NewSequence,
    SamplingParams,
    SequenceSlice,
    StepPlan,
)
from engine.cpu.runner import TorchEngine
from engine.errors import EngineError, ModelError
from plan_driver import PlanDriver

NUM_NEW_TOKENS = 6


def make_engine(model_dir: Path, **overrides: object) -> TorchEngine:
    settings: dict[str, object] = {
        "model_dir": model_dir,
        "block_size": 16,
        "num_blocks": 128,
        "max_num_seqs": 8,
        "num_threads": 1,
        **overrides,
    }
    return TorchEngine(EngineConfig(**settings))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Prompts around the block sizes' edges; three of them share a long prefix."""
    rng = random.Random(7)
    shared = [rng.randrange(128) for _ in range(64)]
    lone = [[rng.randrange(128) for _ in range(n)] for n in (1, 15, 16, 33)]
    return [*lone, shared[:], [*shared, 5, 6], [*shared, 9]]


@pytest.fixture(scope="module")
def expected(tiny_llama_dir: Path, prompts: list[list[int]]) -> list[list[int]]:
    """What transformers continues the prompts with."""
    model = load_reference(tiny_llama_dir)
    return [reference_greedy(model, prompt, NUM_NEW_TOKENS) for prompt in prompts]


@pytest.mark.parametrize("native", ["off", "auto"])
@pytest.mark.parametrize("preempt", [False, True])
@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("block_size", [16, 32, 64])
@pytest.mark.parametrize("chunk", [1, 7, 16, 17, None])
def test_greedy_tokens_equal_transformers(
    tiny_llama_dir: Path,
    prompts: list[list[int]],
    expected: list[list[int]],
    chunk: int | None,
    block_size: int,
    prefix_cache: bool,
    preempt: bool,
    native: str,
    native_library: bool,
) -> None:
    """Greedy tokens are those of transformers, however the work is cut, shared or repeated."""
    engine = make_engine(tiny_llama_dir, block_size=block_size, native=native)
    assert engine.uses_native == (native == "auto" and native_library)
    driver = PlanDriver(
        engine,
        chunk=chunk,
        shuffle=True,
        prefix_cache=prefix_cache,
        preempt=preempt,
        seed=block_size,
    )
    greedy = SamplingParams(max_tokens=NUM_NEW_TOKENS, temperature=0.0)
    # The second round meets the blocks that the first one filled.
    for _ in range(2):
        assert driver.run(prompts, greedy) == expected
    assert (driver.num_cached_tokens > 0) == prefix_cache


def test_a_large_decode_batch_equals_transformers(
    tiny_llama_dir: Path, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """Fifty-six sequences that decode together give each the tokens that it gets alone."""
    engine = make_engine(tiny_llama_dir, num_blocks=512, max_num_seqs=64)
    greedy = SamplingParams(max_tokens=NUM_NEW_TOKENS, temperature=0.0)
    assert PlanDriver(engine, shuffle=True).run(prompts * 8, greedy) == expected * 8


def test_seeded_draws_do_not_depend_on_the_batch(
    tiny_llama_dir: Path, prompts: list[list[int]]
) -> None:
    """A seed gives the same tokens alone, in a batch, in chunks and across preemptions."""
    engine = make_engine(tiny_llama_dir)
    params = [
        SamplingParams(max_tokens=8, temperature=0.9, top_k=40, top_p=0.95, min_p=0.01, seed=i)
        for i in range(len(prompts))
    ]
    alone = [
        PlanDriver(engine).run([prompt], [p])[0] for prompt, p in zip(prompts, params, strict=True)
    ]
    assert PlanDriver(engine, chunk=7, shuffle=True, preempt=True).run(prompts, params) == alone
    reseeded = [SamplingParams(max_tokens=8, temperature=0.9, seed=99 + i) for i in range(7)]
    assert PlanDriver(engine).run(prompts, reseeded) != alone


def test_each_position_has_noise_of_its_own(tiny_llama_dir: Path) -> None:
    """Where all tokens are as good as equal, a sequence does not repeat one of them."""
    params = SamplingParams(max_tokens=20, temperature=1e6, seed=3)
    tokens = PlanDriver(make_engine(tiny_llama_dir)).run([[1, 2, 3]], params)[0]
    assert len(set(tokens)) > 12


def test_greedy_and_sampled_rows_share_a_batch(
    tiny_llama_dir: Path, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """A greedy row keeps its tokens when its neighbours are sampled."""
    params = [
        SamplingParams(max_tokens=NUM_NEW_TOKENS, temperature=float(i % 2), seed=i)
        for i in range(len(prompts))
    ]
    tokens = PlanDriver(make_engine(tiny_llama_dir)).run(prompts, params)
    assert tokens[::2] == expected[::2]
    assert tokens[1::2] != expected[1::2]


@pytest.fixture
def unseen_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let weights with a NaN be loaded, as what overflows in a step alone is."""
    monkeypatch.setattr("engine.models.loader._is_finite", lambda tensor: True)


@pytest.mark.usefixtures("unseen_nan")
def test_a_row_that_is_not_finite_fails_alone(tmp_path: Path) -> None:
    """A NaN in one sequence ends that sequence; the others, and its blocks' next user, go on."""
    make_tiny_llama(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    weights["model.embed_tokens.weight"][77] = float("nan")
    save_file(weights, file)
    clean = [[i, 3, 4] * 7 for i in range(6)]
    greedy = SamplingParams(max_tokens=NUM_NEW_TOKENS, temperature=0.0)
    engine = make_engine(tmp_path, num_blocks=24)
    alone = PlanDriver(engine).run(clean, greedy)
    driver = PlanDriver(engine, shuffle=True)
    tokens = driver.run([*clean, [5, 77, 6] * 6], greedy)
    assert tokens == [*alone, []]
    assert driver.failures == {6: "the logits are not finite"}
    for _ in range(4):
        assert driver.run(clean, greedy) == alone


@pytest.mark.usefixtures("unseen_nan")
def test_logprobs_stay_with_their_rows_where_one_fails(tmp_path: Path) -> None:
    """Where a row fails, the logprobs of the others still go with their tokens."""
    make_tiny_llama(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    weights["model.embed_tokens.weight"][77] = float("nan")
    save_file(weights, file)
    wanted = (0, None, 2, 1)
    sequences = [
        NewSequence(
            slot,
            str(slot),
            array("i", [3, token_id]),
            2,
            0,
            (),
            SamplingParams(max_tokens=4, temperature=0.0, logprobs=wanted[slot]),
        )
        for slot, token_id in enumerate((9, 10, 77, 11))
    ]
    slices = [SequenceSlice(slot, 0, 2, (slot,), True) for slot in range(4)]
    engine = make_engine(tmp_path)
    result = engine.collect(engine.launch(StepPlan(0, admitted=sequences, slices=slices)))
    assert (list(result.slots), list(result.failed)) == ([0, 1, 3], [2])
    assert result.logprobs is not None
    first, none, last = result.logprobs
    assert none is None
    assert first is not None
    assert last is not None
    assert [first.token_id, last.token_id] == [result.token_ids[0], result.token_ids[2]]
    assert (len(first.top_ids), len(last.top_ids)) == (0, 1)


def test_reset_forgets_everything_but_the_weights(
    tiny_llama_dir: Path, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """After a step that broke off, reset makes the engine as good as new."""
    engine = make_engine(tiny_llama_dir)
    sequence = NewSequence(
        0, "a", array("i", prompts[3]), 33, 0, (), SamplingParams(max_tokens=4, temperature=0.0)
    )
    # One block is too few for 33 tokens: a bug of the planner, caught before any computing.
    bad = StepPlan(0, admitted=(sequence,), slices=(SequenceSlice(0, 0, 33, (0,), True),))
    with pytest.raises(AssertionError, match="tokens without a block"):
        engine.launch(bad)
    engine.reset()
    greedy = SamplingParams(max_tokens=NUM_NEW_TOKENS, temperature=0.0)
    assert PlanDriver(engine).run(prompts, greedy) == expected


def test_a_slot_is_released_and_admitted_in_one_plan(
    tiny_llama_dir: Path, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """Releases are applied before admissions, so a slot changes hands within a plan."""
    engine = make_engine(tiny_llama_dir)
    params = SamplingParams(max_tokens=4, temperature=0.0)
    first = NewSequence(3, "a", array("i", prompts[1]), 15, 0, (), params)
    second = NewSequence(3, "b", array("i", prompts[2]), 16, 0, (), params)
    engine.launch(StepPlan(0, admitted=(first,), slices=(SequenceSlice(3, 0, 15, (9,), True),)))
    plan = StepPlan(
        1, admitted=(second,), slices=(SequenceSlice(3, 0, 16, (2,), True),), released=(3,)
    )
    result = engine.collect(engine.launch(plan))
    assert (list(result.slots), list(result.token_ids)) == ([3], expected[2][:1])
    decodes = DecodeRows()
    decodes.append(3, 16, 5)
    result = engine.collect(engine.launch(StepPlan(2, decodes=decodes)))
    assert list(result.token_ids) == expected[2][1:2]


def test_an_empty_plan_still_applies_its_deltas(tiny_llama_dir: Path) -> None:
    """A plan without tokens returns no rows, and its releases and admissions count."""
    engine = make_engine(tiny_llama_dir)
    sequence = NewSequence(
        0, "a", array("i", [4, 5]), 2, 0, (), SamplingParams(max_tokens=4, temperature=0.0)
    )
    result = engine.collect(engine.launch(StepPlan(0, admitted=(sequence,))))
    assert (result.step_id, len(result.slots), result.failed) == (0, 0, {})
    plan = StepPlan(1, slices=(SequenceSlice(0, 0, 2, (1,), True),))
    assert list(engine.collect(engine.launch(plan)).slots) == [0]


def test_info_states_the_limits(tiny_llama_dir: Path) -> None:
    """The info is made of the model's and the configuration's limits, the smaller of each."""
    info = make_engine(tiny_llama_dir, max_model_len=100).info
    assert (info.model_type, info.vocab_size, info.max_model_len) == ("llama", 128, 100)
    assert (info.num_blocks, info.block_size, info.max_num_seqs) == (128, 16, 8)
    assert (info.eos_token_ids, info.depth, info.device) == (frozenset({2}), 1, "cpu")
    assert info.dtype == "float32"
    assert info.capabilities == {
        Capability.LOGPROBS,
        Capability.PROMPT_LOGPROBS,
        Capability.PENALTIES,
        Capability.LOGIT_BIAS,
        Capability.MIN_TOKENS,
        Capability.GRAMMAR,
    }
    # What fits into 256 MiB of float32 logits.
    assert info.max_num_prompt_logprobs == (1 << 26) // 128
    assert make_engine(tiny_llama_dir).info.why_shorter is None
    assert info.why_shorter == "max_model_len is set to 100"


def test_a_context_that_the_cache_cuts_says_so(tiny_llama_dir: Path) -> None:
    """What nobody asked for is as much as there is room for; what somebody asked for is kept."""
    info = make_engine(tiny_llama_dir, num_blocks=5).info
    assert (info.max_model_len, info.model_max_len) == (80, 256)
    assert info.why_shorter == (
        "a KV cache of 61,440 bytes holds 80 tokens; 256 need num_blocks 16"
    )
    assert make_engine(tiny_llama_dir, num_blocks=5, max_model_len=80).info.max_model_len == 80


def test_kv_blocks_follow_from_bytes(tiny_llama_dir: Path) -> None:
    """Without num_blocks the pool is what the bytes buy, up to what could ever be used."""
    block_bytes = 2 * 3 * 2 * 16 * 16 * 4  # K and V, layers, KV heads, head_dim, tokens, float32
    bought = make_engine(tiny_llama_dir, num_blocks=None, kv_cache_bytes=5 * block_bytes + 1)
    assert (bought.info.num_blocks, bought.info.max_model_len) == (5, 80)
    capped = make_engine(tiny_llama_dir, num_blocks=None, kv_cache_bytes=1 << 30)
    assert capped.info.num_blocks == 8 * 256 // 16


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"device": "warp-drive"}, "no device is called 'warp-drive'"),
        ({"device": "meta"}, "device 'meta' is not supported"),
        ({"dtype": "int4"}, "dtype 'int4' is not supported"),
        ({"num_blocks": 0}, "raise kv_cache_bytes or num_blocks"),
        ({"num_blocks": None, "kv_cache_bytes": 100}, "raise kv_cache_bytes or num_blocks"),
        ({"num_blocks": 1 << 40}, "cannot be allocated on cpu; lower num_blocks"),
        ({"max_model_len": -1}, "max_model_len must be at least 1"),
        ({"max_model_len": 257}, "max_model_len 257 is beyond the 256 positions of this model"),
        (
            {"max_model_len": 200, "num_blocks": None, "kv_cache_bytes": 61_440},
            "max_model_len 200 needs 159,744 bytes for its KV cache, and a KV cache of 61,440 "
            "bytes holds 80 tokens: set kv_cache_bytes 159744 at least, or max_model_len 80",
        ),
        ({"max_model_len": 81, "num_blocks": 5}, "set num_blocks 6 at least"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    tiny_llama_dir: Path, overrides: dict[str, object], message: str
) -> None:
    """A configuration that cannot work is refused at construction, in one line."""
    with pytest.raises(EngineError, match=message) as caught:
        make_engine(tiny_llama_dir, **overrides)
    assert "\n" not in str(caught.value)


def test_a_missing_gpu_is_named(tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for CUDA where there is none says so."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(EngineError, match="no CUDA device"):
        make_engine(tiny_llama_dir, device="cuda")


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    """A directory that is not there is a ModelError that names it."""
    with pytest.raises(ModelError, match="nowhere: no such directory"):
        make_engine(tmp_path / "nowhere")


def test_dummy_weights_need_only_a_config(tiny_llama_dir: Path, tmp_path: Path) -> None:
    """Random weights of a config's shape run without weight files, the same for a seed."""
    (tmp_path / "config.json").write_bytes((tiny_llama_dir / "config.json").read_bytes())
    greedy = SamplingParams(max_tokens=8, temperature=0.0)
    prompt = [[3, 1, 4, 1, 5]]
    runs = [
        PlanDriver(make_engine(tmp_path, load_format="dummy", seed=seed)).run(prompt, greedy)
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1] != runs[2]


def test_bfloat16_runs_close_to_float32(tiny_llama_dir: Path, prompts: list[list[int]]) -> None:
    """In bfloat16 the engine runs the same plans, and most first tokens agree with float32's."""
    greedy = SamplingParams(max_tokens=1, temperature=0.0)
    tokens = {
        dtype: PlanDriver(make_engine(tiny_llama_dir, dtype=dtype)).run(prompts, greedy)
        for dtype in ("float32", "bfloat16")
    }
    agreeing = sum(map(list.__eq__, tokens["float32"], tokens["bfloat16"]))
    assert agreeing >= 5


def test_openmp_is_told_to_wait_quietly() -> None:
    """Importing the runner sets the wait policy before torch is loaded, unless it is set."""
    code = (
        "import sys, os; os.environ.pop('OMP_WAIT_POLICY', None); import engine.cpu.runner; "
        "print(os.environ['OMP_WAIT_POLICY'])"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "PASSIVE"
