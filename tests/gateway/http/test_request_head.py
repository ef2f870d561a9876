"""What a request's head may not contain."""

from __future__ import annotations

import pytest

from gateway.errors import MalformedRequest
from gateway.http.request_head import check_headers, check_target, without_host


@pytest.mark.parametrize(
    "path",
    [
        b"/v1/models/org%2Fname",
        b"/v1//models",
        b"//v1",
        b"/v1/../admin",
        b"/v1/..",
        b"/./v1",
        b"/%2e%2e/admin",
        b"/a%5cb",
        b"/a\\b",
        b"/a%00",
        b"/a%0d%0aX: y",
    ],
)
def test_a_path_that_reads_in_two_ways_is_refused(path: bytes) -> None:
    """An encoded slash, dot or control byte, `//`, `..` and backslashes go no further."""
    with pytest.raises(MalformedRequest):
        check_target(path)


@pytest.mark.parametrize(
    "path",
    [
        b"/",
        b"/v1/models/Qwen3-0.6B",
        b"/v1/models/org/name..v2",
        b"/a%20b",
        b"/.well-known/x",
        b"/a?b=//%2f..",
    ],
)
def test_a_plain_path_passes(path: bytes) -> None:
    """Dots in names and encoded characters that mean nothing to a path are no harm."""
    check_target(path)


@pytest.mark.parametrize(
    ("target", "rest"),
    [
        (b"/v1/models?a=http://b", b"/v1/models?a=http://b"),
        (b"http://a:80/v1/models?b=c", b"/v1/models?b=c"),
        (b"HTTPS://A:80/v1", b"/v1"),
        (b"http://a:80", b"/"),
        (b"http://a:80?b=/c", b"/?b=/c"),
        (b"http://a:80//v1", b"//v1"),
        (b"http://a:80/http://a:80/v1", b"/http://a:80/v1"),
        (b"*", b"*"),
        (b"ftp://a:80/v1", b"ftp://a:80/v1"),
    ],
)
def test_a_target_may_name_its_host(target: bytes, rest: bytes) -> None:
    """What is left of it is its path and query, which are judged as those of any other."""
    assert without_host(target, {b"host": b"a:80"}) == rest


@pytest.mark.parametrize(
    "target", [b"http://b/", b"http://a/", b"http://x@a:80/", b"http://a:80@b"]
)
def test_a_target_names_no_other_host(target: bytes) -> None:
    """Two hosts would be two readings of whom it is for."""
    with pytest.raises(MalformedRequest):
        without_host(target, {b"host": b"a:80"})


@pytest.mark.parametrize("host", [b"a", b"api.example.com:8000", b"127.0.0.1:80", b"[::1]:8000"])
def test_a_host_is_a_name_or_an_address(host: bytes) -> None:
    """Names, addresses and their ports pass."""
    check_headers([(b"host", host)], "1.1")


@pytest.mark.parametrize(
    "host", [b"", b"a/?x=", b"a b", b"a@b", b"a:b", b"a#", b"a\\b", b"[::1", b"a,b"]
)
def test_a_host_that_is_none_is_refused(host: bytes) -> None:
    """Whatever could turn a URL that is built from it into another one."""
    with pytest.raises(MalformedRequest):
        check_headers([(b"host", host)], "1.1")


def test_an_old_client_needs_no_host() -> None:
    """HTTP/1.0 has no such header, and no chunks either."""
    check_headers([], "1.0")
    with pytest.raises(MalformedRequest):
        check_headers([(b"transfer-encoding", b"chunked")], "1.0")
