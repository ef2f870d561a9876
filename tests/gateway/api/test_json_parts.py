"""A document in parts is the document."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.json_parts import encode_in_parts, gathered, lazily


class Leaf(msgspec.Struct):
    name: str
    values: list[Any] = []
    missing: int | msgspec.UnsetType = msgspec.UNSET


class Node(msgspec.Struct):
    leaf: Leaf | None
    leaves: list[Leaf] = []
    more: dict[str, float] = {}


class Root(msgspec.Struct):
    nodes: list[Node]
    number: int = 7


VALUES = st.lists(
    st.none() | st.integers(-(2**53), 2**53) | st.text() | st.floats(allow_nan=False), max_size=300
)
LEAVES = st.builds(Leaf, st.text(), VALUES, st.just(msgspec.UNSET) | st.integers(0, 9))
NODES = st.builds(
    Node,
    st.none() | LEAVES,
    st.lists(LEAVES, max_size=3),
    st.dictionaries(st.text(), st.floats(-1, 1), max_size=3),
)


@given(st.builds(Root, st.lists(NODES, max_size=4)))
def test_the_parts_are_the_whole(root: Root) -> None:
    """Structs in lists in structs, long lists and empty ones give the bytes of one call."""
    assert b"".join(encode_in_parts(root)) == msgspec.json.encode(root)


def test_a_list_may_be_made_as_it_is_encoded() -> None:
    """Its items are asked for a few at a time, and the parts are none of them long."""
    asked = 0

    def items() -> Any:
        nonlocal asked
        for number in range(10_000):
            asked += 1
            yield Leaf("x" * 100, [number])

    document = Root([Node(Leaf("", lazily(items())))])
    parts = encode_in_parts(document)
    first = next(parts)
    assert 0 < asked < 1_000
    whole = [first, *parts]
    assert max(map(len, whole)) < 128 << 10
    [node] = msgspec.json.decode(b"".join(whole), type=Root).nodes
    assert node.leaf is not None
    assert [leaf["values"] for leaf in node.leaf.values] == [[number] for number in range(10_000)]


def test_small_pieces_are_gathered() -> None:
    """A hundred thousand pieces of a few bytes become a few parts, with nothing lost."""
    pieces = [b"%d," % number for number in range(100_000)]
    parts = list(gathered(pieces))
    assert b"".join(parts) == b"".join(pieces)
    assert len(parts) < 12
