"""Ask OSV whether what is locked has known vulnerabilities.

One request asks for all of the locked requirements, and the torch that is installed. A database
that does not answer, or not as it should, is no news and not good news: each request also asks for
a release whose vulnerabilities are known for certain, and an answer that does not know these tells
nothing.

Exit codes: 0 nothing found, or no data and none required; 1 a finding that `accepted.toml` gives no
reason to live with; 2 no data although `SLUICE_REQUIRE_AUDIT=1` asks for it. What wheels bring
along, PostgreSQL and Valkey among it, no such database knows.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
import urllib.request
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from tests.supply.lock import IMAGE, PRODUCT, TESTS, read

URL: Final = "https://api.osv.dev/v1/querybatch"
ACCEPTED: Final = Path(__file__).with_name("accepted.toml")
TIMEOUT_S: Final = 10.0
NO_DATA: Final = 2

Release = tuple[str, str]
# Its flaws are many and old, so every copy of the database has them.
KNOWN_BAD: Final[Release] = ("jinja2", "2.4.1")


class NoData(Exception):
    """Say why the database told nothing."""


def releases() -> list[Release]:
    """Name what is audited."""
    found = {
        (entry.name, entry.version) for path in (PRODUCT, TESTS, IMAGE) for entry in read(path)
    }
    for name in ("torch", "triton"):
        try:
            # Without the name of the build: +cpu, +cu130.
            found.add((name, metadata.version(name).partition("+")[0]))
        except metadata.PackageNotFoundError:
            continue
    return sorted(found)


def ask(asked: Sequence[Release], url: str = URL) -> dict[Release, list[str]]:
    """Return the identifiers of what is known of each release; those with none are left out.

    Raises: `NoData`.
    """
    all_asked = [KNOWN_BAD, *asked]
    queries = [
        {"package": {"name": name, "ecosystem": "PyPI"}, "version": version}
        for name, version in all_asked
    ]
    request = urllib.request.Request(
        url,
        data=json.dumps({"queries": queries}).encode(),
        headers={"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            answers = json.load(response)["results"]
        known = [[str(one["id"]) for one in answer.get("vulns", [])] for answer in answers]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise NoData(f"{type(exc).__name__}: {exc}") from exc
    if len(known) != len(all_asked):
        raise NoData(f"{len(known)} answers to {len(all_asked)} questions")
    if not known[0]:
        raise NoData(f"it knows nothing of {' '.join(KNOWN_BAD)}, which it should")
    return {release: ids for release, ids in zip(asked, known[1:], strict=True) if ids}


def read_accepted(path: Path = ACCEPTED) -> dict[str, str]:
    """Read which vulnerabilities are lived with, and why. Raises: `ValueError`: one has no why."""
    accepted = tomllib.loads(path.read_text())
    for identifier, reason in accepted.items():
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(f"{path.name}: {identifier} has no reason")
    return accepted


def main(environment: Mapping[str, str] = os.environ, url: str = URL, **paths: Any) -> int:
    """Audit, say what came of it, and return the exit code."""
    accepted = read_accepted(**paths)
    asked = releases()
    try:
        found = ask(asked, url)
    except NoData as exc:
        print(f"no data: not audited ({exc})")
        return NO_DATA if environment.get("SLUICE_REQUIRE_AUDIT") == "1" else 0
    open_ids = 0
    for (name, version), ids in found.items():
        for identifier in ids:
            reason = accepted.get(identifier)
            open_ids += reason is None
            print(f"{name} {version}: {identifier}" + (f", accepted: {reason}" if reason else ""))
    for identifier in accepted.keys() - {one for ids in found.values() for one in ids}:
        print(f"{identifier} is not found any more: take it out of {ACCEPTED.name}")
    print(f"audited {len(asked)} releases: {open_ids or 'no'} known vulnerabilities to mend")
    return 1 if open_ids else 0


if __name__ == "__main__":
    sys.exit(main())
