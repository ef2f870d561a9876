"""Text to token ids and back, from the `tokenizer.json` of a Hugging Face directory.

Who adds the beginning-of-sequence token: for raw prompts the post-processor in tokenizer.json
(`add_special_tokens=True`); for chats the template writes its own special tokens, so a rendered
chat is encoded with `add_special_tokens=False` and never gets two.

A tokenizer may be used from any number of threads; encoding releases the interpreter's lock, so
a long prompt encoded in a worker thread does not stall the event loop. Loads no torch.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

# The library's own thread pool would compete with the engine for the cores, and warns on every
# fork once it has been used. Read when a text is first encoded.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import tokenizers

from engine.errors import EngineError, ModelError
from engine.model_dir import refuse_lfs_pointer, why_no_tokenizer
from engine.model_file import SIZE_MAX_BYTES, check_model_file, read_model_file
from engine.text.detokenizer import Detokenizer, TokenText

# Ids that are copied out of the library by one call, which other threads wait for.
_IDS_A_CALL: Final = 1 << 14


class InvalidText(EngineError, ValueError):
    """Send text that has a UTF-8 form: it holds half of a surrogate pair."""


class Tokenizer:
    """Encode prompts and decode output for one model."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_token_ids: frozenset[int] = frozenset(),
        special_tokens: Mapping[str, str] | None = None,
    ) -> None:
        # A file may ask for truncation or padding, which would change prompts without a word.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._text = TokenText(backend)
        self._spelled_text = TokenText(backend, spells_special=True)
        self._marked_texts: dict[frozenset[str], TokenText] = {}
        self.eos_token_ids = eos_token_ids
        # By what they are for: `bos_token`, `eos_token`, …
        self.special_tokens = dict(special_tokens or {})
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)

    @classmethod
    def from_dir(cls, model_dir: Path) -> Tokenizer:
        """Read tokenizer.json, and the end tokens from the configs beside it.

        Raises: `ModelError`: a file is missing or broken.
        """
        path = model_dir / "tokenizer.json"
        if not path.is_file():
            raise ModelError(why_no_tokenizer(model_dir))
        refuse_lfs_pointer(path)
        check_model_file(path, SIZE_MAX_BYTES)
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception for every fault
            raise ModelError(f"{path}: not a readable tokenizer: {_one_line(error)}") from error
        return cls(
            backend,
            eos_token_ids=_eos_token_ids(model_dir, backend),
            special_tokens=special_tokens(model_dir),
        )

    def encode(self, text: str, *, add_special_tokens: bool = True) -> array[int]:
        """Return the token ids of `text`.

        Special tokens spelled out in `text` are read as such, as a rendered chat needs.
        Raises: `InvalidText`: `text` holds a lone surrogate.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            message = f"character {error.start} is a lone surrogate, which no UTF-8 text can hold"
            raise InvalidText(message) from error
        # The batch call, because it is the one that releases the interpreter's lock.
        [encoding] = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return _ids_of(encoding)

    def decode(self, token_ids: Iterable[int], *, spells_special: bool = False) -> str:
        """Return the text of `token_ids` without special tokens, as a `Detokenizer` would.

        With `spells_special` they are in it, so that encoding it gives them again.
        """
        return (self._spelled_text if spells_special else self._text).decode(token_ids)

    def to_json(self) -> str:
        """Return the text of a tokenizer.json that this can be read from again."""
        return str(self._backend.to_str())

    def names(self, token_ids: Iterable[int]) -> Iterator[str]:
        """Spell each token as the vocabulary does; one that only the model knows is empty."""
        return (self._backend.id_to_token(token_id) or "" for token_id in token_ids)

    def detokenizer(self, *, spelled: frozenset[str] = frozenset()) -> Detokenizer:
        """Make the incremental decoder of one sequence; special tokens of `spelled` are shown."""
        if not spelled:
            return self._text.detokenizer()
        text = self._marked_texts.get(spelled)
        if text is None:
            text = self._marked_texts[spelled] = TokenText(self._backend, spelled=spelled)
        return text.detokenizer()

    def special_id_of(self, token: str) -> int | None:
        """Return the id of a special token by how it is spelled; None: it is none."""
        token_id = self.id_of(token)
        return token_id if token_id in self._text.special_ids else None

    def id_of(self, token: str) -> int | None:
        """Return the id of a token by how the vocabulary spells it."""
        token_id: int | None = self._backend.token_to_id(token)
        return token_id

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that one token adds to a text; half a character is possible."""
        return self._text.bytes_of(token_id)


def read_json_object(path: Path) -> dict[str, Any]:  # the values are whatever the file holds
    """Read a JSON object; a file that is not there counts as empty.

    Raises: `ModelError`: the file is unreadable or holds something else.
    """
    try:
        value = json.loads(read_model_file(path).decode())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not readable as JSON: {_one_line(error)}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object")
    return value


def special_tokens(model_dir: Path) -> dict[str, str]:
    """Return the named special tokens (`bos_token`, `eos_token`, …) of a model directory.

    Raises: `ModelError`: a config is broken.
    """
    named: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        for name, value in read_json_object(model_dir / file).items():
            content = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(content, str):
                named[name] = content
    return named


def _eos_token_ids(model_dir: Path, backend: tokenizers.Tokenizer) -> frozenset[int]:
    found: set[int] = set()
    for file in ("config.json", "generation_config.json"):
        value = read_json_object(model_dir / file).get("eos_token_id")
        values: Sequence[object] = value if isinstance(value, list) else [value]
        found.update(v for v in values if isinstance(v, int) and not isinstance(v, bool))
    eos_token = special_tokens(model_dir).get("eos_token")
    token_id = None if eos_token is None else backend.token_to_id(eos_token)
    return frozenset(found if token_id is None else found | {token_id})


def _ids_of(encoding: tokenizers.Encoding) -> array[int]:
    """Copy an encoding's ids, a part at a time: making a list of them holds the interpreter."""
    if len(encoding) > _IDS_A_CALL:
        encoding.truncate(_IDS_A_CALL)
    ids = array("i", encoding.ids)
    for part in encoding.overflowing:
        ids.fromlist(part.ids)
    return ids


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
