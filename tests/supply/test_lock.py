"""The lock files: whole, in agreement with `pyproject.toml`, and with what is installed."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gateway import DISTRIBUTION
from tests.supply.lock import IMAGE, PRODUCT, ROOT, TESTS, UNLOCKED, Locked, read

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
WANTED = {
    PRODUCT: PYPROJECT["project"]["dependencies"] + PYPROJECT["build-system"]["requires"],
    TESTS: EXTRAS["test"],
    IMAGE: EXTRAS["s3"] + EXTRAS["oidc"],
}
FILES = pytest.mark.parametrize("path", list(WANTED), ids=["product", "tests", "image"])


def here(*paths: Path) -> dict[str, Locked]:
    """Return what is locked for this machine, by name."""
    entries = [entry for path in paths for entry in read(path)]
    return {e.name: e for e in entries if e.marker is None or Marker(e.marker).evaluate()}


@FILES
def test_a_lock_file_is_versions_and_hashes_alone(path: Path) -> None:
    """Each entry has a hash, and is written as it is read: no option, no address of an index."""
    entries = read(path)
    assert entries
    assert all(entry.hashes for entry in entries)
    head = "".join(line for line in path.read_text().splitlines(True) if line.startswith("#"))
    assert path.read_text() == head + "".join(entry.written() for entry in entries)
    assert "://" not in head


def test_no_package_is_locked_twice() -> None:
    """What the product stands on is not locked again, perhaps otherwise, for tests or images."""
    product = {e.name for e in read(PRODUCT)}
    for path in (TESTS, IMAGE):
        assert product & {e.name for e in read(path)} == set(), path


@FILES
def test_what_is_required_is_locked_in_its_range(path: Path) -> None:
    """Everything that `pyproject.toml` names, what builds Sluice too; torch and triton aside."""
    locked = here(PRODUCT, path)
    for requirement in map(Requirement, WANTED[path]):
        name = canonicalize_name(requirement.name)
        if not UNLOCKED.fullmatch(name):
            assert requirement.specifier.contains(locked[name].version), requirement


def test_what_is_installed_is_what_is_locked() -> None:
    """Each package that Sluice and its tests lead to here is installed at its locked version."""
    locked = here(PRODUCT, TESTS)
    waiting, seen = [(DISTRIBUTION, frozenset({"test"}))], set[str]()
    while waiting:
        name, extras = waiting.pop()
        if name in seen or UNLOCKED.fullmatch(name):
            continue
        seen.add(name)
        if name != DISTRIBUTION:
            assert metadata.version(name) == locked[name].version
        for requirement in map(Requirement, metadata.requires(name) or ()):
            if requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in extras or {""}
            ):
                found = canonicalize_name(requirement.name)
                waiting.append((found, frozenset(requirement.extras)))
    assert len(seen) > 50


@pytest.mark.parametrize(
    "line", ["starlette", "starlette>=1", "--index-url x", "starlette==1.0", "    --hash=md5:00"]
)
def test_a_line_that_locks_nothing_is_refused(tmp_path: Path, line: str) -> None:
    """A version without hashes, a range or an option is not read over."""
    path = tmp_path / "requirements.lock"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match="neither a version nor a hash"):
        read(path)
