"""What masks of a JSON schema cost: tokens/s of 32 rows that have one, beside 32 that have none.

In this process, on the CPU engine, with the shape of 30 million parameters and random weights, and
with the demo model, whose steps are the shortest that there are; the two take turns, and the median
of the rounds' ratios is stated. The tokens are the demo model's, so of the 32,000 logits of a row
of the first all but some hundreds are hidden. Threads are switched as in the gateway.
"""

from __future__ import annotations

import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from engine.config import EngineConfig
from engine.contract import Engine, SamplingParams, TokenConstraint
from engine.demo import MODEL_DIR
from engine.open import open_engine
from engine.text import Tokenizer
from gateway.services.constraints import json_spec
from gateway.services.constraints.matching import (
    GrammarConstraint,
    compile_grammar,
    read_vocabulary,
)
from scheduler.bench.part import Part, Row
from scheduler.bench.report import at_least
from scheduler.bench.shapes import SHAPES, write_config
from scheduler.config import first_come
from scheduler.core import Scheduler
from scheduler.inline import InlineLoop
from scheduler.request import Request
from scheduler.service import SWITCH_INTERVAL_S

_NUM_ROWS: Final = 32
# Of a context; few of the steps are the first, in which masks have not been measured yet.
_NUM_TOKENS: Final = 112
_ROUNDS: Final = 5
# Of which no answer of so many tokens comes to the end.
_SCHEMA: Final = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "kind": {"enum": ["near", "far"]},
            "count": {"type": "integer"},
        },
        "required": ["name", "kind", "count"],
        "additionalProperties": False,
    },
}


def add_masks_cost(part: Part) -> None:
    """Measure, and add the figures."""
    with tempfile.TemporaryDirectory() as directory, _switched_as_served():
        write_config(SHAPES["llama-30m"], Path(directory))
        _add(part, "masked_over_free_b32", Path(directory), load_format="dummy")
        _add(part, "masked_over_free_demo_b32", MODEL_DIR, load_format="auto")


def _add(part: Part, name: str, model_dir: Path, *, load_format: str) -> None:
    engine = open_engine(
        EngineConfig(
            model_dir=model_dir,
            load_format=load_format,
            device="cpu",
            block_size=16,
            num_blocks=_NUM_ROWS * 8,
            max_model_len=128,
            max_num_seqs=_NUM_ROWS,
        )
    )
    constraint = _constraint(engine.info.vocab_size)
    rounds = []
    # The first one warms up.
    for number in range(_ROUNDS + 1):
        free, masked = (_tokens_per_s(engine, each) for each in (None, constraint))
        if number:
            rounds.append((free, masked))
    engine.close()
    ratio = median(masked / free for free, masked in rounds)
    part.figures[f"{name}_ratio"] = at_least(ratio, 0.95, "ratio")
    part.samples[f"{name}_tokens_per_s"] = rounds
    note = f"{ratio:.3f} of the tokens/s without, batch 32, {model_dir.name}"
    part.rows.append(Row("masks", None, note=note))


@contextmanager
def _switched_as_served() -> Iterator[None]:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


def _constraint(vocab_size: int) -> TokenConstraint:
    tokenizer = Tokenizer.from_dir(MODEL_DIR)
    vocabulary = read_vocabulary(tokenizer.to_json(), vocab_size, tokenizer.eos_token_ids)
    grammar = json_spec(_SCHEMA, param="schema").grammar
    return GrammarConstraint(compile_grammar(vocabulary, grammar))


def _tokens_per_s(engine: Engine, constraint: TokenConstraint | None) -> float:
    scheduler = Scheduler(engine.info, first_come())
    loop = InlineLoop(scheduler, engine, time.monotonic)
    for row in range(_NUM_ROWS):
        params = SamplingParams(
            max_tokens=_NUM_TOKENS, seed=row, constraint=constraint, ignore_eos=True
        )
        scheduler.offer(_request(row, params), 0.0)
    began_s, num_tokens = time.perf_counter(), 0
    while True:
        for output in loop.turn():
            assert output.error is None, output.error
            num_tokens += len(output.token_ids)
        if loop.idle:
            return num_tokens / (time.perf_counter() - began_s)


def _request(row: int, params: SamplingParams) -> Request:
    return Request(
        request_id=str(row),
        tenant_id="bench",
        key_id="bench",
        prompt_token_ids=array("i", [5, 6, 7 + row]),
        params=params,
        cache_salt=b"bench",
        arrival_s=0.0,
    )
