"""A hundred bodies that cost a careless server the most, for a model with 2,048 positions.

By size: the largest that is decoded where it stands, the smallest that goes to a thread, a
megabyte, and the most that is taken. By what they hold: a great many of what is small, a few of
what is long, what is deep, and what asks for a long answer. Most are refused; what counts is what
that takes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from gateway.api.body import MAX_BODY_BYTES, SHORT_BODY_BYTES

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"
TOKENIZE: Final = "/tokenize"
DETOKENIZE: Final = "/detokenize"
CONTEXT: Final = 2048

SIZES: Final = {
    "short": SHORT_BODY_BYTES,
    "long": SHORT_BODY_BYTES + 1,
    "1MiB": 1 << 20,
    "4MiB": MAX_BODY_BYTES,
}
# name → path, what stands around the items, and an item; `#` is its number.
_FILLED: Final = {
    "lists": (COMPLETIONS, '"prompt":[%s]', "[1]"),
    "ids": (COMPLETIONS, '"prompt":[%s]', "519"),
    "mixed_ids": (COMPLETIONS, '"prompt":["x",%s]', "519"),
    "texts": (COMPLETIONS, '"prompt":[%s]', '""'),
    "floats": (COMPLETIONS, '"prompt":[%s]', "1e300"),
    "messages": (CHAT, '"messages":[%s]', '{"role":"user","content":""}'),
    "parts": (CHAT, '"messages":[{"role":"user","content":[%s]}]', '{"type":"text","text":""}'),
    "tools": (CHAT, '"messages":[{"role":"user","content":"x"}],"tools":[%s]', "{}"),
    "fields": (COMPLETIONS, '"prompt":"x",%s', '"f#":0'),
    "stops": (COMPLETIONS, '"prompt":"x","stop":[%s]', '""'),
    "stop_ids": (COMPLETIONS, '"prompt":"x","stop_token_ids":[%s]', "7"),
    "logit_bias": (COMPLETIONS, '"prompt":"x","logit_bias":{%s}', '"#":1'),
    "metadata": (COMPLETIONS, '"prompt":"x","metadata":{%s}', '"#":""'),
    "tokens": (DETOKENIZE, '"tokens":[%s]', "519"),
}
# name → path, what stands around the text, and what it is made of.
_LONG: Final = {
    "spaces": (COMPLETIONS, '"prompt":"%s"', " "),
    "escapes": (COMPLETIONS, '"prompt":"%s"', r"\u0041"),
    "quotes": (COMPLETIONS, '"prompt":"%s"', r"\""),
    "emoji": (CHAT, '"messages":[{"role":"user","content":"%s"}]', "🦀"),
    "name": (COMPLETIONS, '"prompt":"x","%s":0', "n"),
    "role": (CHAT, '"messages":[{"role":"%s","content":""}]', "r"),
    "to_tokens": (TOKENIZE, '"prompt":"%s"', " word"),
    "to_bytes": (TOKENIZE, '"return_token_strs":true,"prompt":"%s"', "🦀"),
    "to_chat": (TOKENIZE, '"messages":[{"role":"user","content":"%s"}]', "a"),
    "number": (COMPLETIONS, '"prompt":"x","seed":%s', "9"),
}


def worst_bodies(model: str) -> Iterator[tuple[str, str, bytes]]:
    """Give each body's name, its path, and the body."""
    for size, size_bytes in SIZES.items():
        for name, (path, around, item) in _FILLED.items():
            yield f"{name}-{size}", path, _filled(model, around, item, size_bytes)
        for name, (path, around, text) in _LONG.items():
            room = (size_bytes - len(_object(model, around % ""))) // len(text.encode())
            yield f"{name}-{size}", path, _object(model, around % (text * room))
    for name, text in (
        ("words", " word" * 52_000),
        ("one", "a" * 262_000),
        ("emoji", "🦀" * 65_000),
    ):
        body = _object(model, f'"prompt":{json.dumps(text, ensure_ascii=False)}')
        yield f"most-{name}", TOKENIZE, body
    for depth in (32, 100, 1_000, 100_000):
        yield f"deep-{depth}", COMPLETIONS, _object(model, f'"prompt":{"[" * depth}{"]" * depth}')
    for name, path, asked in (*_asking(), *_prompts(), *_forms()):
        yield name, path, json.dumps({"model": model, **asked}).encode()


