"""Bodies that cost a careless server the most: for their 4 MiB, or for the answer they ask for.

Those of `ASKING` cost what computing, shaping and encoding their answers takes; the others what
decoding, looking through and mostly refusing them takes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import repeat
from typing import Final

MAX_BODY_BYTES: Final = 4 << 20
COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"

Body = tuple[str, Callable[[str], bytes]]


def body_of(attack: str, model: str) -> tuple[str, bytes]:
    """Return an attack's path and body."""
    path, build = ATTACKS[attack]
    body = build(model)
    assert len(body) <= MAX_BODY_BYTES, f"{attack} would be refused by its length"
    return path, body


def _many_logprobs(model: str) -> bytes:
    """Ask for eight choices, each token with its twenty likeliest; 11 MB."""
    asked = {
        "model": model,
        "messages": [{"role": "user", "content": "x"}],
        "n": 8,
        "logprobs": True,
        "top_logprobs": 20,
        "max_tokens": 1000,
        "ignore_eos": True,
    }
    return json.dumps(asked).encode()


def _many_echoes(model: str) -> bytes:
    """Ask for the log-probabilities of 120 prompts, of which nothing needs to be drawn."""
    prompts = [
        [512 + (number * 31 + index) % 400 for index in range(1000)] for number in range(120)
    ]
    asked = {"model": model, "prompt": prompts, "echo": True, "logprobs": 5, "max_tokens": 1}
    return json.dumps(asked).encode()


def _full(member: str, item: str) -> Callable[[str], bytes]:
    """Fill a list with one item; `member` holds the place of its items as `%s`."""

    def build(model: str) -> bytes:
        size_bytes = MAX_BODY_BYTES - len(_object(model, member % ""))
        return _object(model, member % ",".join(repeat(item, size_bytes // (len(item) + 1))))

    return build


def _long_prompts(model: str) -> bytes:
    """Ask for a token after each of 120 prompts as long as the context takes, all of them new."""
    draw = random.Random()
    prompts = [[draw.randrange(512, 1012) for _ in range(500)] for _ in range(120)]
    return json.dumps({"model": model, "prompt": prompts, "max_tokens": 1}).encode()


def _dear_masks(model: str) -> bytes:
    """Ask for eight answers of a grammar each token of which takes milliseconds to allow."""
    number = 60
    rules = [f"w{i}: /[a-z ]{{0,{i + 1}}}/ w{(i + 1) % number}?" for i in range(number)]
    names = " | ".join(f"w{i}" for i in range(number))
    asked = {
        "model": model,
        "prompt": "x",
        "n": 8,
        "max_tokens": 500,
        "temperature": 1.0,
        "guided_grammar": "\n".join(("start: w*", f"w: {names}", *rules)),
    }
    return json.dumps(asked).encode()


def _counted(member: str, item: str, count: int) -> Callable[[str], bytes]:
    """Put so many items into a member; `#` in one stands for its number."""

    def build(model: str) -> bytes:
        items = (item.replace("#", str(number)) for number in range(count))
        return _object(model, member % ",".join(items))

    return build


def _object(model: str, member: str) -> bytes:
    return f'{{"model":{json.dumps(model)},{member}}}'.encode()


def _long_field(model: str) -> bytes:
    size_bytes = MAX_BODY_BYTES - len(_object(model, '"":0'))
    return _object(model, f'"{"x" * size_bytes}":0')


def _escapes(model: str) -> bytes:
    size_bytes = MAX_BODY_BYTES - len(_object(model, '"prompt":""'))
    return _object(model, '"prompt":"' + r"\u0041" * (size_bytes // 6) + '"')


def _deep(model: str) -> bytes:
    return _object(model, '"prompt":' + "[" * 100_000 + "]" * 100_000)


_MESSAGES = '"messages":[{"role":"user","content":"x"}]'

SHAPES: Final[dict[str, Body]] = {
    "empty_strings": (COMPLETIONS, _full('"prompt":[%s]', '""')),
    "messages": (CHAT, _full('"messages":[%s]', '{"role":"user","content":""}')),
    "unknown_fields": (COMPLETIONS, _counted('"prompt":"x",%s', '"#":0', 300_000)),
    "long_field": (COMPLETIONS, _long_field),
    "stops": (COMPLETIONS, _full('"prompt":"x","stop":[%s]', '""')),
    "logit_bias": (COMPLETIONS, _counted('"prompt":"x","logit_bias":{%s}', '"#":0', 200_000)),
    "metadata": (COMPLETIONS, _counted('"prompt":"x","metadata":{%s}', '"#":""', 200_000)),
    "tools": (CHAT, _full(_MESSAGES + ',"tools":[%s]', "[]")),
    "mixed_ids": (COMPLETIONS, _counted('"prompt":[%s,"x"]', "519", 800_000)),
    "escapes": (COMPLETIONS, _escapes),
    "text_parts": (
        CHAT,
        _counted(
            '"messages":[{"role":"user","content":[%s]}]', '{"type":"text","text":""}', 100_000
        ),
    ),
    "deep": (COMPLETIONS, _deep),
    "numbers": (COMPLETIONS, _full('"prompt":[%s]', "1e300")),
}
ASKING: Final[dict[str, Body]] = {
    "logprobs": (CHAT, _many_logprobs),
    "echoes": (COMPLETIONS, _many_echoes),
    "masks": (COMPLETIONS, _dear_masks),
    "backlog": (COMPLETIONS, _long_prompts),
}
ATTACKS: Final[dict[str, Body]] = {
    "lists": (COMPLETIONS, _full('"prompt":[%s]', "[1]")),
    **ASKING,
    **SHAPES,
}
