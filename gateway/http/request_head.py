"""What a request's head may not contain, judged on the bytes that were sent.

Routes and rights are decided on `scope["path"]`, which is decoded. A proxy in front may have
judged the bytes, so a path that the two could read differently is refused: an encoded slash or
dot, `//`, `..`, a backslash. A Host that is no host has poisoned URLs built from it (CVE-2026-
48710), and a body whose length is told in two ways is where one request hides another (RFC 9112,
section 6.3).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gateway.errors import MalformedRequest

Header = tuple[bytes, bytes]

_AMBIGUOUS = re.compile(rb"//|\\|%(?:2[eEfF]|5[cC]|[01][0-9a-fA-F]|7[fF])|(?:^|/)\.\.?(?:/|$)")
# A name, an IPv4 address or an IPv6 address in brackets, and a port.
_HOST = re.compile(rb"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")


def check_path(path: bytes) -> None:
    """Refuse a path that others may read differently. Raises: `MalformedRequest`."""
    if b"%" not in path and b"/." not in path and b"//" not in path and b"\\" not in path:
        return
    if _AMBIGUOUS.search(path):
        raise MalformedRequest(
            "The path may not contain '//', '..', a backslash, or an encoded slash or dot."
        )


def check_headers(headers: Iterable[Header], http_version: str) -> None:
    """Refuse heads that say a thing twice or nonsense. Raises: `MalformedRequest`."""
    hosts: list[bytes] = []
    has_length = has_encoding = False
    for name, value in headers:
        if name == b"host":
            hosts.append(value)
        elif name == b"content-length":
            has_length = True
        elif name == b"transfer-encoding":
            has_encoding = True
            if value.strip().lower() != b"chunked":
                raise MalformedRequest("The only transfer encoding is 'chunked'.")
    if has_encoding and (has_length or http_version == "1.0"):
        raise MalformedRequest(
            "A body has either a content-length or chunks, and no chunks in 1.0."
        )
    if len(hosts) > 1 or (not hosts and http_version == "1.1"):
        raise MalformedRequest("A request has one 'host' header.")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise MalformedRequest("The 'host' header is not a host.")
