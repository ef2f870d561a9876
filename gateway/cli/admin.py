"""`sluice admin`: who may sign in to the pages."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gateway.cli.admin_client import AdminAccess, call, call_all, find_server
from gateway.cli.options import AsJson, DataDir, NoHeader, segment
from gateway.cli.output import note, print_json, print_table
from gateway.domain.admin import AdminRole

app = typer.Typer(help="People who sign in to the pages.", no_args_is_help=True)

Subject = Annotated[
    str | None, typer.Option(help="Who they are to the issuer of sign-ins, its `sub`.")
]
User = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]


@app.command("list")
def list_(no_header: NoHeader = False, as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """List users. Example: sluice admin list"""
    rows = call_all(find_server(data_dir), "/users")
    if as_json:
        print_json(rows)
        return
    columns = ("name", "role", "tenant", "has_password", "last_login_at", "suspended_at")
    print_table(rows, columns, none="There are no users.", no_header=no_header)


@app.command()
def create(
    name: User,
    role: Annotated[AdminRole, typer.Option(help="What they may do.")],
    tenant: Annotated[
        str | None, typer.Option(help="The tenant of a tenant-owner or a tenant-viewer.")
    ] = None,
    subject: Subject = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Make a user; prints the link by which they set a password once, alone on stdout.

    Example: sluice admin create ann@example.org --role operator
    """
    body: dict[str, Any] = {"name": name, "role": role.value}
    if tenant is not None:
        body["tenant"] = tenant
    if subject is not None:
        body["subject"] = subject
    server = find_server(data_dir)
    _hand_over(server, call(server, "POST", "/users", body=body), as_json)


@app.command()
def reset(name: User, as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Print a link by which a user sets a new password once.

    Example: sluice admin reset ann@example.org
    """
    server = find_server(data_dir)
    _hand_over(server, call(server, "POST", f"/users/{segment(name)}/link"), as_json)


@app.command()
def link(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Print a link by which the first owner sets a password; there is none once one has.

    Example: sluice admin link
    """
    server = find_server(data_dir)
    made = call(server, "POST", "/first-link")
    made["link"] = whole(server, made["link"])
    if as_json:
        print_json(made)
        return
    print(made["link"])
    note("It is good once, for an hour, and makes its user an owner.")


@app.command()
def update(
    name: User,
    role: Annotated[AdminRole | None, typer.Option(help="What they may do from now on.")] = None,
    tenant: Annotated[
        str | None, typer.Option(help="The tenant of a tenant-owner or a tenant-viewer.")
    ] = None,
    subject: Subject = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Change a user's role or subject; their sessions end at once. An empty subject is nobody's.

    Example: sluice admin update ann@example.org --role viewer
    """
    named = {
        "role": None if role is None else role.value,
        "tenant": tenant,
        "subject": subject,
    }
    body = {field: value for field, value in named.items() if value is not None}
    _changed(name, body, as_json, data_dir)


@app.command()
def suspend(name: User, as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Let a user sign in no more; their sessions end at once.

    Example: sluice admin suspend ann@example.org
    """
    _changed(name, {"is_suspended": True}, as_json, data_dir)


@app.command()
def resume(name: User, as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Let a suspended user sign in again. Example: sluice admin resume ann@example.org"""
    _changed(name, {"is_suspended": False}, as_json, data_dir)


@app.command()
def delete(name: User, as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Remove a user; their sessions end at once. Example: sluice admin delete ann@example.org"""
    user = call(find_server(data_dir), "DELETE", f"/users/{segment(name)}")
    if as_json:
        print_json(user)
        return
    print(user["name"])
    note(f"Removed: {user['name']}, {user['role']}.")


@app.command()
def sessions(
    no_header: NoHeader = False, as_json: AsJson = False, data_dir: DataDir = None
) -> None:
    """List who is signed in. Example: sluice admin sessions"""
    rows = call_all(find_server(data_dir), "/sessions")
    if as_json:
        print_json(rows)
        return
    columns = ("id", "who", "role", "address", "created_at", "seen_at")
    print_table(rows, columns, none="Nobody is signed in.", no_header=no_header)


@app.command("sign-out")
def sign_out(
    session_id: Annotated[str, typer.Argument(help="The session's id.")],
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """End a session at once. Example: sluice admin sign-out SESSION_ID"""
    session = call(find_server(data_dir), "DELETE", f"/sessions/{segment(session_id)}")
    if as_json:
        print_json(session)
        return
    print(session["id"])
    note(f"Signed out: {session['who']}.")


def whole(server: AdminAccess, link: str) -> str:
    """Return a link with the host by which the server was found, where it names none."""
    return link if "://" in link else f"{server.url}{link}"


def _hand_over(server: AdminAccess, user: dict[str, Any], as_json: bool) -> None:
    user["link"] = whole(server, user["link"])
    if as_json:
        print_json(user)
        return
    print(user["link"])
    note(f"Hand it to {user['name']}, {user['role']}: it sets the password once, within a day.")


def _changed(name: str, body: dict[str, Any], as_json: bool, data_dir: DataDir) -> None:
    user = call(find_server(data_dir), "PATCH", f"/users/{segment(name)}", body=body)
    if as_json:
        print_json(user)
        return
    print(user["name"])
    state = "suspended" if user["suspended_at"] is not None else user["role"]
    note(f"{user['name']}: {state}.")
