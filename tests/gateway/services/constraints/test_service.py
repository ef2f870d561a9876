"""Constraints compiled for the demo model's tokens: what is held to, refused, killed and kept."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import signal
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from engine.contract import Capability, EngineInfo, TokenConstraint
from engine.demo import MODEL_DIR
from engine.errors import ConstraintFailed
from engine.text import Tokenizer
from gateway.errors import ConstraintRefused, UnsupportedParameter
from gateway.services.constraints import (
    Checkers,
    Constraints,
    ConstraintSpec,
    choice_spec,
    client_grammar_spec,
    json_rule,
    json_spec,
    lark_spec,
    regex_spec,
)
from gateway.services.constraints.matching import GrammarConstraint

pytestmark = pytest.mark.anyio

ACME, OTHER = UUID(int=1), UUID(int=2)
TOKENIZER = Tokenizer.from_dir(MODEL_DIR)
[END] = TOKENIZER.eos_token_ids
INFO = EngineInfo(
    "llama",
    TOKENIZER.vocab_size,
    256,
    4,
    64,
    16,
    16,
    TOKENIZER.eos_token_ids,
    capabilities=frozenset({Capability.GRAMMAR}),
)


def bomb(number: int = 0) -> ConstraintSpec:
    """What takes seconds to compile, had it not been refused before."""
    properties = {f"p{i}": {"type": "integer"} for i in range(5000 + number)}
    schema = {"type": "object", "properties": properties}
    return ConstraintSpec(json.dumps({"grammars": [{"json_schema": schema}]}), "p")


@pytest.fixture(scope="module")
def checkers() -> Iterator[Checkers]:
    """Processes for all tests here: each takes a while to start."""
    made = Checkers()
    yield made
    made.close()


@pytest.fixture
def constraints(checkers: Checkers) -> Constraints:
    return Constraints(checkers)


async def compiled(constraints: Constraints, spec: ConstraintSpec) -> TokenConstraint:
    return await constraints.compile(ACME, TOKENIZER, INFO, spec)


def allowed(constraint: TokenConstraint) -> set[int]:
    words = np.empty(-(-INFO.vocab_size // 32), np.int32)
    constraint.fill_mask(words, words.ctypes.data)
    bits = np.unpackbits(words.view(np.uint8), count=INFO.vocab_size, bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def takes(constraint: TokenConstraint, text: str) -> bool:
    """Tell whether a whole text may be drawn, token for token, and then the end."""
    constraint = constraint.copy()
    for token_id in TOKENIZER.encode(text, add_special_tokens=False):
        if token_id not in allowed(constraint):
            return False
        constraint.accept([token_id])
    return END in allowed(constraint)


@pytest.mark.parametrize(
    ("spec", "whole", "other"),
    [
        (json_spec({"enum": ["a", 7]}, param="p"), ['"a"', "7"], ['"b"', "", '"a']),
        (json_spec({"type": "object"}, param="p"), ["{}", '{ "a": [1, "x"]\n}'], ["[]", "{} "]),
        (regex_spec("(ab)+|x/y", param="p"), ["ab", "abab", "x/y"], ["", "a", "ababa"]),
        (regex_spec("^ab$", param="p"), ["ab"], ["xab"]),
        (choice_spec(["yes", 'no "\\n\n'], param="p"), ["yes", 'no "\\n\n'], ["no", "yes "]),
        (choice_spec(["a", "ab", "\x7f\x1f"], param="p"), ["a", "ab", "\x7f\x1f"], ["b", ""]),
        (choice_spec(["0"] * 2000, param="p"), ["0"], ["00"]),
        (client_grammar_spec('start: "a" B+\nB: "b"', param="p"), ["ab", "abb"], ["a", "b"]),
        (
            lark_spec(f'start: "<" j ">"\nj: {json_rule({"const": 1}, param="p")}', param="p"),
            ["<1>"],
            ["1", "<2>"],
        ),
    ],
    ids=["enum", "object", "regex", "anchors", "choice", "prefix", "equal", "lark", "rule"],
)
async def test_a_constraint_takes_its_own_texts_alone(
    constraints: Constraints, spec: ConstraintSpec, whole: list[str], other: list[str]
) -> None:
    """What is of the form may be drawn and then end; what is not may not, nor may its beginning."""
    constraint = await compiled(constraints, spec)
    assert [text for text in whole if not takes(constraint, text)] == []
    assert [text for text in other if takes(constraint, text)] == []


async def test_no_special_token_is_drawn_but_the_end(constraints: Constraints) -> None:
    """Inside a string any text may be, and no token that a template marks turns with."""
    constraint = (await compiled(constraints, json_spec({"type": "string"}, param="p"))).copy()
    constraint.accept(TOKENIZER.encode('"', add_special_tokens=False))
    free = allowed(constraint)
    assert len(free) > 900
    names = TOKENIZER.names(range(INFO.vocab_size))
    special = {i for i, name in enumerate(names) if name.startswith("<|")}
    assert special
    assert not free & special


async def test_blanks_are_bounded(constraints: Constraints) -> None:
    """A model that writes nothing but blanks comes to the end of them."""
    constraint = (await compiled(constraints, json_spec({"type": "object"}, param="p"))).copy()
    constraint.accept(TOKENIZER.encode("{", add_special_tokens=False))
    [blank] = TOKENIZER.encode("\n", add_special_tokens=False)
    num_blanks = 0
    while blank in allowed(constraint):
        constraint.accept([blank])
        num_blanks += 1
    assert num_blanks == 32


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"not": {}}, "no value"),
        ({"type": "string", "not": {"pattern": "a", "type": "string"}}, "not"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "no value"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"propertyNames": {"allOf": [{"pattern": "a"}]}}, "propertyNames"),
        ({"unevaluatedProperties": False, "anyOf": [{}]}, "unevaluatedProperties"),
        ({"type": "object", "minProperties": 2}, "minProperties"),
        ({"const": [2**60 + 1]}, "const"),
        ({"type": "number", "minimum": 1e300}, "minimum"),
        ({"type": "string", "format": "sonnet"}, "sonnet"),
        ({"type": "string", "pattern": "(?=a)b"}, "'pattern'"),
        ({"$ref": "https://example.com/x"}, "'$ref': Resource 'https://example.com"),
        ({"$ref": "#"}, "$ref"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "$ref"),
        ({"x-guidance": {"lenient": True}, "type": "array", "uniqueItems": True}, "unique"),
        (
            {
                "properties": {
                    "a": {"x-guidance": {"lenient": True}, "type": "string", "format": "sonnet"}
                }
            },
            "sonnet",
        ),
        ({"type": "string", "minLength": 10**6}, "minLength"),
        ({"enum": [str(i) for i in range(3000)]}, "enum"),
        ({"properties": {f"p{i}": {} for i in range(500)}}, "properties"),
        ({"description": "x" * 70_000}, "65536"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_is_not_supported_is_refused_by_its_name(
    constraints: Constraints, schema: dict[str, Any], named: str
) -> None:
    """A schema that could not be held to whole is refused, and told which part of it that is."""
    with pytest.raises(ConstraintRefused) as refused:
        await compiled(constraints, json_spec(schema, param="guided_json"))
    assert named in refused.value.message
    assert refused.value.param == "guided_json"


@pytest.mark.parametrize(
    "grammar",
    [
        'start: <|system|> "a"',
        "start: <[3]>",
        # A pattern that is a line break, and not one that begins behind it.
        "start: /\n/<[3]>///",
        'start: %json {"not": {}, "x-guidance": {"lenient": true}}',
        "start: @other",
        'root ::= "a"',
        "start: ]]",
        "",
        'start: "' + "a" * 70_000 + '"',
    ],
    ids=lambda grammar: grammar[:12],
)
async def test_a_clients_grammar_names_no_token_and_no_other_grammar(
    constraints: Constraints, grammar: str
) -> None:
    """Special tokens, schemas with options of their own and what is no grammar are refused."""
    with pytest.raises(ConstraintRefused):
        await compiled(constraints, client_grammar_spec(grammar, param="p"))


@pytest.mark.parametrize("begun", ['"' + '\\"' * 8000, "/" + r"\/" * 8000, "/\\" * 8000])
def test_literals_that_do_not_end_are_looked_through_once(begun: str) -> None:
    """As many as a grammar has room for take what any text of that length does."""
    began_s = time.thread_time()
    assert client_grammar_spec(f"start: {begun}", param="p")
    with pytest.raises(ConstraintRefused, match="<ended>"):
        client_grammar_spec(f"start: {begun}<ended>", param="p")
    assert time.thread_time() - began_s < 0.5


@pytest.mark.parametrize(
    "spec",
    [
        regex_spec(r"[^\s\S]", param="p"),
        client_grammar_spec("start: start", param="p"),
        json_spec({"type": "object", "required": ["a"], "properties": {"a": False}}, param="p"),
    ],
    ids=lambda spec: spec.grammar[:40],
)
async def test_what_no_text_fits_is_refused_in_its_own_words(
    constraints: Constraints, spec: ConstraintSpec
) -> None:
    """It is said to be met by nothing; of references where there are none nobody is asked."""
    with pytest.raises(ConstraintRefused, match=r"no text fits it|no value") as refused:
        await compiled(constraints, spec)
    assert "$ref" not in refused.value.message


async def test_what_an_engine_cannot_do_is_refused(constraints: Constraints) -> None:
    """An engine without masks, or a model without an end token, takes no constraint."""
    spec = json_spec({"type": "object"}, param="response_format")
    for lacking in ({"capabilities": frozenset()}, {"eos_token_ids": frozenset()}):
        info = EngineInfo(
            **{name: getattr(INFO, name) for name in INFO.__slots__} | lacking  # type: ignore[arg-type]
        )
        with pytest.raises(UnsupportedParameter) as refused:
            await constraints.compile(ACME, TOKENIZER, info, spec)
        assert refused.value.param == "response_format"


async def test_a_child_that_takes_too_long_is_killed_and_replaced() -> None:
    """What compiles for longer than it may is refused in that time, and the next is compiled."""
    constraints = Constraints(Checkers(deadline_s=0.2))
    begun_s = time.monotonic()
    with pytest.raises(ConstraintRefused, match="too long"):
        await compiled(constraints, bomb())
    assert time.monotonic() - begun_s < 20
    assert takes(await compiled(constraints, choice_spec(["a"], param="p")), "a")
    constraints.close()


async def test_a_child_that_takes_too_much_memory_is_refused() -> None:
    """A bound on memory kills the child, not this process."""
    constraints = Constraints(Checkers(memory_bytes=1 << 20))
    with pytest.raises(ConstraintRefused, match="too much memory"):
        await compiled(constraints, bomb())
    constraints.close()


async def test_a_child_that_others_kill_is_replaced_and_the_grammar_tried_again() -> None:
    """Whether it is idle or at work when it is killed, as for memory, no request fails of it."""
    checkers = Checkers()
    constraints = Constraints(checkers)
    await compiled(constraints, choice_spec(["first"], param="p"))
    [child] = checkers._all
    child._process.kill()
    await compiled(constraints, choice_spec(["a"], param="p"))
    [child] = checkers._all
    child._process.send_signal(signal.SIGSTOP)
    asked = asyncio.create_task(compiled(constraints, choice_spec(["b"], param="p")))
    await asyncio.sleep(0.05)
    child._process.kill()
    assert takes(await asked, "b")
    constraints.close()


@pytest.fixture
def many_files() -> Iterator[None]:
    """Hold more files open than `select` has numbers for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    with contextlib.ExitStack() as held:
        for _ in range(1100):
            held.enter_context(open(os.devnull, "rb"))
        yield


