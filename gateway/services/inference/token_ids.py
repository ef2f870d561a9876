"""What token ids a request may name, and how many characters a token can stand for."""

from __future__ import annotations

from array import array
from typing import Final

from gateway.errors import InvalidRequest

# No tokenizer in use turns more than this many characters into one token; a longer prompt
# cannot fit, and is refused before it costs a tokenisation.
MAX_CHARS_PER_TOKEN: Final = 8


def checked_ids(ids: array[int], vocab_size: int, param: str) -> array[int]:
    """Return ids that are in the vocabulary. Raises: `InvalidRequest`: one is not."""
    if ids and max(ids) < vocab_size and min(ids) >= 0:
        return ids
    for index, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                f"Token id {token_id} is outside the vocabulary of {vocab_size}.",
                param=f"{param}[{index}]",
            )
    return ids
