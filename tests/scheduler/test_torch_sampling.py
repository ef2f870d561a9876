"""What a request asks of sampling, through scheduler and real engine, against transformers.

Each request runs with others under every kind of trouble: chunks, prefix hits, preemptions.
"""

from __future__ import annotations

import random
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from checkpoints import load_reference, make_tiny_llama, reference_logits
from engine.config import EngineConfig
from engine.contract import SamplingParams, StepPlan, TokenLogprobs
from engine.cpu.runner import TorchEngine
from engine.models import loader
from fake_constraint import Spelled
from scheduler.config import first_come
from scheduler.core import Scheduler
from scheduler.request import Admit, FinishReason, Request
from scheduler.state import Snapshot

BLOCK_SIZE = 16
MAX_TOKENS = 24
# Two of the vocabulary's 128, so that a random model soon draws one.
EOS = [5, 2]

# budget, blocks, cache: room for all at once, and hardly room for one in chunks of 7.
ROOMY = (2048, 200, True)
TIGHT = (7, 10, True)
TIGHT_UNCACHED = (17, 10, False)
SETTINGS = pytest.mark.parametrize("setting", [ROOMY, TIGHT, TIGHT_UNCACHED], ids=str)


@dataclass
class Collected:
    """Keep what came of one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[tuple[TokenLogprobs | None, ...]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    lens_at_admission: list[int] = field(default_factory=list)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    make_tiny_llama(path, eos_token_id=EOS)
    return path


@pytest.fixture(scope="module")
def reference(model_dir: Path) -> Any:
    return load_reference(model_dir)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Prompts of many lengths, three of them with a common beginning of two blocks."""
    draw = random.Random(3)
    shared = [draw.randrange(3, 128) for _ in range(37)]
    own = [[draw.randrange(3, 128) for _ in range(length)] for length in (1, 2, 16, 33, 64)]
    return [*own, shared, [*shared, 9], [*shared, 10, 11]]


def run(
    model_dir: Path,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    setting: tuple[int, int, bool] = ROOMY,
    granted: int | None = None,
) -> tuple[list[Collected], Snapshot]:
    """Offer all requests at once and collect what comes of each.

    With `granted` each pauses after so many tokens, until nothing else is left to compute.
    """
    budget, num_blocks, prefix_caching = setting
    engine = TorchEngine(
        EngineConfig(
            model_dir=model_dir,
            block_size=BLOCK_SIZE,
            num_blocks=num_blocks,
            max_num_seqs=8,
            max_num_batched_tokens=budget,
            num_threads=1,
        )
    )
    scheduler = Scheduler(engine.info, first_come(prefix_caching=prefix_caching))
    for index, (prompt, wanted) in enumerate(zip(prompts, params, strict=True)):
        request = Request(
            request_id=str(index),
            tenant_id="t",
            key_id="k",
            prompt_token_ids=array("i", prompt),
            params=wanted,
            cache_salt=b"t",
            arrival_s=0,
            granted_tokens=granted,
        )
        assert isinstance(scheduler.offer(request, 0), Admit)
    found: defaultdict[str, Collected] = defaultdict(Collected)

    def planned() -> StepPlan | None:
        """Plan a step; where there is none, those that wait for it are granted as much again."""
        plan = scheduler.plan(0)
        if plan is not None or granted is None:
            return plan
        for index in range(len(prompts)):
            if found[str(index)].finish_reason is None:
                scheduler.extend(str(index), len(found[str(index)].tokens) + granted, 0)
        return scheduler.plan(0)

    while (plan := planned()) is not None:
        for new in plan.admitted:
            found[new.request_id].lens_at_admission.append(len(new.token_ids))
        for output in scheduler.report(engine.collect(engine.launch(plan)), 0):
            collected = found[output.request_id]
            collected.tokens += output.token_ids
            if output.logprobs is not None:
                collected.logprobs += output.logprobs
            if output.prompt_logprobs is not None:
                collected.prompt_logprobs.append(output.prompt_logprobs)
            collected.finish_reason = output.finish_reason
    engine.close()
    return [found[str(index)] for index in range(len(prompts))], scheduler.snapshot()


def check_trouble(setting: tuple[int, int, bool], snapshot: Snapshot) -> None:
    """Check that a setting that is meant to meet trouble did meet it."""
    assert (snapshot.num_preemptions > 0) == (setting is not ROOMY)