def _filled(model: str, around: str, item: str, size_bytes: int) -> bytes:
    room = size_bytes - len(_object(model, around % ""))
    if "#" in item:
        numbered = (item.replace("#", str(number)) for number in range(room // (len(item) + 7)))
        return _object(model, around % ",".join(numbered))
    return _object(model, around % ",".join([item] * (room // (len(item) + 1))))


def _object(model: str, members: str) -> bytes:
    return f'{{"model":{json.dumps(model)},{members}}}'.encode()


def _asking() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Ask for long answers: choices × tokens × log-probabilities, whole and as streams."""
    chat = {"messages": [{"role": "user", "content": "x"}], "ignore_eos": True}
    for n, max_tokens, top in ((8, 250, 20), (8, 250, 0), (1, 900, 20)):
        scored = {"logprobs": True, "top_logprobs": top}
        asked = chat | scored | {"n": n, "max_tokens": max_tokens}
        yield f"chat-{n}x{max_tokens}x{top}", CHAT, asked
    yield "plain-1x900", CHAT, chat | {"max_tokens": 900}
    yield "plain-8x250", CHAT, chat | {"n": 8, "max_tokens": 250}
    stops = {"stop": ["\n\n\n" * 80, "x" * 256, "y" * 256, "z" * 256], "max_tokens": 500}
    yield "stops-stream", CHAT, chat | stops | {"stream": True}
    scored = {"logprobs": True, "top_logprobs": 20, "max_tokens": 500}
    yield "scored-stream", CHAT, chat | scored | {"stream": True}


def _forms() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Ask for forms that take long to write down, in bodies that are decoded where they stand."""
    values = {"enum": list(range(1999))}
    object_ = {"properties": {f"k{number}": {} for number in range(60)}, "type": "object"}
    schemas: dict[str, dict[str, Any]] = {
        "unique": {"type": "array", "items": values, "uniqueItems": True},
        "multiples": {"items": [{"multipleOf": 123456789012345}] * 700},
        "counted": {"items": [object_ | {"minProperties": 1, "maxProperties": 1}] * 16},
    }
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    for name, schema in schemas.items():
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        yield f"form-{name}", CHAT, chat | {"response_format": form}
    yield "form-grammar", CHAT, chat | {"guided_grammar": 'start: "' + r"\"" * 8000}


def _prompts() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Send many prompts, long ones, and have them repeated with their log-probabilities."""
    ids = [[512 + (number * 31 + index) % 400 for index in range(2000)] for number in range(120)]
    yield "prompts-120x2000", COMPLETIONS, {"prompt": ids, "max_tokens": 1}
    yield "echo-120x2000", COMPLETIONS, {"prompt": ids, "max_tokens": 1, "echo": True}
    halves = [prompt[:1000] for prompt in ids[:16]]
    scored = {"prompt": halves, "echo": True, "logprobs": 5, "max_tokens": 1}
    yield "echo-16x1000x20", COMPLETIONS, scored
    yield "echo-stream", COMPLETIONS, scored | {"prompt": ids[0], "stream": True}
    text = "".join(chr(97 + (number * number) % 26) for number in range(CONTEXT * 2))
    yield "texts-128", COMPLETIONS, {"prompt": [text[: CONTEXT * 2]] * 128, "max_tokens": 1}
    yield "text-spaces", COMPLETIONS, {"prompt": " " * CONTEXT * 7, "max_tokens": 1}
    yield "text-one-word", COMPLETIONS, {"prompt": "a" * CONTEXT * 7, "max_tokens": 1}
    turns = [{"role": "user", "content": "x" * 15}] * 1000
    yield "turns-1000", CHAT, {"messages": turns, "max_tokens": 1}
    biased = {"logit_bias": {str(token): 1 for token in range(300)}, "max_tokens": 200, "n": 8}
    yield "biased-8x200", COMPLETIONS, {"prompt": "x", "ignore_eos": True, **biased}
