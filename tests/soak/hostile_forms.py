"""Forms that are made to take long or much, of one tenant, beside the streams of another.

The victim is a process of its own that streams one completion after another and notes the times
between what comes; spells with the attack and without take turns.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from tests.live_server import Server
from tests.soak.forms import Body, client_of


def _chain(number: int, each: str) -> Body:
    """Definitions of which each holds the next one `each` way."""
    ways: dict[str, Any] = {
        "twice": lambda ref: {"type": "array", "prefixItems": [ref, ref]},
        "once": lambda ref: ref,
        "either": lambda ref: {"anyOf": [ref, {"type": "array", "items": ref}]},
    }
    definitions = {
        f"d{nth}": ways[each]({"$ref": f"#/$defs/d{nth + 1}"}) for nth in range(number - 1)
    }
    definitions[f"d{number - 1}"] = {"$ref": "#/$defs/d0"}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


def _nested(levels: int) -> Body:
    schema: Body = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


_ALTERNATIVES: Final = [{"type": "object", "properties": {f"p{n}": {}}} for n in range(3)]
_TAILS: Final = [{"pattern": f"^(a|b)*a(a|b){{{n}}}(a|b)*$"} for n in range(20)]
_AMBIGUOUS: Final = "start: a\na: a a | b\nb: b b | c\nc: c c | a | /x*/"

# Each is refused, or harmless: answered as any.
HOSTILE: Final[dict[str, Body]] = {
    "regex_nested_plus": {"guided_regex": "^(a+)+$"},
    "regex_alternation": {"guided_regex": "(a|a|aa)*(a|aa)*b"},
    "regex_tail": {"guided_regex": "(a|b)*a(a|b){20}"},
    "regex_counted": {"guided_regex": "([a-z]{1,200}-){1,200}"},
    "regex_squared": {"guided_regex": "((x{1,1000}){1,1000}){1,1000}"},
    "regex_dots": {"guided_regex": "(.*a){40}"},
    "regex_long": {"guided_regex": "|".join(f"a{n}.*b{n}.*c" for n in range(500))},
    "pattern_tail": {"guided_json": {"type": "string", "pattern": "^(a|b)*a(a|b){20}$"}},
    # Three seconds, had it them.
    "pattern_all_of": {"guided_json": {"type": "string", "allOf": _TAILS}},
    "pattern_backreference": {"guided_json": {"type": "string", "pattern": r"(a*)\1"}},
    "ref_itself": {"guided_json": {"$ref": "#"}},
    "ref_circle": {"guided_json": _chain(30, "once")},
    "ref_doubling": {"guided_json": _chain(30, "twice")},
    "ref_either": {"guided_json": _chain(30, "either")},
    "all_of_any": {"guided_json": {"allOf": [{"anyOf": _ALTERNATIVES}] * 12}},
    "nested_14": {"guided_json": _nested(14)},
    "nested_200": {"guided_json": _nested(200)},
    "enum_2000": {"guided_json": {"enum": [f"{n}x" * 8 for n in range(2000)]}},
    "enum_20000": {"guided_json": {"enum": list(range(20_000))}},
    "properties_400": {"guided_json": {"properties": {f"p{n}": {} for n in range(400)}}},
    "properties_5000": {"guided_json": {"properties": {f"p{n}": {} for n in range(5000)}}},
    "length_100000": {"guided_json": {"type": "string", "minLength": 99_999, "maxLength": 100_000}},
    "length_billion": {"guided_json": {"type": "string", "minLength": 10**9}},
    "items_100000": {"guided_json": {"type": "array", "items": {}, "minItems": 100_000}},
    "multiple_of": {"guided_json": {"type": "integer", "multipleOf": 7919}},
    "choices_2000": {"guided_choice": [f"{n}" + "x" * 30 for n in range(2000)]},
    "grammar_ambiguous": {"guided_grammar": _AMBIGUOUS},
    "grammar_itself": {"guided_grammar": "start: start"},
}


@dataclass
class Seen:
    """Hold what both saw: times between what came of streams, alone and beside the attack, and of
    each hostile form the statuses that it got and how long they took."""

    alone_s: list[float] = field(default_factory=list)
    beside_s: list[float] = field(default_factory=list)
    statuses: dict[str, list[int]] = field(default_factory=dict)
    took_s: dict[str, list[float]] = field(default_factory=dict)


async def hostile_beside_streams(server: Server, *, rounds: int, spell_s: float) -> Seen:
    """Send every hostile form in turn, `rounds` times; the victim is left alone in between."""
    seen = Seen()
    for _ in range(rounds):
        with _streaming(server, seen.alone_s):
            await asyncio.sleep(spell_s)
        with _streaming(server, seen.beside_s):
            await _send(server, seen)
    return seen


async def _send(server: Server, seen: Seen) -> None:
    async with client_of(server, "acme") as client:
        for name, form in HOSTILE.items():
            body = {"model": server.banner["model"], "prompt": "x", "max_tokens": 8} | form
            began_s = time.perf_counter()
            answer = await client.post("/completions", json=body)
            seen.took_s.setdefault(name, []).append(time.perf_counter() - began_s)
            seen.statuses.setdefault(name, []).append(answer.status_code)


@contextmanager
def _streaming(server: Server, gaps_s: list[float]) -> Iterator[None]:
    """Let the victim stream meanwhile."""
    url = urlsplit(server.api)
    [key] = [entry["key"] for entry in server.banner["keys"] if entry["tenant"] == "globex"]
    job = {"host": url.hostname, "port": url.port, "key": key, "model": server.banner["model"]}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.soak.gap_client"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "streaming\n", "the victim did not begin"
        try:
            yield
        finally:
            out, _ = process.communicate()
        gaps_s += json.loads(out)
