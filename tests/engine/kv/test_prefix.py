"""The names of blocks."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from engine.kv.prefix import extend_chain, root_hash

tokens = st.lists(st.integers(0, 2**31 - 1), max_size=20).map(lambda ids: array("i", ids))


def chain_of(salt: bytes, token_ids: array[int], block_size: int = 4) -> list[bytes]:
    chain: list[bytes] = []
    extend_chain(chain, root_hash(salt), token_ids, block_size=block_size)
    return chain


@given(tokens, tokens)
def test_names_agree_on_the_common_prefix_alone(a: array[int], b: array[int]) -> None:
    """Two sequences have as many equal names as full blocks of common prefix."""
    common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    num_common = (min(len(a), len(b)) if common is None else common) // 4
    names_a, names_b = chain_of(b"salt", a), chain_of(b"salt", b)
    assert names_a[:num_common] == names_b[:num_common]
    assert not set(names_a[num_common:]) & set(names_b)


@given(st.binary(max_size=8), st.binary(max_size=8), tokens)
def test_salts_share_no_name(salt: bytes, other: bytes, token_ids: array[int]) -> None:
    """The same tokens under another salt have none of the same names."""
    if salt != other:
        assert not set(chain_of(salt, token_ids)) & set(chain_of(other, token_ids))


@given(tokens, st.integers(0, 20))
def test_chain_grows_as_tokens_do(token_ids: array[int], cut: int) -> None:
    """Extending a chain in two goes names the blocks as one go does."""
    chain = chain_of(b"salt", token_ids[:cut])
    extend_chain(chain, root_hash(b"salt"), token_ids, block_size=4)
    assert chain == chain_of(b"salt", token_ids)
    assert len(chain) == len(token_ids) // 4


def test_block_size_is_part_of_no_other_chain() -> None:
    """The same tokens in blocks of another size have none of the same names."""
    token_ids = array("i", range(16))
    assert not set(chain_of(b"s", token_ids, 4)) & set(chain_of(b"s", token_ids, 8))
