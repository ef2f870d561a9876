"""Measures what steps cost over a grid of decodes, chunks and contexts, and fits a profile.

Plans are made by hand. First a library of contexts is computed; then every point of the grid
admits its rows with prefixes from that library, as prefix hits, so that a step of any shape is a
matter of one plan. What counts is the engine's own time for the step, which is also what the
scheduler learns from: on a GPU the device's, with the next step launched before, as in serving.
The grid is run over and over, so that a slow second does not fall on all the measurements of one
point.
"""

from __future__ import annotations

import random
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from statistics import median

from engine.contract import (
    DecodeRows,
    Engine,
    EngineInfo,
    NewSequence,
    SamplingParams,
    SequenceSlice,
    StepPlan,
)
from engine.step_cost import StepFeatures, attended_tokens
from scheduler.bench.drive import BenchError
from scheduler.bench.part import Part, Row
from scheduler.bench.report import at_most, machine
from scheduler.bench.setup import Bench, describe_device, run_conditions
from scheduler.learn.step_fit import Fit, Sample, fit, save_profile

_MAPE_GOAL = 0.10
_SPLITS = (128, 256, 512, 1024)
_DECODES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_DECODE_CONTEXTS = (64, 256, 512, 896, 2048)
_CHUNKS = (16, 64, 128, 256, 512, 1024, 2048)
_PREFILL_CONTEXTS = (0, 256, 512, 2048)
# Rows share contexts beyond this: to compute the library is part of every run.
_LIBRARY_TOKENS = 1 << 16
# The first step of a point admits its rows and finds the caches cold.
_NUM_WARM_STEPS, _NUM_STEPS = 1, 2
_PARAMS = SamplingParams(max_tokens=1 << 20, temperature=0.0, ignore_eos=True)


def step_sweep(bench: Bench) -> Iterator[Part]:
    """Fit what steps cost, and tell how far off the fit is on points that it did not see.

    Writes the profile where the options say so, after each round anew. Raises: `BenchError`: the
    engine is too small for the grid.
    """
    bench.engine.reset()
    path = bench.options.profile_out
    name = path.stem if path is not None else f"{bench.slug}-{bench.options.device}"
    for num_rounds, samples in enumerate(
        measure_grid(bench.engine, rounds=bench.options.rounds), start=1
    ):
        try:
            found = fit(samples, name=name, split_num_tokens=_SPLITS)
        except ValueError as exc:
            raise BenchError(f"the engine is too small to sweep: {exc}") from exc
        if path is not None:
            save_profile(found.cost, path, source=_source(bench, found, len(samples), num_rounds))
        yield _describe(bench, found, samples)


def measure_grid(engine: Engine, *, rounds: int) -> Iterator[list[Sample]]:
    """Measure every point of the grid that the engine has room for, and yield all after each round.

    The first round warms up.
    """
    stage = _Stage(engine)
    measured_s: dict[_Point, list[float]] = {point: [] for point in _grid(stage, engine.info)}
    for number in range(rounds + 1):
        for point, times_s in measured_s.items():
            found_s = stage.measure(point)
            if number:
                times_s += found_s
        if number:
            samples = [(point.features, median(times_s)) for point, times_s in measured_s.items()]
            # Neighbours on the grid come into different folds, and all regions into each.
            random.Random(0).shuffle(samples)
            yield samples


@dataclass(frozen=True, slots=True)
class _Point:
    """Describe a step: `chunks` are the prompt tokens of each prefill, contexts those of a row."""

    num_decodes: int = 0
    decode_context: int = 0
    chunks: tuple[int, ...] = ()
    prefill_context: int = 0

    @property
    def features(self) -> StepFeatures:
        """Give what the time depends on; decodes are halfway through the steps that count."""
        context = self.decode_context + _NUM_WARM_STEPS + (_NUM_STEPS - 1) // 2
        return StepFeatures(
            num_prefill_tokens=sum(self.chunks),
            num_decode_tokens=self.num_decodes,
            prefill_context_tokens=self.prefill_context * len(self.chunks),
            decode_context_tokens=context * self.num_decodes,
            prefill_attended_tokens=sum(
                attended_tokens(self.prefill_context, num_tokens) for num_tokens in self.chunks
            ),
        )


