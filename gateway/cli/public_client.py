"""The command line's way to the public API, with a tenant's key.

The key is `SLUICE_API_KEY`; without it `OPENAI_API_KEY`, if what that holds is a key of Sluice's: a
key of somebody else's is sent nowhere. The address is `SLUICE_BASE_URL`; without it that of a
server of this machine, found as the commands of administration find it, and else the default port.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

from gateway.cli.chosen_settings import refuse_unknown_variables
from gateway.cli.exits import CliError, Exit, NoAnswer, exit_of
from gateway.credentials import KEY_PREFIX
from gateway.data_dir import default_data_dir
from gateway.services.local_access import read_local_access

DEFAULT_URL: Final = "http://127.0.0.1:8000/v1"

_TIMEOUT_S: Final = 60.0
_CONNECT_TIMEOUT_S: Final = 10.0
_PIECE_BYTES: Final = 256 * 1024
# The server, or a proxy before it, may well do later what it does not do now.
_LIMIT: Final = 429
_LATER: Final = (_LIMIT, 500, 502, 503, 504)


class TryLater(NoAnswer):
    """The server answered that it cannot do this now; it may have said when it can.

    `is_limit`: it is the tenant's own limit, and nothing was done.
    """

    def __init__(self, message: str, *, retry_after_s: float, is_limit: bool = False) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.is_limit = is_limit


@dataclass(frozen=True, slots=True)
class PublicAccess:
    """Say where the public API is and what opens it."""

    url: str
    key: str = field(repr=False)


def find_api() -> PublicAccess:
    """Find the public API and a key.

    Raises: `CliError`: there is no key, the address is none, or a variable was misspelled.
    """
    refuse_unknown_variables()
    url = os.environ.get("SLUICE_BASE_URL") or _url_of_this_machine() or DEFAULT_URL
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CliError(f"SLUICE_BASE_URL: '{url}' is no address, as {DEFAULT_URL}", Exit.USAGE)
    return PublicAccess(url.rstrip("/"), _find_key())


class PublicApi:
    """Ask a public API over one client's connections; close it, or use it as a context manager.

    Each method raises `CliError` with the server's own message and the matching exit code:
    `TryLater` where it may do later what it does not do now, `NoAnswer` where none came.
    """

    def __init__(self, access: PublicAccess) -> None:
        # Loaded only here: `sluice --help` needs none.
        import httpx

        host = urlsplit(access.url).hostname
        self._httpx = httpx
        self._url = access.url
        self._client = httpx.Client(
            base_url=access.url,
            timeout=httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S),
            # A proxy for the world cannot reach this machine.
            trust_env=host not in ("127.0.0.1", "::1", "localhost"),
            headers={"authorization": f"Bearer {access.key}"},
        )

    def call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:  # JSON of the server's making; the commands know its fields
        """Send one request and return the decoded answer."""
        with self._answers():
            answer = self._client.request(method, path, json=body, params=params, headers=headers)
            return self._decoded(answer)

    def upload(self, file: BinaryIO, filename: str, purpose: str) -> Any:  # as `call`
        """Send a file piece by piece, as it is read, and return what the server made of it."""
        with self._answers():
            answer = self._client.post(
                "/files",
                data={"purpose": purpose},
                files={"file": (filename, file, "application/jsonl")},
            )
            return self._decoded(answer)

    def download(self, path: str) -> Iterator[bytes]:
        """Yield an answer's bytes, piece by piece."""
        with self._answers(), self._client.stream("GET", path) as answer:
            if not answer.is_success:
                answer.read()
                raise _error(answer)
            yield from answer.iter_bytes(_PIECE_BYTES)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> PublicApi:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def _answers(self) -> Iterator[None]:
        try:
            yield
        except (self._httpx.HTTPError, self._httpx.InvalidURL) as exc:
            said = str(exc) or type(exc).__name__
            raise NoAnswer(f"the server at {self._url} does not answer: {said}") from None

    def _decoded(self, answer: Any) -> Any:  # an httpx.Response; JSON
        if not answer.is_success:
            raise _error(answer)
        try:
            return answer.json()
        except ValueError:
            raise CliError(
                f"{answer.url} answered with what is no JSON: is SLUICE_BASE_URL that of an API, "
                f"as {DEFAULT_URL}?"
            ) from None


def _find_key() -> str:
    key = os.environ.get("SLUICE_API_KEY")
    if key and not (key.isascii() and key.isprintable()):
        raise CliError("SLUICE_API_KEY is no key: it is letters and digits alone", Exit.AUTH)
    if key:
        return key
    other = os.environ.get("OPENAI_API_KEY", "")
    if other.startswith(KEY_PREFIX):
        return other
    raise CliError(
        "SLUICE_API_KEY is not set"
        + (", and OPENAI_API_KEY holds no key of Sluice's" if other else "")
        + ": it is a tenant's key, as 'sluice keys create' prints it",
        Exit.AUTH,
    )


def _url_of_this_machine() -> str | None:
    """Return the API of the server that runs in the data directory, if one does."""
    named = os.environ.get("SLUICE_DATA_DIR")
    try:
        local = read_local_access(Path(named) if named else default_data_dir())
    except OSError:
        return None
    return None if local is None else local.api


def _error(answer: Any) -> CliError:  # an httpx.Response
    try:
        message = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"the server answered {answer.status_code} without saying why"
    if answer.status_code not in _LATER:
        return CliError(message, exit_of(answer.status_code))
    try:
        retry_after_s = float(answer.headers.get("retry-after", 0))
    except ValueError:  # a date: nobody sends one with what is over in seconds
        retry_after_s = 0.0
    is_limit = answer.status_code == _LIMIT
    return TryLater(message, retry_after_s=retry_after_s, is_limit=is_limit)
