"""The command line's way to a running server's admin API.

The server is found, in this order, by `SLUICE_ADMIN_URL` with `SLUICE_ADMIN_TOKEN`; by
`--data-dir`; by `SLUICE_DATA_DIR`; in the default data directory. A data directory of a server
on this machine brings the token with it. `Settings` is not asked: it takes half a second to
load, and reads a `sluice.toml` that belongs to a server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.cli.exits import CliError, Exit
from gateway.data_dir import default_data_dir
from gateway.services.local_access import read_local_access

_TIMEOUT_S = 30.0
_EXITS = {400: Exit.USAGE, 401: Exit.AUTH, 403: Exit.AUTH, 404: Exit.NOT_FOUND, 409: Exit.CONFLICT}


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """Say where the admin API is and what opens it."""

    url: str
    token: str = field(repr=False)


def find_server(data_dir: Path | None) -> AdminAccess:
    """Find a running server. Raises: `CliError`: none is there, or the token is missing."""
    url = os.environ.get("SLUICE_ADMIN_URL")
    if url and data_dir is None:
        token = os.environ.get("SLUICE_ADMIN_TOKEN")
        if not token:
            raise CliError("SLUICE_ADMIN_URL is set, SLUICE_ADMIN_TOKEN is not", Exit.AUTH)
        return AdminAccess(url.rstrip("/"), token)
    named = data_dir or os.environ.get("SLUICE_DATA_DIR")
    try:
        directory = Path(named) if named else default_data_dir()
        local = read_local_access(directory)
    except FileNotFoundError as exc:
        raise CliError(str(exc)) from None
    except PermissionError:
        raise CliError(
            f"{named or 'the data directory'} belongs to another user: run as that user, or set "
            "SLUICE_ADMIN_URL and SLUICE_ADMIN_TOKEN",
            Exit.AUTH,
        ) from None
    if local is None:
        raise CliError(
            f"no server is running with the data directory {directory}: start one with "
            "'sluice serve', or set SLUICE_ADMIN_URL and SLUICE_ADMIN_TOKEN"
        )
    return AdminAccess(local.admin.rstrip("/"), local.local_token)


def call(
    access: AdminAccess,
    method: str,
    path: str,
    *,
    body: Mapping[str, Any] | None = None,
    params: Mapping[str, str] | None = None,
) -> Any:  # JSON of the server's making; the commands know its fields
    """Send one request and return the decoded answer.

    Raises: `CliError` with the server's own message and the matching exit code.
    """
    import httpx

    try:
        with httpx.Client(timeout=_TIMEOUT_S, trust_env=False) as client:
            answer = client.request(
                method,
                f"{access.url}/admin/v1{path}",
                json=body,
                params=params,
                headers={"authorization": f"Bearer {access.token}"},
            )
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        raise CliError(f"the server at {access.url} does not answer: {exc}") from None
    if answer.is_success:
        return answer.json()
    raise CliError(_message(answer), _EXITS.get(answer.status_code, Exit.FAILED))


def _message(answer: Any) -> str:  # an httpx.Response, loaded only when a command runs
    try:
        message = answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"the server answered {answer.status_code} without saying why"
    return str(message)
