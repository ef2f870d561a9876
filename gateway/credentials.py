"""What a token looks like, and the keys that prove it.

A token is `<prefix><kid:12><secret:32><crc:6>` in base62. `kid` is public: it names the row to
look up and may be logged. The secret has 154 bits at least, so that a fast MAC protects it (a slow
hash would only cost the server). The checksum is CRC-32 of everything before it, as GitHub's tokens
have it: scanners verify a find offline and typing errors never reach the database. It is no
security: anyone can compute it.

The last six characters of a secret that we issue are a tag, a MAC of what stands before them. Only
who holds the root secret can make one, so a stranger's token is told from ours without asking the
database. Tokens that were made without it, before there were tags or elsewhere, are good too, and
are told otherwise (`gateway.services.auth.issued`); to whatever knows no tags, these look alike.

Stored is `HMAC-SHA256(pepper, token)`, never the token. All keys of the process come from one
root secret, each by a label of its own (HKDF-Expand, RFC 5869, one block): no key serves two
purposes.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import zlib
from dataclasses import dataclass, field
from functools import cached_property

KEY_PREFIX = "sluice_live_"
ADMIN_PREFIX = "sluice_admin_"
SESSION_PREFIX = "sluice_session_"
LINK_PREFIX = "sluice_link_"
VISIT_PREFIX = "sluice_visit_"

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_KID_CHARS, _SECRET_CHARS, _TAG_CHARS, _CRC_CHARS = 12, 32, 6, 6
_BODY = re.compile(r"[0-9A-Za-z]{50}", re.ASCII)
_KID = re.compile(r"[0-9A-Za-z]{12}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Token:
    """Hold a well-formed token; whether it is live, only the store knows."""

    kid: str
    text: str = field(repr=False)


def new_token(prefix: str) -> Token:
    """Draw a token from the system's random source, as who has no root secret can."""
    kid = _draw(_KID_CHARS)
    return _token(kid, prefix + kid + _draw(_SECRET_CHARS))


def parse_token(text: str, prefix: str) -> Token | None:
    """Return the token in `text`, or None where prefix, alphabet, length or checksum is wrong."""
    if not text.startswith(prefix) or _BODY.fullmatch(text, len(prefix)) is None:
        return None
    if _checksum(text[:-_CRC_CHARS]) != text[-_CRC_CHARS:]:
        return None
    return Token(kid=text[len(prefix) : len(prefix) + _KID_CHARS], text=text)


def is_weak(secret: str | bytes) -> bool:
    """Tell whether a secret, of 32 characters or bytes, has too few different ones to be drawn.

    Of a million that are drawn none has.
    """
    return len(set(secret)) < 10


def is_kid(text: str) -> bool:
    """Tell whether `text` has the form of a key's public id."""
    return _KID.fullmatch(text) is not None


def _draw(length: int) -> str:
    """Draw base62 characters without bias: bytes of 248 and above are drawn again."""
    chars: list[str] = []
    while len(chars) < length:
        chars += [_ALPHABET[b % 62] for b in secrets.token_bytes(length) if b < 248]
    return "".join(chars[:length])


def _token(kid: str, unsigned: str) -> Token:
    return Token(kid=kid, text=unsigned + _checksum(unsigned))


def _checksum(unsigned: str) -> str:
    return _base62(zlib.crc32(unsigned.encode("ascii")), _CRC_CHARS)


def _base62(value: int, length: int) -> str:
    """Write the last `length` digits of a number."""
    chars = []
    for _ in range(length):
        value, digit = divmod(value, 62)
        chars.append(_ALPHABET[digit])
    return "".join(reversed(chars))


@dataclass(frozen=True)
class Secrets:
    """Derive the process's keys from one root secret of 32 random bytes.

    `pepper_id` names the root without revealing it; it is stored beside every MAC.
    """

    root: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.root) != 32:
            raise ValueError("the root secret must be 32 bytes")

    @cached_property
    def pepper(self) -> bytes:
        return self._derive("api-key-pepper")

    @cached_property
    def admin_pepper(self) -> bytes:
        return self._derive("admin-token-pepper")

    @cached_property
    def session_pepper(self) -> bytes:
        return self._derive("session-pepper")

    @cached_property
    def form_key(self) -> bytes:
        return self._derive("form-token")

    @cached_property
    def visit_key(self) -> bytes:
        return self._derive("sign-in-visit")

    @cached_property
    def tag_key(self) -> bytes:
        return self._derive("token-tag")

    @cached_property
    def kv_salt_key(self) -> bytes:
        return self._derive("kv-cache-salt")

    @cached_property
    def idempotency_key(self) -> bytes:
        return self._derive("idempotency-answers")

    @cached_property
    def responses_key(self) -> bytes:
        return self._derive("stored-responses")

    @cached_property
    def audit_key(self) -> bytes:
        return self._derive("audit-chain")

    @cached_property
    def backup_key(self) -> bytes:
        return self._derive("backup-manifest")

    @cached_property
    def pepper_id(self) -> str:
        return self._derive("pepper-id").hex()[:16]

    def issue(self, prefix: str, kid: str | None = None) -> Token:
        """Draw a token with our tag; with `kid`, another of the same name."""
        kid = kid or _draw(_KID_CHARS)
        drawn = prefix + kid + _draw(_SECRET_CHARS - _TAG_CHARS)
        return _token(kid, drawn + self._tag(drawn))

    def is_tagged(self, token: Token) -> bool:
        """Tell whether a token has our tag: one that has not may still be ours."""
        drawn = token.text[: -_TAG_CHARS - _CRC_CHARS]
        tag = token.text[-_TAG_CHARS - _CRC_CHARS : -_CRC_CHARS]
        return hmac.compare_digest(tag, self._tag(drawn))

    def key_mac(self, token: Token) -> bytes:
        """Compute what the store keeps of an API key."""
        return hmac.digest(self.pepper, token.text.encode("ascii"), "sha256")

    def admin_mac(self, token: Token) -> bytes:
        """Compute what the store keeps of an admin token."""
        return hmac.digest(self.admin_pepper, token.text.encode("ascii"), "sha256")

    def session_mac(self, token: Token) -> bytes:
        """Compute what the store keeps of a session's id, or of a link that sets a password."""
        return hmac.digest(self.session_pepper, token.text.encode("ascii"), "sha256")

    def form_token(self, token: Token) -> str:
        """Compute what the forms of a session carry: of no other session, and of no use after."""
        return hmac.digest(self.form_key, token.text.encode("ascii"), "sha256").hex()

    def visit_value(self, visit: str, what: str) -> str:
        """Compute what a visit to another issuer carries, 64 characters: who has one has no other.

        `visit` is its id and when it began, `what` is for what.
        """
        return hmac.digest(self.visit_key, f"{what} {visit}".encode(), "sha256").hex()

    def _tag(self, drawn: str) -> str:
        mac = hmac.digest(self.tag_key, drawn.encode("ascii"), "sha256")
        return _base62(int.from_bytes(mac[:8], "big"), _TAG_CHARS)

    def _derive(self, label: str) -> bytes:
        return hmac.digest(self.root, b"sluice/1/" + label.encode("ascii") + b"\x01", "sha256")


def token_digest(text: str) -> bytes:
    """Hash a whole token for use as a cache key."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
