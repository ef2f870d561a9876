"""What a request's head may not contain, judged on the bytes that were sent.

Routes and rights are decided on `scope["path"]`, which is decoded. A proxy in front may have
judged the bytes, so a path that the two could read differently is refused: an encoded slash or
dot, `//`, `..`, a backslash. A Host that is no host has poisoned URLs built from it (CVE-2026-
48710), and a body whose length is told in two ways is where one request hides another (RFC 9112,
section 6.3).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from gateway.errors import MalformedRequest

Header = tuple[bytes, bytes]

_AMBIGUOUS = re.compile(rb"//|\\|%(?:2[eEfF]|5[cC]|[01][0-9a-fA-F]|7[fF])|(?:^|/)\.\.?(?:/|$)")
# A name, an IPv4 address or an IPv6 address in brackets, and a port.
_HOST = re.compile(rb"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")


def check_target(target: bytes) -> None:
    """Refuse a path, before its query, that others may read differently.

    Raises: `MalformedRequest`.
    """
    if b"%" not in target and b"/." not in target and b"//" not in target and b"\\" not in target:
        return
    if _AMBIGUOUS.search(target.partition(b"?")[0]):
        raise MalformedRequest(
            "The path may not contain '//', '..', a backslash, or an encoded slash or dot."
        )


def check_headers(headers: Sequence[Header], http_version: str) -> None:
    """Refuse heads that say a thing twice or nonsense. Raises: `MalformedRequest`."""
    # Of each name the last one: what may come once only is counted where names repeat.
    value_of = dict(headers)
    if len(value_of) < len(headers):
        names = [name for name, _ in headers]
        for name in (b"host", b"content-length", b"transfer-encoding"):
            if names.count(name) > 1:
                raise MalformedRequest(f"A request has one '{name.decode()}' header at most.")
    encoding = value_of.get(b"transfer-encoding")
    if encoding is not None:
        _check_encoding(encoding, value_of, http_version)
    host = value_of.get(b"host")
    if host is None:
        if http_version != "1.0":
            raise MalformedRequest("A request has one 'host' header.")
    elif not _is_host(host):
        raise MalformedRequest("The 'host' header is not a host.")


@lru_cache(maxsize=256)
def _is_host(host: bytes) -> bool:
    return _HOST.fullmatch(host) is not None


def _check_encoding(encoding: bytes, value_of: Mapping[bytes, bytes], http_version: str) -> None:
    if encoding.strip().lower() != b"chunked":
        raise MalformedRequest("The only transfer encoding is 'chunked'.")
    if b"content-length" in value_of or http_version == "1.0":
        raise MalformedRequest(
            "A body has either a content-length or chunks, and no chunks in 1.0."
        )
