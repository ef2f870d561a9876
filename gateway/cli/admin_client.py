"""The command line's way to a running server's admin API.

The server is found, in this order, by `SLUICE_ADMIN_URL` with `SLUICE_ADMIN_TOKEN`; by
`--data-dir`; by `SLUICE_DATA_DIR`; in the default data directory. A data directory of a server
on this machine brings the token with it. `Settings` is not asked: it takes half a second to
load, and reads a `sluice.toml` that belongs to a server.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gateway.cli.chosen_settings import refuse_unknown_variables
from gateway.cli.exits import CliError, Exit, NoAnswer, exit_of
from gateway.data_dir import default_data_dir
from gateway.services.local_access import read_local_access

_TIMEOUT_S = 30.0
_PAGE_ROWS: Final = 500


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """Say where the admin API is and what opens it; `token_of`: where that was found."""

    url: str
    token: str = field(repr=False)
    token_of: str = "SLUICE_ADMIN_TOKEN"


def find_server(data_dir: Path | None) -> AdminAccess:
    """Find a running server.

    Raises: `CliError`: none is there, the token is missing, or a variable was misspelled.
    """
    refuse_unknown_variables()
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
    return AdminAccess(
        local.admin.rstrip("/"), local.local_token, f"the data directory {directory}"
    )


def call(
    access: AdminAccess,
    method: str,
    path: str,
    *,
    body: Mapping[str, Any] | None = None,
    params: Mapping[str, str] | None = None,
    version: int | None = None,
    timeout_s: float | None = None,
) -> Any:  # JSON of the server's making; the commands know its fields
    """Send one request and return the decoded answer.

    `timeout_s` is for what takes longer than other answers. With `version`, what is changed must
    still have it. Raises: `CliError` with the server's own message and the matching exit code.
    """
    headers = {} if version is None else {"if-match": f'"{version}"'}
    with _client(access, timeout_s) as client:
        answer = client.request(
            method, f"/admin/v1{path}", json=body, params=params, headers=headers
        )
        if not answer.is_success:
            raise _error(answer, access)
        return answer.json()


def call_all(
    access: AdminAccess, path: str, *, params: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Return a whole list, page by page. Raises: `CliError`."""
    rows: list[dict[str, Any]] = []
    asked = {"limit": str(_PAGE_ROWS), **(params or {})}
    while True:
        page = call(access, "GET", path, params=asked)
        rows += page["data"]
        if not page.get("has_more"):
            return rows
        asked["after"] = page["next"]


def download(
    access: AdminAccess, path: str, *, params: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Yield an answer that is text, piece by piece. Raises: `CliError`."""
    with (
        _client(access) as client,
        client.stream("GET", f"/admin/v1{path}", params=params) as answer,
    ):
        if not answer.is_success:
            answer.read()
            raise _error(answer, access)
        yield from answer.iter_text()


@contextmanager
def _client(
    access: AdminAccess, timeout_s: float | None = None
) -> Iterator[Any]:  # an httpx.Client, loaded only here
    import httpx

    try:
        with httpx.Client(
            base_url=access.url,
            timeout=timeout_s or _TIMEOUT_S,
            trust_env=False,
            headers={"authorization": f"Bearer {access.token}"},
        ) as client:
            yield client
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        raise NoAnswer(f"the server at {access.url} does not answer: {exc}") from None


def _error(answer: Any, access: AdminAccess) -> CliError:  # an httpx.Response
    if answer.status_code == 401:
        # The server's own words are for who sends a key in a header.
        said = f"the server at {access.url} does not take the admin token of {access.token_of}"
        return CliError(f"{said}: it is another's, revoked or expired", Exit.AUTH)
    try:
        document = answer.json()
        message = str(document["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"the server answered {answer.status_code} without saying why"
        document = {}
    code = exit_of(answer.status_code)
    if isinstance(document, dict) and _code(document) == "plan_changed":
        # Its caller shows it as any plan.
        return CliError(message, code, answer=document)
    # Somebody else changed it: both sides are needed to decide.
    for side in ("current", "yours"):
        if document.get(side) is not None:
            message += f"\n{side}: {json.dumps(document[side], ensure_ascii=False)}"
    return CliError(message, code)


def _code(document: Mapping[str, Any]) -> object:
    error = document.get("error")
    return error.get("code") if isinstance(error, dict) else None
