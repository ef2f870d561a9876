"""A Python environment with a few distributions and what they require, and nothing else.

It is a virtual environment whose packages are links to those that are installed here. One that is
not installed, or not in the version that is required, is fetched from the package index.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


class NoPackageIndex(Exception):
    """Tell that a distribution could not be fetched."""


def make_bare_environment(directory: Path, roots: Sequence[str]) -> Path:
    """Make an environment of what `roots` require, and return its interpreter.

    The first roots decide: what one of them requires must suit those after it. Raises:
    `NoPackageIndex`: something that is not here could not be fetched.
    """
    venv.create(directory, symlinks=True)
    install(directory, roots)
    return directory / "bin" / "python"


def install(directory: Path, roots: Sequence[str]) -> None:
    """Add what `roots` require to an environment of `make_bare_environment`. Raises: as that."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = directory / "lib" / version / "site-packages"
    installed = _by_name()
    placed: dict[str, Distribution] = {}
    extras: dict[str, set[str]] = {}
    wanted = [Requirement(root) for root in roots]
    while wanted:
        requirement = wanted.pop(0)
        name = canonicalize_name(requirement.name)
        if name not in placed:
            found = installed.get(name)
            if found is not None and _suits(found, requirement):
                _link(found, site)
            else:
                _fetch(requirement, site)
                found = _by_name(site)[name]
            placed[name] = found
            wanted += _required_by(found)
        for extra in requirement.extras - extras.setdefault(name, set()):
            extras[name].add(extra)
            wanted += _required_by(placed[name], extra)
        assert _suits(placed[name], requirement), f"{requirement}, not {placed[name].version}"


def _by_name(*path: Path) -> dict[str, Distribution]:
    """List distributions by their names; of several the one that is imported."""
    found = list(distributions(path=list(map(str, path or sys.path))))
    return {canonicalize_name(one.metadata["Name"]): one for one in reversed(found)}


def _suits(distribution: Distribution, requirement: Requirement) -> bool:
    return requirement.specifier.contains(distribution.version, prereleases=True)


def _required_by(distribution: Distribution, extra: str = "") -> Iterator[Requirement]:
    for line in distribution.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def _link(distribution: Distribution, site: Path) -> None:
    """Link what a distribution consists of: whole packages, but parts of those that it shares."""
    for file in distribution.files or ():
        top = file.parts[0]
        if top in ("..", "__pycache__"):
            continue
        source = Path(str(distribution.locate_file(top)))
        is_shared = source.is_dir() and not top.endswith("-info") and not _is_package(source)
        path = Path(*file.parts[: 2 if is_shared else 1])
        target = site / path
        target.parent.mkdir(exist_ok=True)
        if not target.is_symlink():
            target.symlink_to(str(distribution.locate_file(str(path))))


def _is_package(directory: Path) -> bool:
    return (directory / "__init__.py").exists()


def _fetch(requirement: Requirement, site: Path) -> None:
    command = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--no-compile", "--target", str(site), str(requirement)),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NoPackageIndex(f"{requirement} cannot be fetched: {done.stderr.strip()[-500:]}")
