"""The source of an earlier commit of this repository, to run beside what is here."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent.parent
# The release before this one: it is rolled out over by this one, with both serving meanwhile.
RELEASE_BEFORE: Final = "b29f8880"
_PACKAGES: Final = ("admin_ui", "engine", "gateway", "migrations", "scheduler")


def is_in_history(commit: str = RELEASE_BEFORE) -> bool:
    """Tell whether this clone has the commit; one that is shallow has not."""
    return _git("cat-file", "-e", f"{commit}^{{commit}}") is not None


def old_tree(directory: Path, commit: str = RELEASE_BEFORE) -> Path | None:
    """Write a commit's packages into a directory; None where the history does not reach so far."""
    if not is_in_history(commit):
        return None
    packages = [
        name for name in _PACKAGES if _git("cat-file", "-e", f"{commit}:{name}") is not None
    ]
    archive = _git("archive", commit, *packages)
    assert archive is not None
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(directory, filter="data")
    return directory


def serves_on_newer_schemas(tree: Path) -> bool:
    """Tell whether that release starts on a schema which is newer than its own."""
    return "READABLE_FROM" in (tree / "gateway/store/migrate.py").read_text()


def _git(*args: str) -> bytes | None:
    done = subprocess.run(("git", "-C", str(ROOT), *args), capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else None