@pytest.mark.usefixtures("many_files")
async def test_a_process_with_many_files_open_compiles_too() -> None:
    """A child that is started beside a thousand connections is heard like any other."""
    constraints = Constraints(Checkers())
    assert takes(await compiled(constraints, choice_spec(["a"], param="p")), "a")
    constraints.close()


async def test_one_tenants_bombs_hold_up_no_other() -> None:
    """While a tenant has many grammars that take long, another's is compiled beside them."""
    constraints = Constraints(Checkers(deadline_s=0.5))
    await constraints.compile(OTHER, TOKENIZER, INFO, choice_spec(["x"], param="p"))
    bombs = [asyncio.create_task(compiled(constraints, bomb(i))) for i in range(6)]
    await asyncio.sleep(0.1)
    await constraints.compile(OTHER, TOKENIZER, INFO, choice_spec(["y"], param="p"))
    assert sum(bomb.done() for bomb in bombs) <= 2
    constraints.close()
    await asyncio.gather(*bombs, return_exceptions=True)


async def test_a_grammar_is_kept_for_its_tenant_alone(constraints: Constraints) -> None:
    """What a tenant had compiled is there when it asks again; another's is compiled anew."""
    spec = choice_spec(["a", "b"], param="p")
    first, again = [await compiled(constraints, spec) for _ in range(2)]
    other = await constraints.compile(OTHER, TOKENIZER, INFO, spec)
    assert first is again
    assert first is not other


