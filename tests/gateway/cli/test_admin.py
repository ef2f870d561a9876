"""`sluice admin`: users and sessions from the command line."""

from __future__ import annotations

from tests.gateway.cli.admin_server import Server


def test_users_from_the_command_line(server: Server) -> None:
    """The links are alone on stdout and have the server's address; the rest is as on the pages."""
    [first] = server.lines("admin", "link")
    assert first.startswith(f"{server.url}/admin/password?link=sluice_link_")
    [link] = server.lines("admin", "create", "ann@example.org", "--role", "operator")
    assert link.startswith(f"{server.url}/admin/password?link=sluice_link_")
    assert server.lines("admin", "reset", "ann@example.org") != [link]
    server.lines(
        "admin", "update", "ann@example.org", "--role", "tenant-viewer", "--tenant", "acme"
    )
    [user] = server.ask("admin", "list")
    assert (user["role"], user["tenant"]) == ("tenant-viewer", "acme")
    assert server.ask("admin", "suspend", "ann@example.org")["suspended_at"] is not None
    assert server.ask("admin", "resume", "ann@example.org")["suspended_at"] is None
    assert server.ask("admin", "sessions") == []
    assert server.lines("admin", "delete", "ann@example.org") == ["ann@example.org"]
    gone = server.sluice("admin", "reset", "ann@example.org")
    assert gone.returncode == 3
    assert server.sluice("admin", "sign-out", "x").returncode == 3
