"""Incremental decoding: whole characters, nothing lost, whatever the batches."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from engine.text.detokenizer import TokenText

CORPUS = [
    "Sluice streams tokens. The scheduler decides which request runs next.",
    "Grüße aus Köln: 3 € für zwei Äpfel, naïve café, élève.",
    "日本語のテキスト、そして 🙂 と 👩‍👩‍👧。",
]


def byte_level() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens(["<tool é>"])
    return backend


def sentencepiece() -> tokenizers.Tokenizer:
    """Build what converted Llama 2 and Mistral checkpoints hold: byte fallback, a leading ▁."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=120, show_progress=False, limit_alphabet=40)
    trained.train_from_iterator(CORPUS, trainer)
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for token in sorted(trained.get_vocab(), key=trained.get_vocab().__getitem__):
        vocab.setdefault(token, len(vocab))
    vocab.setdefault("▁", len(vocab))
    backend = tokenizers.Tokenizer(
        models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(["<s>", "</s>"])
    return backend


def metaspace() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>", "</s>"], show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def word_piece() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[UNK]"], show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


BACKENDS = {f.__name__: f() for f in (byte_level, sentencepiece, metaspace, word_piece)}
every_backend = pytest.mark.parametrize("name", BACKENDS)


def stream(text: TokenText, batches: Iterable[list[int]]) -> list[str]:
    detokenizer = text.detokenizer()
    return [*(detokenizer.push(batch) for batch in batches), detokenizer.finish()]


def split(ids: list[int], data: st.DataObject) -> list[list[int]]:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(ids)))))
    return [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


texts = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(" eé€🙂\n�")))


@every_backend
@given(data=st.data())
def test_pieces_of_encoded_text_add_up_to_the_librarys_own_decoding(
    name: str, data: st.DataObject
) -> None:
    """Text that was encoded comes back the same for every split into batches."""
    backend = BACKENDS[name]
    ids = backend.encode(data.draw(texts)).ids
    pieces = stream(TokenText(backend), split(ids, data))
    assert "".join(pieces) == backend.decode(ids, skip_special_tokens=True)


@every_backend
@given(data=st.data())
def test_any_ids_decode_the_same_in_any_batches(name: str, data: st.DataObject) -> None:
    """Ids that no encoder makes also read the same however they are batched."""
    backend = BACKENDS[name]
    ids = data.draw(st.lists(st.integers(0, backend.get_vocab_size() + 3), max_size=40))
    text = TokenText(backend)
    assert "".join(stream(text, split(ids, data))) == text.decode(ids)


@pytest.mark.parametrize("name", ["byte_level", "metaspace", "word_piece"])
@given(data=st.data())
def test_any_ids_read_as_the_library_reads_them(name: str, data: st.DataObject) -> None:
    """Where no byte fallback is involved, invalid sequences too match the library's decoder."""
    backend = BACKENDS[name]
    ids = data.draw(st.lists(st.integers(0, backend.get_vocab_size() + 3), max_size=40))
    assert TokenText(backend).decode(ids) == backend.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece"])
def test_a_character_is_never_cut(name: str) -> None:
    """A character of several tokens appears at once, with its last token."""
    backend = BACKENDS[name]
    ids = backend.encode("x🙃𝄞ñ€y", add_special_tokens=False).ids
    pieces = stream(TokenText(backend), ([i] for i in ids))
    assert len(ids) > len("x🙃𝄞ñ€y")
    assert "".join(pieces).strip() == "x🙃𝄞ñ€y"
    assert not any("�" in piece for piece in pieces)


def test_an_unfinished_character_is_not_lost() -> None:
    """Generation may end inside a character: `finish` then gives one replacement character."""
    for name in ("byte_level", "sentencepiece"):
        backend = BACKENDS[name]
        ids = backend.encode("a🙃", add_special_tokens=False).ids[:-1]
        pieces = stream(TokenText(backend), [ids])
        assert pieces[0].strip() == "a"
        assert pieces[1] == "�"


def test_a_broken_byte_leaves_the_text_before_it_alone() -> None:
    """In a byte-fallback run a stray byte becomes one U+FFFD and its neighbours stay."""
    backend = BACKENDS["sentencepiece"]
    ids = [backend.token_to_id(f"<0x{byte:02X}>") for byte in "é".encode() + b"\xff" + "ñ".encode()]
    assert "".join(stream(TokenText(backend), ([i] for i in ids))) == "é�ñ"


def test_special_tokens_are_dropped_and_do_not_eat_spaces() -> None:
    """A special token inside the output leaves no text and no missing space."""
    backend = BACKENDS["sentencepiece"]
    ids = backend.encode("The text", add_special_tokens=False).ids
    end = backend.token_to_id("</s>")
    cut = len(backend.encode("The", add_special_tokens=False).ids)
    batches = [ids[:cut], [end], [end, *ids[cut:]], [end]]
    assert "".join(stream(TokenText(backend), batches)) == "The text"


def test_text_is_not_held_back_longer_than_a_character() -> None:
    """Plain text is handed on with its own token, so that streams do not lag."""
    for name in BACKENDS:
        backend = BACKENDS[name]
        ids = backend.encode("The scheduler decides which", add_special_tokens=False).ids
        detokenizer = TokenText(backend).detokenizer()
        sent = ""
        for n, token_id in enumerate(ids, 1):
            sent += detokenizer.push([token_id])
            assert sent == backend.decode(ids[:n], skip_special_tokens=True)
