"""Connections that do not speak HTTP as a server would like it: each case has one of its own."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Final

from tests.faults.bodies import CHAT, COMPLETIONS
from tests.faults.cases import Case, Target, post

_CONTROL: Final = [bytes([n]) for n in (*range(0x20), 0x7F, 0x80, 0xA0, 0xFF)]
_PATHS: Final = (
    *("/v1%2fmodels", "/v1/%2fmodels", "//v1/models", "/v1//models", "/v1/../v1/models", "/../"),
    *("/./v1/models", "/v1/models/%2e%2e/x", "/v1/models/..;/x", "/v1/%6dodels", "/v1/models%00"),
    *("/v1/models/%", "/v1/models/%zz", "/v1/models/%ff", "/v1/models?x=%", "/v1/models#x", "*"),
    *("/admin/v1/tenants", "/%61dmin/v1/tenants", "//admin/v1/tenants", "/v1/models/" + "a" * 3000),
    *("/" + "x/" * 4000, "/v1/models?" + "a=b&" * 5000, "http://other/v1/models", "v1/models", ""),
    *("/v1/models/\x00", "/v1/models/\xe9", "/v1/models/ x", "/v1/models\tx", "\\v1\\models"),
    *(
        "/openapi.json",
        "/readyz/",
        "/V1/models",
        "/v1/models/" + "%41" * 2000,
        "?",
        "/;a=b/v1/models",
    ),
)
_HOSTS: Final = (
    *(
        b"",
        b"a/?x=",
        b"a@b",
        b"a b",
        b"a\tb",
        b"127.0.0.1:99999",
        b"127.0.0.1:x",
        b"[::1",
        b"[::1]:",
    ),
    *(
        b"evil/../admin",
        b"x" * 5000,
        b"a,b",
        b"\xff",
        b"a\x00b",
        b"..",
        b"%2f",
        b"a#b",
        b"a?b",
        b":",
    ),
)
_METHODS: Final = (
    "get",
    "GETS",
    "PRI",
    "TRACE",
    "CONNECT",
    "OPTIONS",
    "HEAD",
    "PUT",
    "\x00",
    "G ET",
)


def malformed_case(draw: random.Random, target: Target) -> Case:
    """Draw one."""
    kind, make = draw.choice(_KINDS)
    sent, answers = make(draw, target)
    return Case(kind, sent, answers)


_Drawn = tuple[bytes, int | None]


def _get(target: Target, *lines: bytes, path: bytes = b"/v1/models", host: bool = True) -> bytes:
    head = [b"GET " + path + b" HTTP/1.1"]
    if host:
        head.append(b"host: %b:%d" % (target.host.encode(), target.port))
    head.append(b"authorization: Bearer " + target.key.encode())
    return b"\r\n".join([*head, *lines]) + b"\r\n\r\n"


def _small(target: Target) -> bytes:
    return json.dumps({"model": target.model, "prompt": "x", "max_tokens": 1}).encode()


def _start(target: Target, *lines: bytes) -> bytes:
    """Begin a completion whose length the given lines announce."""
    head = [b"POST /v1/completions HTTP/1.1", b"host: x", b"content-type: application/json"]
    head.append(b"authorization: Bearer " + target.key.encode())
    return b"\r\n".join([*head, *lines]) + b"\r\n\r\n"


def _request_line(draw: random.Random, target: Target) -> _Drawn:
    auth = b"\r\nhost: x\r\nauthorization: Bearer %b\r\n\r\n" % target.key.encode()
    method = draw.choice(_METHODS).encode()
    lines = (
        *(b"GET /v1/models", b"GET /v1/models HTTP/9.9", b"GET /v1/models HTTP/1.1 x", b"GET"),
        *(
            b"GET  /v1/models  HTTP/1.1",
            b"\tGET /v1/models HTTP/1.1",
            b" ",
            b"",
            b"HTTP/1.1 200 OK",
        ),
        *(
            b"\r\n\r\nGET /v1/models HTTP/1.1",
            b"GET /v1/models HTTP/1.",
            b"GET /v1/models http/1.1",
        ),
        *(method + b" /v1/models HTTP/1.1", method + b" /v1/completions HTTP/1.1"),
        *(b"GET /v1/models HTTP/1.0", b"GET /v1/models HTTP/0.9", b"GET /v1/models HTTP/2.0"),
        *(b"GET /" + b"a" * draw.choice((8_000, 70_000, 300_000)) + b" HTTP/1.1", b"M" * 100_000),
        b"GET /v1/mod" + draw.choice(_CONTROL) + b"els HTTP/1.1",
    )
    return draw.choice(lines) + auth, None


def _header_bytes(draw: random.Random, target: Target) -> _Drawn:
    odd = draw.choice(_CONTROL)
    lines = (
        *(b"x" + odd + b"y: 1", b"x-y: a" + odd + b"b", odd + b"x: 1", b"x: 1" + odd, b": empty"),
        *(b"no colon", b"x : 1", b"x:1\r\n folded", b"\tx: 1", b"x\xff: 1", b"x: \xff\xfe", b"x:"),
        *(
            b"x: 1\nnext: 2",
            b"x: 1\rnext: 2",
            b"x-api-key: " + odd,
            b"authorization: Bearer " + odd,
        ),
        b"authorization: " + draw.choice((b"Basic eDp4", b"Bearer", b"Bearer  ", b"\xff" * 50)),
        b"authorization: Bearer sluice_live_" + b"A" * draw.choice((50, 51, 20_000)),
    )
    return _get(target, draw.choice(lines)), None


def _header_size(draw: random.Random, target: Target) -> _Drawn:
    size = draw.choice((8_000, 31_000, 33_000, 65_000, 70_000, 300_000, 1_000_000))
    name, value = draw.choice(((b"x", b"v" * size), (b"n" * size, b"v")))
    return _get(target, name + b": " + value), None


def _header_count(draw: random.Random, target: Target) -> _Drawn:
    count = draw.choice((50, 99, 101, 500, 5_000, 20_000))
    repeated = draw.random() < 0.5
    return _get(target, *(b"x%d: 1" % (0 if repeated else n) for n in range(count))), None


def _two_lengths(draw: random.Random, target: Target) -> _Drawn:
    body = _small(target)
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    length = b"content-length: %d"
    lines = (
        (length % len(chunked), b"transfer-encoding: chunked"),
        (b"transfer-encoding: chunked", length % len(body)),
        (length % 4, b"transfer-encoding: chunked"),
        (length % len(body), b"transfer-encoding: identity"),
        (b"transfer-encoding: chunked, identity",),
        (b"transfer-encoding: xchunked",),
        (b"transfer-encoding: chunked", b"transfer-encoding: chunked"),
        (b"transfer-encoding:\x0bchunked", length % len(body)),
        (b"Transfer-Encoding : chunked", length % len(body)),
        (length % len(body), length % (len(body) + 1)),
        (length % len(body), length % len(body)),
        (b"content-length: %d, %d" % (len(body), len(body)),),
    )
    return _start(target, *draw.choice(lines)) + draw.choice((chunked, body)), None


def _bad_length(draw: random.Random, target: Target) -> _Drawn:
    body = _small(target)
    values = (
        *(b"-1", b"+%d" % len(body), b"0x10", b"1e3", b"", b" ", b"%d " % len(body), b"\xff"),
        *(b"18446744073709551616", b"18446744073709551615", b"9" * 400, b"9223372036854775808"),
        *(b"%d" % (len(body) + 50), b"%d" % (len(body) - 3), b"0", b"00%d" % len(body), b"4194305"),
    )
    return _start(target, b"content-length: " + draw.choice(values)) + body, None


def _bad_chunks(draw: random.Random, target: Target) -> _Drawn:
    body = _small(target)
    sizes = (
        *(
            b"zz",
            b"-1",
            b"",
            b"0x10",
            b"FFFFFFFFFFFFFFFF",
            b"10000000000000000",
            b"7FFFFFFFFFFFFFFF",
        ),
        *(
            b"%x" % (len(body) + 9),
            b"%x" % (len(body) - 2),
            b" %x" % len(body),
            b"%x;a=b" % len(body),
        ),
        *(b"%x;%b" % (len(body), b"e" * 100_000), b"0" * 5000 + b"%x" % len(body), b"\xff", b"5\n"),
    )
    ends = (
        b"\r\n0\r\n\r\n",
        b"0\r\n\r\n",
        b"\n0\n\n",
        b"\r\n0\r\nx: 1\r\n\r\n",
        b"\r\n0\r\n\x00: 1\r\n\r\n",
    )
    start = _start(target, b"transfer-encoding: chunked")
    return start + draw.choice(sizes) + b"\r\n" + body + draw.choice(ends), None


def _tiny_chunks(draw: random.Random, target: Target) -> _Drawn:
    body = _small(target)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    return _start(target, b"transfer-encoding: chunked") + chunks + b"0\r\n\r\n", 1


def _truncated(draw: random.Random, target: Target) -> _Drawn:
    whole = post(target, draw.choice((CHAT, COMPLETIONS)), _small(target))
    return whole[: draw.randrange(len(whole))], None


def _path(draw: random.Random, target: Target) -> _Drawn:
    path = draw.choice(_PATHS).encode("latin-1")
    if draw.random() < 0.3:
        return _start(target, b"content-length: 2").replace(
            b"/v1/completions", path, 1
        ) + b"{}", None
    return _get(target, path=path), None


def _host(draw: random.Random, target: Target) -> _Drawn:
    hosts = [b"host: " + draw.choice(_HOSTS) for _ in range(draw.choice((0, 1, 1, 1, 2)))]
    path = draw.choice(
        (b"/v1/models", b"/readyz", b"/openapi.json", b"/v1/models/", b"/admin/v1/keys")
    )
    return _get(target, *hosts, host=False, path=path), None


def _pipelined(draw: random.Random, target: Target) -> _Drawn:
    count = draw.choice((2, 5, 20, 100))
    choices = (
        _get(target),
        _get(target, path=b"/nowhere"),
        post(target, COMPLETIONS, _small(target)),
    )
    sent = b"".join(draw.choice(choices) for _ in range(count))
    if draw.random() < 0.3:
        return sent + draw.randbytes(draw.randint(1, 200)), None
    return sent, count


def _other_protocol(draw: random.Random, target: Target) -> _Drawn:
    upgrade = (b"connection: upgrade", b"upgrade: websocket", b"sec-websocket-version: 13")
    body = _small(target)
    return draw.choice(
        (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + draw.randbytes(40),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + draw.randbytes(400),
            draw.randbytes(draw.choice((1, 10, 1000, 100_000))),
            b"\r\n" * draw.choice((1, 1000, 50_000)),
            b"\x00" * draw.choice((1, 1000, 100_000)),
            _get(target, *upgrade, b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="),
            _get(
                target,
                b"connection: upgrade, http2-settings",
                b"upgrade: h2c",
                b"http2-settings: AAAA",
            ),
            _start(target, b"expect: 100-continue", b"content-length: %d" % len(body)) + body,
            _start(target, b"expect: nonsense", b"content-length: %d" % len(body)) + body,
            _get(target, b"range: bytes=" + b"0-1," * 5000, b"accept-encoding: \x80"),
            _start(target, b"content-encoding: gzip", b"content-length: %d" % len(body)) + body,
        )
    ), None


_KINDS: Final[tuple[tuple[str, Callable[[random.Random, Target], _Drawn]], ...]] = (
    ("request line", _request_line),
    ("header bytes", _header_bytes),
    ("header size", _header_size),
    ("header count", _header_count),
    ("two lengths", _two_lengths),
    ("bad length", _bad_length),
    ("bad chunks", _bad_chunks),
    ("tiny chunks", _tiny_chunks),
    ("truncated", _truncated),
    ("path", _path),
    ("host", _host),
    ("pipelined", _pipelined),
    ("other protocol", _other_protocol),
)