class CountPenalties(LogitsProcessor):
    """Penalise output tokens by count and by presence; transformers has no such processor."""

    def __init__(self, num_prompt_tokens: int, frequency: float, presence: float) -> None:
        self.num_prompt_tokens = num_prompt_tokens
        self.frequency = frequency
        self.presence = presence

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        counts = torch.bincount(input_ids[0, self.num_prompt_tokens :], minlength=scores.shape[1])
        return scores - self.frequency * counts - self.presence * (counts > 0)


def reference_run(model: Any, prompt: list[int], params: SamplingParams) -> list[int]:
    """Continue greedily with transformers' processors, the end token included."""
    processors = LogitsProcessorList()
    if params.logit_bias:
        processors.append(SequenceBiasLogitsProcessor([[[t], b] for t, b in params.logit_bias]))
    if params.min_tokens:
        ends = [*params.stop_token_ids, *([] if params.ignore_eos else EOS)]
        processors.append(MinNewTokensLengthLogitsProcessor(len(prompt), params.min_tokens, ends))
    if params.repetition_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    processors.append(
        CountPenalties(len(prompt), params.frequency_penalty, params.presence_penalty)
    )
    tokens = list(prompt)
    ends = {*params.stop_token_ids, *(() if params.ignore_eos else EOS)}
    while len(tokens) < len(prompt) + params.max_tokens:
        logits = reference_logits(model, tokens)[-1:]
        tokens.append(int(processors(torch.tensor([tokens]), logits).argmax()))
        if tokens[-1] in ends:
            break
    return tokens[len(prompt) :]


