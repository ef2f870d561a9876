"""Schemathesis believes `openapi.json` and tries it: all of its checks, in all of its phases."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.environments import ClientEnvironment
from tests.live_server import Server, start_server
from tests.passable import passable_directory

HOOKS = Path(__file__).parent / "programs" / "schemathesis_hooks.py"
# A run finds the same at each start: others belong into a search, not into a test.
SEED = "7"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def server() -> Iterator[Server]:
    """Serve a model that answers and one that makes vectors, so that all is described."""
    with passable_directory() as parent:
        running = start_server(parent / "data", "--embedding-model", "demo")
        yield running
        assert running.stop() == 0


# Apart, as each asks without a key too, and a stranger who asks too often is told so instead.
@pytest.mark.parametrize(
    ("which", "paths", "least_cases"),
    [
        ("--exclude-path-regex", "^/v1/(messages|files|batches)", 1000),
        ("--include-path-regex", "^/v1/(files|batches)", 100),
        ("--include-path-regex", "^/v1/messages", 500),
    ],
    ids=["openai", "files", "anthropic"],
)
def test_the_description_is_true(
    client_environment: Callable[[str], ClientEnvironment],
    server: Server,
    tmp_path: Path,
    which: str,
    paths: str,
    least_cases: int,
) -> None:
    """What is in bounds is answered as described, and what is out of bounds is refused."""
    done = client_environment("schemathesis").run(
        *("schemathesis", "run", f"{server.api.removesuffix('/v1')}/openapi.json"),
        *(which, paths),
        *("--header", f"Authorization: Bearer {server.key}"),
        *("--checks", "all", "--max-examples", "10", "--seed", SEED),
        *("--continue-on-failure", "--generation-database", "none", "--no-color"),
        # A whole context is read in more than its own ten seconds where a core is slow; how long
        # is no part of the description.
        *("--request-timeout", "60", "--max-response-time", "60"),
        cwd=tmp_path,
        timeout_s=580,
        SCHEMATHESIS_HOOKS=str(HOOKS),
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    # A description that says little is soon tried.
    cases = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
    assert cases is not None, done.stdout[-2000:]
    assert int(cases[1]) > least_cases