class _Stage:
    """Run steps of any shape on an engine, on contexts that are computed at the start."""

    def __init__(self, engine: Engine) -> None:
        info = self._info = engine.info
        self._engine = engine
        self._draw = random.Random(11)
        self._step_id = -1
        self._held_slots: tuple[int, ...] = ()
        self._in_flight: deque[object] = deque()
        self._times_s: list[float] = []
        # Each row of a step computes into blocks of its own.
        num_own = 2 * info.max_num_seqs + -(-info.max_num_batched_tokens // info.block_size)
        num_library = info.num_blocks - num_own
        # What decodes from there must fit as well.
        longest = info.max_model_len - 1 - _NUM_WARM_STEPS - _NUM_STEPS
        num_each = min(_DECODE_CONTEXTS[-1], longest) // info.block_size
        if num_each < 1 or num_library < num_each:
            raise BenchError("the engine's KV cache is too small to sweep")
        self._own_blocks = range(num_library, info.num_blocks)
        self.longest_context = num_each * info.block_size
        # No step has more rows than this, so that no more contexts are read.
        most_rows = min(info.max_num_seqs, info.max_num_batched_tokens)
        num_contexts = min(
            num_library // num_each, most_rows, -(-_LIBRARY_TOKENS // self.longest_context)
        )
        self._library = [
            self._compute_context(range(i * num_each, (i + 1) * num_each))
            for i in range(num_contexts)
        ]

    def measure(self, point: _Point) -> list[float]:
        """Return the seconds of the steps that count at a point."""
        own_blocks = iter(self._own_blocks)
        decoding = [self._row(slot, point.decode_context, [7]) for slot in range(point.num_decodes)]
        decode_blocks = [next(own_blocks) for _ in decoding]
        prefilling, slices = self._prefills(point, own_blocks)
        for number in range(_NUM_WARM_STEPS + _NUM_STEPS):
            decodes = DecodeRows()
            for row, block_id in zip(decoding, decode_blocks, strict=True):
                decodes.append(row.slot, row.num_computed + number, -1 if number else block_id)
            # Decodes go on, a prefill is a new one in every step.
            admitted = prefilling if number else decoding + prefilling
            self._launch(decodes, slices, admitted)
            self._held_slots = tuple(row.slot for row in prefilling)
        self._held_slots += tuple(row.slot for row in decoding)
        return self._collect()[_NUM_WARM_STEPS:]

    def _prefills(
        self, point: _Point, own_blocks: Iterator[int]
    ) -> tuple[list[NewSequence], list[SequenceSlice]]:
        rows, slices = [], []
        for slot, num_tokens in enumerate(point.chunks, start=point.num_decodes):
            rows.append(self._row(slot, point.prefill_context, [7] * num_tokens))
            num_blocks = -(-num_tokens // self._info.block_size)
            new_blocks = [next(own_blocks) for _ in range(num_blocks)]
            slices.append(
                SequenceSlice(slot, point.prefill_context, num_tokens, new_blocks, sample=True)
            )
        return rows, slices

    def _row(self, slot: int, context: int, own_tokens: list[int]) -> NewSequence:
        """Begin a sequence with `context` tokens of the library, as a hit of the prefix cache."""
        token_ids, block_ids = self._library[slot % len(self._library)]
        return NewSequence(
            slot=slot,
            request_id=f"{self._step_id}-{slot}",
            token_ids=token_ids[:context] + array("i", own_tokens),
            num_prompt_tokens=context + len(own_tokens),
            num_computed=context,
            block_ids=block_ids[: context // self._info.block_size],
            params=_PARAMS,
        )

    def _compute_context(self, block_ids: range) -> tuple[array[int], range]:
        token_ids = array(
            "i",
            (self._draw.randrange(2, self._info.vocab_size) for _ in range(self.longest_context)),
        )
        admitted = [NewSequence(0, "context", token_ids, len(token_ids), 0, (), _PARAMS)]
        # A step's budget may end in the middle of a block.
        chunk = self._info.max_num_batched_tokens
        for start in range(0, len(token_ids), chunk):
            end = min(start + chunk, len(token_ids))
            new_blocks = block_ids[
                -(-start // self._info.block_size) : -(-end // self._info.block_size)
            ]
            piece = SequenceSlice(0, start, end - start, new_blocks, end == len(token_ids))
            self._launch(DecodeRows(), [piece], admitted)
            admitted = []
        self._held_slots = (0,)
        self._collect()
        return token_ids, block_ids

    def _launch(
        self, decodes: DecodeRows, slices: Sequence[SequenceSlice], admitted: Sequence[NewSequence]
    ) -> None:
        """Launch a step as a scheduler does: before the last came back, where it can."""
        self._step_id += 1
        plan = StepPlan(
            self._step_id, decodes, slices, admitted=admitted, released=self._held_slots
        )
        self._held_slots = ()
        self._in_flight.append(self._engine.launch(plan))
        if len(self._in_flight) == self._info.depth:
            self._collect_oldest()

    def _collect(self) -> list[float]:
        """Wait for all steps; return the seconds of each since the last call, in order."""
        while self._in_flight:
            self._collect_oldest()
        times_s, self._times_s = self._times_s, []
        return times_s

    def _collect_oldest(self) -> None:
        result = self._engine.collect(self._in_flight.popleft())
        if result.failed:
            raise BenchError(f"a row failed: {next(iter(result.failed.values()))}")
        self._times_s.append(result.step_s)


def _grid(stage: _Stage, info: EngineInfo) -> list[_Point]:
    """List the steps that the engine has room for: decodes, prefills, and both together."""
    decodes = [(0, 0), *product(_DECODES, _DECODE_CONTEXTS)]
    chunks = [(0, 0), *product(_CHUNKS, _PREFILL_CONTEXTS)]
    points = []
    for (num_decodes, decode_context), (chunk, prefill_context) in product(decodes, chunks):
        # Alone all of them, together every fourth of each.
        together = num_decodes and chunk
        if together and not (num_decodes in _DECODES[::3] and chunk in _CHUNKS[1::2]):
            continue
        if max(decode_context, prefill_context) > stage.longest_context:
            continue
        pieces = _cut(chunk, info.max_model_len - 1 - prefill_context)
        fits = num_decodes + chunk <= info.max_num_batched_tokens
        if fits and 0 < num_decodes + len(pieces) <= info.max_num_seqs:
            points.append(_Point(num_decodes, decode_context, pieces, prefill_context))
    return points


def _cut(num_tokens: int, longest: int) -> tuple[int, ...]:
    """Cut prompt tokens into those of several sequences, none longer than a context has room."""
    whole, rest = divmod(num_tokens, longest)
    return (longest,) * whole + ((rest,) if rest else ())


def _source(bench: Bench, found: Fit, num_points: int, num_rounds: int) -> str:
    conditions = run_conditions()
    threads = conditions["torch_threads"]
    compiled = "with" if bench.uses_native else "without"
    _, described = describe_device(bench.options.device)
    device = described.get("gpu", machine()["cpu"])
    return (
        f"Measured: {bench.slug} in {bench.info.dtype} on {device}, torch threads: {threads}, "
        f"{compiled} the compiled operators; fitted to {num_points} steps, rounds: {num_rounds}, "
        f"mean error on steps held out {found.held_out_mape:.1%}"
    )


def _describe(bench: Bench, found: Fit, samples: Sequence[Sample]) -> Part:
    cost = found.cost
    part = Part(
        {
            f"step_sweep_{bench.subject}_held_out_mape": at_most(
                found.held_out_mape, _MAPE_GOAL, "share"
            )
        },
        {
            "cost": asdict(cost),
            "steps": [{**asdict(step), "step_ms": step_s * 1000} for step, step_s in samples],
        },
    )
    regimes = [("all steps", cost.small)]
    if cost.small != cost.large:
        split = cost.split_num_tokens
        regimes = [(f"up to {split} tokens", cost.small), (f"above {split}", cost.large)]
    for case, line in regimes:
        note = (
            f"{line.intercept_s * 1000:.2f} ms + {line.per_prefill_token_s * 1e6:.1f} µs a prompt "
            f"token + {line.per_decode_token_s * 1e6:.1f} µs a decode"
        )
        part.rows.append(Row(case, None, note=note))
    return part
