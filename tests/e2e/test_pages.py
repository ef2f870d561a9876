"""The pages of a running server: where they are, who may see them, what its sockets refuse."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import httpx
import pytest

from tests.live_server import Server


def test_a_newcomer_finds_the_pages_and_the_link_opens_them(server: Server) -> None:
    """The front page leads to the pages; a stranger is sent to sign in; the link is a form."""
    admin, link = server.banner["admin"], server.banner["admin_link"]
    front = httpx.get(server.api.removesuffix("/v1"), headers={"accept": "text/html"})
    assert f'href="{admin}/admin"' in front.text
    first = httpx.get(f"{admin}/admin")
    assert (first.status_code, first.headers["location"]) == (303, "/admin/login")
    assert httpx.get(f"{admin}/admin/login").status_code == 200
    assert link.startswith(f"{admin}/admin/password?link=")
    assert "first owner" in httpx.get(link).text


def test_every_answer_of_the_admin_port_has_the_policy(server: Server) -> None:
    """JSON of the admin API included."""
    for path in ("/admin/login", "/admin/v1/tenants", "/admin/nothing"):
        headers = httpx.get(f"{server.banner['admin']}{path}").headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 's")


@pytest.mark.parametrize(
    "target", ["//admin", "/%2e%2e/admin", "/admin/%2E%2e/login", "/admin%2flogin", "/./admin"]
)
def test_a_path_that_reads_in_two_ways_is_refused_on_the_socket(
    server: Server, target: str
) -> None:
    """As it was sent, before any route sees it."""
    assert _status(server, target, "127.0.0.1") == 400


def test_a_page_of_another_site_reaches_nothing(server: Server) -> None:
    """A name that resolves to this machine is not this machine's name (DNS rebinding)."""
    assert _status(server, "/admin/login", "rebound.example:8001") == 403
    assert _status(server, "/admin/login", "localhost:1") == 200
    admin = server.banner["admin"]
    form = {"name": "x", "password": "y"}
    origin = {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}
    assert httpx.post(f"{admin}/admin/login", data=form, headers=origin).status_code == 403


def _status(server: Server, target: str, host: str) -> int:
    """Ask with exactly these bytes."""
    place = urlsplit(server.banner["admin"])
    with socket.create_connection((place.hostname or "", place.port or 0), 10) as sock:
        head = f"GET {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
        sock.sendall(head.encode())
        answer = sock.makefile("rb").readline()
    return int(answer.split()[1])