def greedy(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": MAX_TOKENS, "temperature": 0.0, **changes})


@SETTINGS
def test_edited_greedy_tokens_equal_transformers(
    model_dir: Path, reference: Any, prompts: list[list[int]], setting: tuple[int, int, bool]
) -> None:
    """Penalties, biases and min_tokens give the tokens that transformers' processors give."""
    params = [
        greedy(ignore_eos=True, repetition_penalty=1.8),
        greedy(ignore_eos=True, frequency_penalty=2.0),
        greedy(ignore_eos=True, presence_penalty=1.5, repetition_penalty=0.9),
        greedy(min_tokens=9, stop_token_ids=(70, 71, 72)),
        greedy(ignore_eos=True, logit_bias=tuple((t, 6.0) for t in range(20, 60))),
        greedy(ignore_eos=True),
        greedy(ignore_eos=True, repetition_penalty=1.2, frequency_penalty=0.7),
        greedy(min_tokens=MAX_TOKENS, presence_penalty=2.0, logit_bias=((2, 50.0), (9, -3.0))),
    ]
    found, snapshot = run(model_dir, prompts, params, setting)
    check_trouble(setting, snapshot)
    for prompt, wanted, collected in zip(prompts, params, found, strict=True):
        expected = reference_run(reference, prompt, wanted)
        ended = len(expected) < MAX_TOKENS
        assert collected.tokens == (expected[:-1] if ended else expected)
        plain = reference_run(reference, prompt, greedy(ignore_eos=True))
        # What was asked for did change something.
        assert (expected == plain) == (wanted == greedy(ignore_eos=True))


@SETTINGS
def test_seeded_draws_with_penalties_do_not_depend_on_the_batch(
    model_dir: Path, prompts: list[list[int]], setting: tuple[int, int, bool]
) -> None:
    """A seed with penalties and biases gives the tokens that it gives alone, whatever happens."""
    params = [
        SamplingParams(
            max_tokens=MAX_TOKENS,
            temperature=1.5,
            top_p=0.98,
            seed=index,
            ignore_eos=True,
            repetition_penalty=1.0 + 0.2 * (index % 3),
            frequency_penalty=0.5 * (index % 2),
            presence_penalty=-0.5 * (index % 4),
            logit_bias=((index, 2.0), (40, -1.0)),
        )
        for index in range(len(prompts))
    ]
    alone = [
        run(model_dir, [prompt], [p])[0][0].tokens
        for prompt, p in zip(prompts, params, strict=True)
    ]
    found, snapshot = run(model_dir, prompts, params, setting)
    check_trouble(setting, snapshot)
    assert [collected.tokens for collected in found] == alone


@SETTINGS
def test_constrained_draws_do_not_depend_on_the_batch(
    model_dir: Path, prompts: list[list[int]], setting: tuple[int, int, bool]
) -> None:
    """What a constraint leaves is drawn the same, whatever is cut, sent back, paused or beside."""
    places = [range(at, at + 50, 3) for at in range(6, 6 + MAX_TOKENS)]
    # With its end it has as many tokens as there may be, or one more.
    spelled = [Spelled(places[: MAX_TOKENS - 1 + index % 2], end=5) for index in range(8)]
    params = [
        SamplingParams(max_tokens=MAX_TOKENS, seed=index, constraint=wanted, logprobs=0)
        for index, wanted in enumerate(spelled)
    ]
    alone = [
        run(model_dir, [prompt], [p])[0][0].tokens
        for prompt, p in zip(prompts, params, strict=True)
    ]
    found, snapshot = run(model_dir, prompts, params, setting)
    check_trouble(setting, snapshot)
    assert [collected.tokens for collected in found] == alone
    paused, _ = run(model_dir, prompts, params, setting, granted=5)
    assert [collected.tokens for collected in paused] == alone
    for index, collected in enumerate(found):
        ends = (FinishReason.STOP, FinishReason.LENGTH)
        assert collected.finish_reason is ends[index % 2]
        assert all(t in place for t, place in zip(collected.tokens, places, strict=False))


@SETTINGS
def test_logprobs_equal_transformers(
    model_dir: Path, reference: Any, prompts: list[list[int]], setting: tuple[int, int, bool]
) -> None:
    """Logprobs of drawn tokens are the log-softmax of transformers' logits, penalties or not."""
    params = [
        SamplingParams(
            max_tokens=MAX_TOKENS,
            temperature=float(index % 3),
            seed=index,
            ignore_eos=True,
            logprobs=(None, 0, 1, 5, 20)[index % 5],
            repetition_penalty=1.5 if index % 2 else 1.0,
            logit_bias=((7, 3.0),) if index % 4 == 3 else (),
        )
        for index in range(len(prompts))
    ]
    found, snapshot = run(model_dir, prompts, params, setting)
    check_trouble(setting, snapshot)
    for prompt, wanted, collected in zip(prompts, params, found, strict=True):
        if wanted.logprobs is None:
            assert collected.logprobs == []
            continue
        assert [entry.token_id for entry in collected.logprobs] == collected.tokens
        logits = reference_logits(reference, [*prompt, *collected.tokens])[len(prompt) - 1 : -1]
        check_scores(collected.logprobs, logits, wanted.logprobs)


@SETTINGS
@pytest.mark.parametrize("max_prompt_logits", [128 * 3, 1 << 26], ids=str)
def test_prompt_logprobs_equal_transformers(
    model_dir: Path,
    reference: Any,
    prompts: list[list[int]],
    setting: tuple[int, int, bool],
    max_prompt_logits: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A prompt's logprobs come once and whole, whatever the chunks, the hits, the preemptions."""
    monkeypatch.setattr("engine.sizes._MAX_PROMPT_LOGITS", max_prompt_logits)
    params = [
        greedy(ignore_eos=True, prompt_logprobs=None if index == 5 else index)
        for index in range(len(prompts))
    ]
    found, _ = run(model_dir, prompts, params, setting)
    for prompt, wanted, collected in zip(prompts, params, found, strict=True):
        assert collected.tokens == reference_run(reference, prompt, wanted)
        if wanted.prompt_logprobs is None:
            assert collected.prompt_logprobs == []
            continue
        check_prompt_scores(collected, reference, prompt, wanted.prompt_logprobs)


def test_prompt_logprobs_survive_preemption(model_dir: Path, reference: Any) -> None:
    """A request sent back while its prompt is scored, and once it was, reports each score once."""
    draw = random.Random(5)
    # Four short prompts decode into the blocks of a long one that is computed beside them.
    prompts = [[draw.randrange(3, 128) for _ in range(n)] for n in (1, 1, 2, 2, 64)]
    params = [greedy(ignore_eos=True)] * 4 + [greedy(ignore_eos=True, prompt_logprobs=4)]
    sent_back_after = []
    for budget in (7, 30):
        found, _ = run(model_dir, prompts, params, (budget, 10, True))
        for prompt, wanted, collected in zip(prompts, params, found, strict=True):
            assert collected.tokens == reference_run(reference, prompt, wanted)
        check_prompt_scores(found[-1], reference, prompts[-1], 4)
        sent_back_after += [n - 64 for n in found[-1].lens_at_admission[1:]]
    assert min(sent_back_after) == 0
    assert max(sent_back_after) > 0


def test_prompt_logprobs_take_no_prefix_hit(model_dir: Path, reference: Any) -> None:
    """Though another has computed the same prompt, all of it is scored."""
    prompt = [[i % 100 + 3 for i in range(70)]] * 3
    params = [greedy(max_tokens=1), greedy(max_tokens=1, prompt_logprobs=0), greedy(max_tokens=1)]
    found, snapshot = run(model_dir, prompt, params, (70, 40, True))
    assert snapshot.num_cached_tokens == 64
    check_prompt_scores(found[1], reference, prompt[1], 0)


def check_prompt_scores(
    collected: Collected, reference: Any, prompt: list[int], num_top: int
) -> None:
    """Check that a prompt was scored once, and right."""
    [(first, *others)] = collected.prompt_logprobs
    assert first is None
    entries = [entry for entry in others if entry is not None]
    assert [entry.token_id for entry in entries] == prompt[1:]
    check_scores(entries, reference_logits(reference, prompt)[:-1], num_top)


def check_scores(entries: Sequence[TokenLogprobs], logits: torch.Tensor, num_top: int) -> None:
    """Compare scored tokens with the logits they were drawn from, [num_tokens, vocab_size]."""
    wanted = torch.log_softmax(logits, -1)
    assert len(entries) == len(wanted)
    for entry, row in zip(entries, wanted, strict=True):
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-4)
        assert entry.rank == int((row > row[entry.token_id]).sum()) + 1
        assert len(entry.top_ids) == num_top
        largest = row.topk(num_top).values.tolist()
        assert [logprob for _, logprob in entry.top] == pytest.approx(largest, abs=1e-4)
        for token_id, logprob in entry.top:
            assert logprob == pytest.approx(float(row[token_id]), abs=1e-4)


def test_an_end_token_has_a_logprob(
    model_dir: Path, reference: Any, prompts: list[list[int]]
) -> None:
    """The logprob of the end token follows those of the tokens that are given."""
    prompt = prompts[3]
    plain = reference_run(reference, prompt, greedy(ignore_eos=True))
    end = next(i for i in range(3, MAX_TOKENS) if plain[i] not in plain[:i])
    params = greedy(ignore_eos=True, stop_token_ids=(plain[end],), logprobs=2)
    [collected], _ = run(model_dir, [prompt], [params])
    assert collected.finish_reason is FinishReason.STOP
    assert collected.tokens == plain[:end]
    assert [entry.token_id for entry in collected.logprobs] == plain[: end + 1]


def test_a_prompt_of_one_token_has_nothing_to_score(model_dir: Path) -> None:
    """The only token of a prompt has no logprob, and that is reported once."""
    [collected], _ = run(model_dir, [[7]], [greedy(prompt_logprobs=3, ignore_eos=True)])
    assert [list(scored) for scored in collected.prompt_logprobs] == [[None]]


def test_a_prompt_that_cannot_be_scored_fails_its_request_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A NaN among the logits of a prompt ends that request; the others go on."""
    # Numbers that grow too large on the way do the same to weights that are all finite.
    monkeypatch.setattr(loader, "_is_finite", lambda tensor: True)
    make_tiny_llama(tmp_path, eos_token_id=None)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    weights["model.embed_tokens.weight"][77] = float("nan")
    save_file(weights, file)
    poisoned = [3, 77, *[4] * 30]
    params = [greedy(prompt_logprobs=1, logprobs=1)] * 2
    clean = [[8] * 20, [9] * 20]
    alone, _ = run(tmp_path, clean, params, (7, 40, True))
    found, _ = run(tmp_path, [clean[0], poisoned, clean[1]], [*params, params[0]], (7, 40, True))
    assert [found[0].tokens, found[2].tokens] == [collected.tokens for collected in alone]
    assert found[1].finish_reason is FinishReason.ERROR
    assert (found[1].tokens, found[1].prompt_logprobs) == ([], [])
