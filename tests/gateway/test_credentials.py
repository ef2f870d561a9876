"""Tokens and derived keys."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.credentials import (
    ADMIN_PREFIX,
    KEY_PREFIX,
    Secrets,
    new_token,
    parse_token,
)

SECRETS = Secrets(bytes(range(32)))


@pytest.mark.parametrize("prefix", [KEY_PREFIX, ADMIN_PREFIX])
def test_a_new_token_has_the_promised_form_and_parses(prefix: str) -> None:
    """A drawn token is prefix, 12 id, 32 secret and 6 checksum characters of base62."""
    token = new_token(prefix)
    assert re.fullmatch(prefix + "[0-9A-Za-z]{50}", token.text)
    assert token.kid == token.text[len(prefix) :][:12]
    assert parse_token(token.text, prefix) == token


@given(st.data())
def test_one_changed_character_is_refused_offline(data: st.DataObject) -> None:
    """Whatever single character of a token is replaced by whatever other, it no longer parses."""
    text = new_token(KEY_PREFIX).text
    position = data.draw(st.integers(0, len(text) - 1))
    character = data.draw(st.characters())
    assume(character != text[position])
    assert parse_token(text[:position] + character + text[position + 1 :], KEY_PREFIX) is None


@given(st.text())
def test_arbitrary_text_is_refused_without_an_error(text: str) -> None:
    """No text after the prefix makes the parser raise, or passes by luck."""
    assert parse_token(KEY_PREFIX + text, KEY_PREFIX) is None


def test_a_token_of_another_kind_is_refused() -> None:
    """An admin token is no API key and the other way round."""
    assert parse_token(new_token(ADMIN_PREFIX).text, KEY_PREFIX) is None
    assert parse_token(new_token(KEY_PREFIX).text, ADMIN_PREFIX) is None


def test_the_checksum_is_fixed() -> None:
    """A token from elsewhere stays valid: the checksum is CRC-32 in six base62 digits."""
    assert parse_token(f"{KEY_PREFIX}{'a' * 12}{'b' * 32}14DJ4p", KEY_PREFIX) is not None


def test_derived_keys_differ_by_purpose_and_root() -> None:
    """No two purposes share a key, and another root changes all of them."""
    other = Secrets(bytes(32))
    derived = [
        key
        for secrets in (SECRETS, other)
        for key in (secrets.pepper, secrets.admin_pepper, secrets.kv_salt_key)
    ]
    assert len(set(derived)) == 6
    assert {len(key) for key in derived} == {32}
    assert SECRETS.root not in derived
    assert SECRETS.pepper_id != other.pepper_id


def test_nothing_secret_is_in_a_repr() -> None:
    """A token or a root secret that ends up in a log line is not readable there."""
    token = new_token(KEY_PREFIX)
    assert token.text not in repr(token)
    assert repr(SECRETS.root)[2:-1] not in repr(SECRETS)
