"""Names for the content of KV blocks: a chain of SHA-256 over full blocks of token ids.

The KV of a token depends on every token before it, so a block's name covers its parent's name.
The chain starts at a salt that the caller chooses: two salts never share a name, and whoever
does not know the salt can neither compute nor guess one. Fixed widths (a digest, then 4 bytes a
token) leave no two inputs that read the same; the salt is framed by its tag.
"""

from __future__ import annotations

from array import array
from hashlib import sha256

_ROOT_TAG = b"sluice kv root\x00"


def root_hash(salt: bytes) -> bytes:
    """Start a chain for the holder of `salt`, which may be of any length."""
    return sha256(_ROOT_TAG + salt).digest()


def extend_chain(
    chain: list[bytes], root: bytes, token_ids: array[int], *, block_size: int
) -> None:
    """Append to `chain` the names of the full blocks of `token_ids` that it lacks."""
    parent = chain[-1] if chain else root
    for index in range(len(chain), len(token_ids) // block_size):
        start = index * block_size
        parent = sha256(parent + token_ids[start : start + block_size].tobytes()).digest()
        chain.append(parent)
