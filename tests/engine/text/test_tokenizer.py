"""Encoding prompts: special tokens, hostile text, broken files, several threads."""

from __future__ import annotations

import json
import subprocess
import sys
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from engine.errors import EngineError, ModelError
from engine.text.tokenizer import _IDS_A_CALL, InvalidText, Tokenizer, special_tokens


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """Make a byte-level tokenizer with bos and eos, as Llama 3 has it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|bos|>", "<|eos|>", "<|eot|>"])
    backend.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", 256)]
    )
    backend.enable_truncation(8)
    backend.enable_padding(length=8)
    backend.save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": "<|bos|>", "eos_token": {"content": "<|eos|>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def test_raw_prompts_get_the_post_processors_special_tokens(model_dir: Path) -> None:
    """A raw prompt starts with the bos token of tokenizer.json; a rendered chat has its own."""
    tokenizer = Tokenizer.from_dir(model_dir)
    raw = tokenizer.encode("hi")
    assert isinstance(raw, array)
    assert raw.typecode == "i"
    assert raw[0] == 256
    assert tokenizer.encode("<|bos|>hi", add_special_tokens=False) == raw
    assert tokenizer.decode(raw) == "hi"
    assert tokenizer.token_bytes(257) == b"<|eos|>"
    assert tokenizer.token_bytes(10**6) == b""


def test_special_tokens_are_spelled_where_asked(model_dir: Path) -> None:
    """Text with its special tokens gives the same tokens again; names are the vocabulary's."""
    tokenizer = Tokenizer.from_dir(model_dir)
    token_ids = tokenizer.encode("é<|eot|> x<|eos|>")
    spelled = tokenizer.decode(token_ids, spells_special=True)
    assert spelled == "<|bos|>é<|eot|> x<|eos|>"
    assert tokenizer.encode(spelled, add_special_tokens=False) == token_ids
    assert list(tokenizer.names([256, token_ids[-2], 10**6])) == ["<|bos|>", "x", ""]
    assert tokenizer.special_tokens == {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}


def test_a_files_truncation_and_padding_are_off(model_dir: Path) -> None:
    """Prompts are neither cut nor padded, whatever tokenizer.json says."""
    tokenizer = Tokenizer.from_dir(model_dir)
    assert len(tokenizer.encode("x" * 50)) == 51
    assert len(tokenizer.encode("x")) == 2


def test_every_end_token_is_known(model_dir: Path) -> None:
    """End tokens come from the generation config, the config and the tokenizer's config."""
    (model_dir / "config.json").write_text('{"eos_token_id": 4}')
    (model_dir / "generation_config.json").write_text('{"eos_token_id": [257, 258]}')
    tokenizer = Tokenizer.from_dir(model_dir)
    assert tokenizer.eos_token_ids == {4, 257, 258}
    assert tokenizer.vocab_size == 259


def test_special_tokens_are_read_from_old_and_new_files(model_dir: Path) -> None:
    """The newer file wins over special_tokens_map.json; both spellings are understood."""
    old = {"bos_token": {"content": "<old>"}, "pad_token": "<pad>", "additional": ["x"]}
    (model_dir / "special_tokens_map.json").write_text(json.dumps(old))
    named = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "pad_token": "<pad>"}
    assert special_tokens(model_dir) == named


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff", "a" * 100 + "\udc00\ud800"])
def test_lone_surrogates_are_refused_by_name(model_dir: Path, text: str) -> None:
    """Text without a UTF-8 form is a caller's error that says what is wrong."""
    with pytest.raises(InvalidText, match="lone surrogate") as caught:
        Tokenizer.from_dir(model_dir).encode(text)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, EngineError)


@pytest.mark.parametrize("text", ["", "\x00", "🙂" * 500, " \n\t ", "e\u0301 ﷺ \U0010ffff"])
def test_any_other_text_round_trips(model_dir: Path, text: str) -> None:
    """Whatever Unicode text comes in can be encoded and read back."""
    tokenizer = Tokenizer.from_dir(model_dir)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    "num_ids", [_IDS_A_CALL, _IDS_A_CALL + 1, 2 * _IDS_A_CALL, 2 * _IDS_A_CALL + 1]
)
def test_a_long_text_has_the_ids_that_the_library_gives(model_dir: Path, num_ids: int) -> None:
    """Ids that are copied in parts are all of them, in order."""
    backend = tokenizers.Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    backend.no_truncation()
    text = ("0123456789abc" * num_ids)[: num_ids - 1]  # the first token is put before it
    ids = Tokenizer.from_dir(model_dir).encode(text)
    assert len(ids) == num_ids
    assert ids.tolist() == backend.encode(text).ids


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"version": "1.0"}', "\x00\xff"])
def test_a_missing_or_broken_file_is_named_in_one_line(tmp_path: Path, content: str | None) -> None:
    """A person learns which file to mend, in one line."""
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json") as caught:
        Tokenizer.from_dir(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["{", "[]", "[" * 100_000])
def test_a_broken_config_beside_it_is_named(model_dir: Path, content: str) -> None:
    """A config that cannot be read stops the start rather than losing the end token."""
    (model_dir / "generation_config.json").write_text(content)
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        Tokenizer.from_dir(model_dir)


def test_threads_share_one_tokenizer(model_dir: Path) -> None:
    """Encoding and decoding at once from several threads gives what one thread gives."""
    tokenizer = Tokenizer.from_dir(model_dir)
    texts = [f"request {i} €🙂" * 20 for i in range(200)]
    with ThreadPoolExecutor(8) as pool:
        decoded = list(pool.map(lambda t: tokenizer.decode(tokenizer.encode(t)), texts))
    assert decoded == texts


def test_the_tokenizer_side_loads_no_torch() -> None:
    """The gateway tokenises without paying for torch."""
    code = (
        "import sys, engine.text.tokenizer, engine.text.chat_template, engine.text.stop_strings;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
