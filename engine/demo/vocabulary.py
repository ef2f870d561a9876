"""Train the demo model's tokenizer: BPE of 1,024 tokens that can spell any text.

Words keep the space before them as it is (no ▁ to put in and take out again), and characters
that the alphabet lacks fall back to bytes, so that decoding gives back exactly what was encoded.
Of the 1,024 tokens five are special, 256 are bytes, 96 characters, the rest merges.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors, trainers

VOCAB_SIZE = 1024
BOS, EOS, SYSTEM, USER, ASSISTANT = SPECIAL_TOKENS = (
    "<|bos|>",
    "<|eos|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
)
_ALPHABET = ["\n", *(chr(code) for code in range(0x20, 0x7F))]
# A word with its space, a digit, a run of punctuation, white space.
_WORDS = r" ?[A-Za-z]+| ?[0-9]| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s"


def train_tokenizer(texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Learn merges from `texts` and wrap them with special tokens and byte fallback."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    learnt = tokenizers.Tokenizer(models.BPE())
    learnt.pre_tokenizer = pre_tokenizers.Split(Regex(_WORDS), "isolated")
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(byte_tokens) - len(SPECIAL_TOKENS),
        initial_alphabet=_ALPHABET,
        limit_alphabet=len(_ALPHABET),
        show_progress=False,
    )
    learnt.train_from_iterator(texts, trainer)
    merges = [tuple(pair) for pair in json.loads(learnt.to_str())["model"]["merges"]]
    tokens = [*SPECIAL_TOKENS, *byte_tokens, *_ALPHABET, *("".join(pair) for pair in merges)]
    vocab = {token: i for i, token in enumerate(tokens)}
    assert len(vocab) == VOCAB_SIZE, len(vocab)

    backend = tokenizers.Tokenizer(models.BPE(vocab, merges, byte_fallback=True))
    backend.pre_tokenizer = learnt.pre_tokenizer
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    backend.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, vocab[BOS])]
    )
    return backend


def save_tokenizer(backend: tokenizers.Tokenizer, model_dir: Path, *, max_length: int) -> None:
    """Write tokenizer.json and the tokenizer_config.json that transformers wants beside it."""
    backend.save(str(model_dir / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
    }
    (model_dir / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