async def test_what_others_of_a_grammar_met_fails_no_later_answer(constraints: Constraints) -> None:
    """Copies share states of which there is a bound: before they meet it another is compiled."""
    spec = regex_spec("(a|b|c| )*a(a|b|c| ){20}(a|b|c| )*", param="p")
    draw = random.Random(1)
    used = set()
    for _ in range(30):
        begun = await compiled(constraints, spec)
        used.add(id(begun))
        constraint = begun.copy()
        for _ in range(200):
            constraint.accept([draw.choice(sorted(allowed(constraint) - {END}))])
    assert 1 < len(used) < 6


async def test_a_constraint_that_is_told_what_it_forbids_fails(constraints: Constraints) -> None:
    """It says so, then and ever after, and does not look like one that has come to its end."""
    begun = await compiled(constraints, choice_spec(["yes"], param="p"))
    constraint = begun.copy()
    with pytest.raises(ConstraintFailed):
        constraint.accept([END])
    with pytest.raises(ConstraintFailed):
        allowed(constraint)
    assert await compiled(constraints, choice_spec(["yes"], param="p")) is not begun


def test_half_of_a_pair_is_no_text() -> None:
    """A lone surrogate in a schema, a choice or a grammar is refused, not a fault."""
    lone = json.loads('"\\ud800"')
    for make in (
        lambda: json_spec({"enum": [lone]}, param="p").digest,
        lambda: choice_spec([lone], param="p").digest,
        lambda: regex_spec(lone, param="p").digest,
        lambda: client_grammar_spec(f'start: "{lone}"', param="p").digest,
    ):
        with pytest.raises(ConstraintRefused):
            make()


async def test_states_that_masks_add_are_counted(constraints: Constraints) -> None:
    """Of a pattern that makes thousands of them some MiB, bounded; of a short one nothing."""
    many = r"(\p{L}|\p{N}){0,200}q(\p{L}|[a-z ]){10,2000}x(.|\n){3,3000}"
    grown = []
    for pattern in (many, "[0-9]{4}-[0-9]{2}"):
        whole = await compiled(constraints, regex_spec(pattern, param="p"))
        one, rng = whole.copy(), random.Random(1)
        with contextlib.suppress(ConstraintFailed):
            for _ in range(1500):
                may = sorted(allowed(one) - {END})
                if not may:
                    break
                one.accept([rng.choice(may)])
        assert isinstance(whole, GrammarConstraint)
        grown.append(whole.grown_bytes)
    assert 1 << 20 < grown[0] <= 18 << 20
    assert grown[1] < 1 << 20
