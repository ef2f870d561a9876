"""Bodies for the two inference endpoints that are wrong, odd, or at the edge of what is right.

A case begins as a proper request of a few tokens. Fields are then replaced or added, drawn from
what each field must bound and from values that fit no field; the JSON text may be damaged after
that. About half of all cases stay acceptable and reach the engine, so that odd parameters are
computed in the same batches as everybody else's.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Final

from tests.faults.cases import Case, Target, post

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
VOCAB_SIZE: Final = 1024

# Written as they are: json.dumps would refuse or spell them otherwise.
_LITERALS: Final = (
    *("NaN", "Infinity", "-Infinity", "-0", "1e999", "-1e999", "1e-400", "0x10", "01", "+1"),
    *("1.", ".5", "1" * 5000, "1" + "0" * 400, "1e1000000000", "0." + "0" * 2000 + "1"),
    *('"\\ud800"', '"\\udfff\\ud800"', '"\\u0000"', '"\\x41"', '"\\ud83d\\ude00"', "'x'"),
    *("nul", "tru", "True", "None", "undefined", "[", "{", "]", '{"a":1,}', "[1,]", "/**/1"),
)
_WRONG: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.5, 1e308, -1e308, 5e-324, 2**31 - 1, 2**31, 2**32),
    *(-(2**31), 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1, 10**100),
    *("", " ", "x", "1", "null", "\x00", "\u202e", "\ufeff", "😀" * 100, "x" * 10_000, "\ud800"),
    *(
        [],
        [[]],
        [None],
        [0],
        [""],
        ["\ud800"],
        [[[[]]]],
        {},
        {"": ""},
        {"x": None},
        {"a": {"b": 1}},
    ),
)
_TEXTS: Final = (
    *("What is Sluice?", "x", "\n", "\x00\x01\x7f", "é", "\u200d", "\ufffd", "😀", "a\u0300" * 50),
    *("<|im_start|>system", "<s></s>", "{{ 7*7 }}", "{% raw %}", "%s%n", "../../etc/passwd"),
    *("word " * 60, "ab" * 400, "\ud800", "\udc00x", "x" * 20_000, "\n" * 3000, "𝔘" * 300, ""),
)
_PLAIN: Final = ("What is Sluice?", "Who are you?", "x", "\n", "é", "word " * 60)
_ROLES: Final = ("user", "system", "assistant", "tool", "developer", "function", "", "root", "\x00")


def body_case(draw: random.Random, target: Target) -> Case:
    """Draw one request with a proper head and a doubtful body."""
    path = draw.choice((CHAT, COMPLETIONS))
    body = _chat(draw, target) if path == CHAT else _completion(draw, target)
    kind = "body"
    for _ in range(draw.choice((0, 1, 1, 1, 2, 2, 3, 6))):
        change = draw.choice(_CHANGES)
        change(draw, body)
        kind = "body field"
    _bound_cost(draw, body)
    text = _encoded(draw, body)
    if draw.random() < 0.25:
        text, kind = draw.choice(_DAMAGES)(draw, text), "body bytes"
    return Case(kind, post(target, path, text), answers=1, leaves=draw.random() < 0.02)


def _chat(draw: random.Random, target: Target) -> dict[str, Any]:
    turns = [
        {"role": "user", "content": draw.choice(_TEXTS)} for _ in range(draw.choice((1, 1, 3)))
    ]
    return {"model": target.model, "messages": turns, "max_tokens": draw.randint(1, 6)}


def _completion(draw: random.Random, target: Target) -> dict[str, Any]:
    plain = draw.choice((draw.choice(_PLAIN), _ids(draw)))
    prompt = plain if draw.random() < 0.7 else draw.choice(_PROMPTS)(draw)
    return {"model": target.model, "prompt": prompt, "max_tokens": draw.randint(1, 6)}


def _bound_cost(draw: random.Random, body: dict[str, Any]) -> None:
    """Bound what an accepted case computes; a few go on to the end of the context."""
    if draw.random() < 0.002:
        return
    field = "max_completion_tokens" if "messages" in body and draw.random() < 0.3 else "max_tokens"
    if body.get(field) is None:
        body[field] = draw.randint(1, 6)


def _ids(draw: random.Random) -> list[Any]:
    return [draw.randrange(VOCAB_SIZE) for _ in range(draw.choice((1, 5, 63, 64, 65, 130)))]


def _odd_ids(draw: random.Random) -> list[Any]:
    ids = _ids(draw)
    edges = (-1, VOCAB_SIZE, VOCAB_SIZE - 1, 2**31 - 1, 2**31, 2**63, 2**64, -(2**31), 10**30)
    others: tuple[Any, ...] = (0.5, 1.0, True, None, "x", [], [1], {})
    ids[draw.randrange(len(ids))] = draw.choice(edges + others)
    return ids


_PROMPTS: Final[tuple[Callable[[random.Random], Any], ...]] = (
    lambda draw: draw.choice(_TEXTS),
    lambda draw: draw.choice(_TEXTS),
    _ids,
    _odd_ids,
    lambda draw: [_ids(draw), _odd_ids(draw)],
    lambda draw: [draw.choice(_TEXTS) for _ in range(draw.randint(0, 3))],
    lambda draw: draw.choice(([], [[]], [""], [[], []], [None], [[[1]]], ["x", 1], [1, "x"], [{}])),
    lambda draw: [0] * draw.choice((1000, 5000, 70_000)),
    lambda draw: "y" * draw.choice((5_000, 70_000)),
    lambda draw: [1] * 2 if draw.random() < 0.9 else ["x"] * 129,
)


def _number(*values: Any) -> Callable[[random.Random], Any]:
    return lambda draw: draw.choice(values)


def _logit_bias(draw: random.Random) -> Any:
    ids = ("0", "5", "1023", "1024", "-1", "x", "", " 5", "05", "5.0", "９", "1" * 40, "9999999999")
    size = draw.choice((1, 2, 8, 300, 301))
    values = (100, -100, 100.5, -1e300, 0, 5, -5, 99.99)
    if size < 10:
        return {draw.choice(ids): draw.choice(values) for _ in range(size)}
    return {str(i): draw.choice((-100, 100, 1)) for i in range(size)}


def _stop(draw: random.Random) -> Any:
    odd = ("", "e", " ", "x" * 256, "x" * 257, "\x00", "😀", "\ud800", "S", "\n")
    return draw.choice(
        (draw.choice(odd), [draw.choice(odd) for _ in range(draw.choice((0, 1, 4, 5)))])
    )


# Values on both sides of each bound, and combinations that an engine computes.
_FIELDS: Final[dict[str, Callable[[random.Random], Any]]] = {
    "n": _number(1, 2, 3, 0, -1, 9, 2**31, 1e308, 1.0, "8", True),
    "max_tokens": _number(1, 2, 0, -1, 2**31 - 1, 2**31, 2**63, 1.0, "1"),
    "max_completion_tokens": _number(1, 2, 0, -1, 10**9, None),
    "temperature": _number(0, 1e-9, 1e-300, 0.5, 2, 2.0001, -0.001, 1e308, 5e-324),
    "top_p": _number(0, 1e-12, 5e-324, 0.1, 1, 1.0001, -1e-9),
    "top_k": _number(-1, 0, 1, 2, VOCAB_SIZE, VOCAB_SIZE + 1, -2, 2**31, 2**63),
    "min_p": _number(0, 1e-12, 0.5, 1, 1.001, -1),
    "seed": _number(0, 1, -1, 2**63 - 1, -(2**63), 2**63, 2**64, 10**30),
    "stop": _stop,
    "stop_token_ids": lambda draw: (
        [draw.choice((0, 5, 1023, 1024, -1, 2**40))] * draw.choice((1, 65))
    ),
    "ignore_eos": _number(True, False, None),
    "presence_penalty": _number(-2, 2, 2.01, -2.01, 0.5, 1e308),
    "frequency_penalty": _number(-2, 2, 2.01, 0.5, -1e308),
    "repetition_penalty": _number(0.01, 10, 1, 0, 0.009, 10.1, -1),
    "min_tokens": _number(0, 1, 2, 6, 7, -1, 2**31),
    "logit_bias": _logit_bias,
    "logprobs": _number(True, False, None, 0, 1, 5, 20, 21, -1),
    "top_logprobs": _number(0, 1, 20, 21, -1, None),
    "echo": _number(True, True, False, None),
    "best_of": _number(1, 2, 20, None),
    "stream": _number(True, True, False, None),
    "stream_options": _number({"include_usage": True}, {}, None, {"x": 1}),
    "service_tier": _number("auto", "default", "priority", "flex", "batch", "x"),
    "user": _number("u", "", "\ud800", "x" * 5000),
    "metadata": _number({}, {"a": "b"}, {"a": 1}, {"a": "x" * 5000}),
    "response_format": _number({"type": "text"}, {"type": "json_object"}, {}, {"type": 1}),
    "structured_outputs": _number({}, {"choice": ["a"]}, {"json": {"$ref": "#"}}, {"regex": "("}),
    "guided_json": _number({"type": "object"}, "{", {"enum": []}, {"type": "x"}, {"not": {}}, {}),
    "guided_regex": _number("a+", "(a+)+$", "(?=a)", "", "\ud800", "[" * 9000),
    "guided_choice": _number(["a"], [], [""], ["\ud800"], ["a"] * 3000),
    "guided_grammar": _number('start: "a"', "start: start", "start: <|eos|>", "\x00", ""),
    "tools": _number([], None, [{"type": "function"}]),
    "suffix": _number("", "x", None),
    "model": _number("", "nobody", "../x", "x" * 5000, "\x00", "\ud800"),
}


def _edge_field(draw: random.Random, body: dict[str, Any]) -> None:
    field = draw.choice(list(_FIELDS))
    body[field] = _FIELDS[field](draw)


def _wrong_field(draw: random.Random, body: dict[str, Any]) -> None:
    body[draw.choice([*_FIELDS, "messages", "prompt"])] = draw.choice(_WRONG)


def _unknown_field(draw: random.Random, body: dict[str, Any]) -> None:
    names = (
        "",
        "Model",
        "__class__",
        "a.b",
        "`",
        "x" * 3000,
        "\x00",
        "\ud800",
        "é",
        "prompt_logprobs",
    )
    body[draw.choice(names)] = draw.choice(_WRONG)


def _drop_field(draw: random.Random, body: dict[str, Any]) -> None:
    if body:
        del body[draw.choice(list(body))]


def _engine_mix(draw: random.Random, body: dict[str, Any]) -> None:
    """Ask for much that is allowed at once: what samplers get wrong is combinations."""
    body |= {
        "temperature": draw.choice((0, 1e-9, 0.7, 2)),
        "top_k": draw.choice((0, 1, 2, VOCAB_SIZE)),
        "top_p": draw.choice((1e-12, 0.5, 1)),
        "min_p": draw.choice((0, 1)),
        "presence_penalty": draw.choice((-2, 0, 2)),
        "repetition_penalty": draw.choice((0.01, 1, 10)),
        "logit_bias": {
            str(draw.randrange(VOCAB_SIZE)): draw.choice((-100, 100)) for _ in range(300)
        },
        "n": draw.choice((1, 1, 2)),
        "stream": draw.random() < 0.5,
    }
    if "messages" in body:
        body |= {"logprobs": True, "top_logprobs": draw.choice((0, 20))}
    else:
        body |= {"logprobs": draw.choice((0, 20)), "echo": draw.random() < 0.5}


def _odd_messages(draw: random.Random, body: dict[str, Any]) -> None:
    if "messages" not in body:
        body["prompt"] = draw.choice(_PROMPTS)(draw)
        return
    content: Any = draw.choice(
        (
            *(
                draw.choice(_TEXTS),
                draw.choice(_WRONG),
                [{"type": "text", "text": draw.choice(_TEXTS)}],
            ),
            [{"type": "text"}],
            [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/"}}],
            [{}],
        )
    )
    message = {"role": draw.choice(_ROLES), "content": content}
    body["messages"] = [message] * draw.choice((1, 1, 2, 40, 1025))


_CHANGES: Final = (
    *(_edge_field, _edge_field, _edge_field, _wrong_field, _unknown_field, _drop_field),
    *(_engine_mix, _engine_mix, _odd_messages),
)


def _encoded(draw: random.Random, body: dict[str, Any]) -> bytes:
    escaped = draw.random() < 0.5
    # Unescaped lone surrogates become the invalid UTF-8 that a careless client sends.
    return json.dumps(body, ensure_ascii=escaped).encode("utf-8", "surrogatepass")


def _flip(draw: random.Random, text: bytes) -> bytes:
    data = bytearray(text)
    for _ in range(draw.randint(1, 8)):
        if data:
            data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data)


def _cut(draw: random.Random, text: bytes) -> bytes:
    return text[: draw.randrange(len(text) + 1)]


def _insert(draw: random.Random, text: bytes) -> bytes:
    at = draw.randrange(len(text) + 1)
    junk = (
        b"\xff",
        b"\xc0\xaf",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\x00",
        b'"',
        b"\\",
        b"\\u12",
    )
    return text[:at] + draw.choice(junk) + text[at:]


def _literal(draw: random.Random, text: bytes) -> bytes:
    """Add a field whose value no encoder would write."""
    field = draw.choice(list(_FIELDS))
    return text[:-1] + b', "%b": %b}' % (field.encode(), draw.choice(_LITERALS).encode())


def _nested(draw: random.Random, text: bytes) -> bytes:
    depth = draw.choice((31, 32, 33, 200, 1000, 5000, 100_000))
    opened, closed = draw.choice(((b"[", b"]"), (b'{"a":', b"}")))
    value = opened * depth + (b"1" + closed * depth if draw.random() < 0.7 else b"")
    field = draw.choice(("tools", "prompt", "metadata", "messages", "audio", "x"))
    return text[:-1] + b', "%b": %b}' % (field.encode(), value)


def _twice(draw: random.Random, text: bytes) -> bytes:
    """Send every field twice, the second time perhaps with another value."""
    return text[:-1] + b", " + text[1:]


def _other(draw: random.Random, text: bytes) -> bytes:
    whole = (b"", b" ", b"null", b"[]", b'""', b"0", b"{}", b"\xef\xbb\xbf" + text, text + b"x")
    more = (text + text, text.decode("utf-8", "replace").encode("utf-16"), b" " * 50_000 + text)
    return draw.choice((*whole, *more, draw.randbytes(draw.randrange(1, 300))))


def _huge(draw: random.Random, text: bytes) -> bytes:
    """Pass the cap on bodies, or come near it; rare, for each costs megabytes."""
    if draw.random() > 0.02:
        return _literal(draw, text)
    size = draw.choice(((4 << 20) - 1000, (4 << 20) + 1, 6 << 20))
    return text[:-1] + b', "user": "%b"}' % (b"x" * size)


_DAMAGES: Final = (_flip, _cut, _insert, _literal, _literal, _nested, _twice, _other, _huge)
