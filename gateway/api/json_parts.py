"""Encode a long document in short calls, the bytes the same as of one.

A call into the encoder keeps the interpreter for as long as it lasts: a fifth of a second for the
38 MB of a careful request, in which no other thread runs, that of the event loop included. So lists
are encoded some items at a time, and what comes out is never there as one string. A list may be an
iterator: what it would hold is then made as it is encoded.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar, cast

import msgspec

T = TypeVar("T")

# The largest items, log-probabilities with their twenty likeliest tokens, take 5 µs each.
_ITEMS_A_CALL: Final = 128
_PART_BYTES: Final = 64 << 10
# What a thread that holds the interpreter leaves of it to others, for each second that it takes.
_REST_RATIO: Final = 3.0


def lazily(items: Iterable[T]) -> list[T]:
    """Return an iterator that stands for a list in a document that is encoded in parts."""
    return cast(list[T], iter(items))


def encode_in_parts(document: msgspec.Struct) -> Iterator[bytes]:
    """Return a document's JSON in parts of about 64 KiB.

    Its structs, at any depth, have no options that change how they are encoded.
    """
    return gathered(_struct(document))


def gathered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join what comes to parts of about 64 KiB."""
    few: list[bytes] = []
    size_bytes = 0
    for piece in pieces:
        few.append(piece)
        size_bytes += len(piece)
        if size_bytes >= _PART_BYTES:
            yield b"".join(few)
            few, size_bytes = [], 0
    if few:
        yield b"".join(few)


def giving_way(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Pass parts on from a thread, and rest after each for longer than it took to make.

    A thread that only computes takes the interpreter back from the others as soon as it may, each
    time that one of them lets go of it for a moment. A step of the engine does so a hundred times.
    """
    began_s = time.thread_time()
    for part in parts:
        time.sleep(_REST_RATIO * (time.thread_time() - began_s))
        yield part
        began_s = time.thread_time()


def _value(value: Any) -> Iterator[bytes]:
    if isinstance(value, msgspec.Struct):
        yield from _struct(value)
    elif isinstance(value, (list, Iterator)):
        yield from _list(iter(value))
    else:
        yield msgspec.json.encode(value)


def _struct(struct: msgspec.Struct) -> Iterator[bytes]:
    before = b"{"
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if value is not msgspec.UNSET:
            yield b'%b"%b":' % (before, name.encode())
            yield from _value(value)
            before = b","
    yield b"}" if before == b"," else b"{}"


def _list(items: Iterator[Any]) -> Iterator[bytes]:
    yield b"["
    before = b""
    while batch := list(islice(items, _ITEMS_A_CALL)):
        yield before
        if any(isinstance(item, msgspec.Struct) and _is_deep(item) for item in batch):
            for number, item in enumerate(batch):
                yield b"," if number else b""
                yield from _struct(item)
        else:
            yield msgspec.json.encode(batch)[1:-1]
        before = b","
    yield b"]"


def _is_deep(struct: msgspec.Struct) -> bool:
    """Tell whether a struct holds another, whose lists may be long."""
    return any(
        isinstance(getattr(struct, name), msgspec.Struct) for name in struct.__struct_fields__
    )
