"""Tokens and derived keys."""

from __future__ import annotations

import hmac
import inspect
import re
import zlib
from functools import cached_property

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.credentials import (
    ADMIN_PREFIX,
    KEY_PREFIX,
    Secrets,
    Token,
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


@pytest.mark.parametrize("prefix", [KEY_PREFIX, ADMIN_PREFIX])
def test_an_issued_token_shows_that_it_is_ours(prefix: str) -> None:
    """It has the form that all have, and a tag that no other root and no stranger makes."""
    token = SECRETS.issue(prefix)
    assert parse_token(token.text, prefix) == token
    assert SECRETS.is_tagged(token)
    assert not Secrets(bytes(32)).is_tagged(token)
    assert not any(SECRETS.is_tagged(new_token(prefix)) for _ in range(1000))
    renewed = SECRETS.issue(prefix, token.kid)
    assert renewed.kid == token.kid
    assert renewed.text != token.text
    assert SECRETS.is_tagged(renewed)


def test_a_tag_is_of_everything_before_it() -> None:
    """Whatever character of a token is another, with its checksum right, the tag is wrong."""
    token = SECRETS.issue(KEY_PREFIX)
    begin, end = len(KEY_PREFIX), len(token.text) - 6
    for position in range(begin, end):
        other = "a" if token.text[position] != "a" else "b"
        unsigned = token.text[:position] + other + token.text[position + 1 : end]
        forged = Token(token.kid, unsigned + base62(zlib.crc32(unsigned.encode())))
        assert parse_token(forged.text, KEY_PREFIX) is not None
        assert not SECRETS.is_tagged(forged)
    as_admin = ADMIN_PREFIX + token.text[begin:end]
    assert not SECRETS.is_tagged(Token(token.kid, as_admin + "000000"))


def test_the_tag_is_fixed() -> None:
    """A token that was issued stays ours: six base62 digits of an HMAC under a key of its own."""
    unsigned = f"{KEY_PREFIX}{'a' * 12}{'b' * 26}"
    mac = hmac.digest(SECRETS.tag_key, unsigned.encode(), "sha256")
    tag = base62(int.from_bytes(mac[:8], "big"))
    assert SECRETS.is_tagged(Token("a" * 12, f"{unsigned}{tag}000000"))


def base62(value: int) -> str:
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    return "".join(digits[value // 62**place % 62] for place in reversed(range(6)))


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
    """Every key that there is has a label of its own: no two purposes share one, another root
    changes all of them, and each is a block of HKDF-Expand."""
    names = {name for name, one in vars(Secrets).items() if isinstance(one, cached_property)}
    assert names >= {"pepper", "form_key", "audit_key", "backup_key", "pepper_id"}
    keys = sorted(names - {"pepper_id"})
    other = Secrets(bytes(32))
    derived = [getattr(secrets, name) for secrets in (SECRETS, other) for name in keys]
    assert len(set(derived)) == 2 * len(keys)
    assert {len(key) for key in derived} == {32}
    assert SECRETS.root not in derived
    assert SECRETS.pepper_id != other.pepper_id
    source = inspect.getsource(Secrets)
    labels = re.findall(r'_derive\("([a-z-]+)"\)', source)
    assert len(labels) == len(set(labels)) == len(names)
    expanded = HKDFExpand(SHA256(), 32, b"sluice/1/audit-chain")
    assert expanded.derive(SECRETS.root) == SECRETS.audit_key


def test_what_serves_one_purpose_is_nothing_to_another() -> None:
    """One text has another MAC as a key, an admin's token, a session's and a form's."""
    token = new_token(KEY_PREFIX)
    macs = {SECRETS.key_mac(token), SECRETS.admin_mac(token), SECRETS.session_mac(token)}
    assert len(macs | {bytes.fromhex(SECRETS.form_token(token))}) == 4


def test_nothing_secret_is_in_a_repr() -> None:
    """A token or a root secret that ends up in a log line is not readable there."""
    token = new_token(KEY_PREFIX)
    assert token.text not in repr(token)
    assert repr(SECRETS.root)[2:-1] not in repr(SECRETS)
