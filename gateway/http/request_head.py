"""What a request's head may not contain, judged on the bytes that were sent.

Routes and rights are decided on `scope["path"]`, which is decoded. A proxy in front may have judged
the bytes, so a path that the two could read differently is refused: an encoded slash or dot, `//`,
`..`, a backslash. A Host that is no host has poisoned URLs built from it (CVE-2026-48710), and a
body whose length is told in two ways is where one request hides another (RFC 9112, section 6.3). A
target may name the host too (section 3.2.2), if it is the one of the Host header: what is judged
and routed then is its path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from gateway.errors import MalformedRequest

Header = tuple[bytes, bytes]

_AMBIGUOUS = re.compile(rb"//|\\|%(?:2[eEfF]|5[cC]|[01][0-9a-fA-F]|7[fF])|(?:^|/)\.\.?(?:/|$)")
_WITH_HOST = re.compile(rb"https?://([^/?#]+)([^#]*)", re.IGNORECASE | re.DOTALL)
# A name, an IPv4 address or an IPv6 address in brackets, and a port.
_HOST = re.compile(rb"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")


class RequestLine:
    """Look at the request lines of a connection as they were sent.

    The parser takes one without a version, as of 1991, and one with several spaces, and tells
    neither: where one request ends and the next begins must not depend on who reads them.
    """

    def __init__(self) -> None:
        self._came: bytes | bytearray = b""
        # Where in it the next line begins; behind chunks that is where it is found.
        self._from = 0
        self._is_exact = True

    def came(self, data: bytes, *, in_body: bool, in_head: bool) -> None:
        """Take what comes next, before it is read; in the midst of a head it is put together."""
        if in_head:
            if isinstance(self._came, bytes):
                self._came = bytearray(self._came)
            self._came += data
            return
        if in_body:
            self._from = max(0, self._from - len(self._came))
        else:
            self._from, self._is_exact = 0, True
        self._came = data

    def check(
        self, method: bytes, target: bytes, version: str, value_of: Mapping[bytes, bytes]
    ) -> None:
        """Refuse the line of a head that is complete, unless it reads as it was understood.

        `value_of` are the values of its headers. Raises: `MalformedRequest`.
        """
        line = b"%b %b HTTP/%b\r\n" % (method, target, version.encode())
        came, at = self._came, self._from
        if self._is_exact:
            while came[at : at + 1] in (b"\r", b"\n"):  # empty lines may come before
                at += 1
        else:
            at = max(0, came.find(line, at))
        if not came.startswith(line, at):
            raise MalformedRequest("The request line is not 'METHOD target HTTP/1.1'.")
        end = came.find(b"\r\n\r\n", at + len(line) - 2) + 4
        self._from = end + int(value_of.get(b"content-length", b"0"))
        self._is_exact = b"transfer-encoding" not in value_of


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


def without_host(target: bytes, value_of: Mapping[bytes, bytes]) -> bytes:
    """Return the path and the query of a target, which may have a host before them.

    `value_of` are the values of the headers. Raises: `MalformedRequest`: they name another host.
    """
    if target.startswith(b"/"):
        return target
    found = _WITH_HOST.fullmatch(target)
    if found is None:
        return target
    named, rest = found.groups()
    if named.lower() != value_of.get(b"host", named).lower() or not _is_host(named):
        raise MalformedRequest("The request's target and its 'host' header name different hosts.")
    return rest if rest.startswith(b"/") else b"/" + rest


def check_headers(headers: Sequence[Header], http_version: str) -> Mapping[bytes, bytes]:
    """Refuse heads that say a thing twice or nonsense; returns the values of the others by name.

    Raises: `MalformedRequest`.
    """
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
    return value_of


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
