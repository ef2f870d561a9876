"""Whether what is installed is what this version of Sluice was made for."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib import metadata
from typing import Final

from gateway import DISTRIBUTION
from gateway.doctor.finding import Finding, broken, ok

_PYTHON: Final = (3, 11)
_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*(?P<bounds>[^;]*)(?P<rest>.*)"
)
_BOUND = re.compile(r"(?P<sign>>=|<=|==|!=|<|>)\s*(?P<version>[0-9][^,\s]*)")


def check_python() -> Finding:
    """Check the interpreter."""
    version = sys.version.split()[0]
    if sys.version_info < _PYTHON:
        wanted = ".".join(map(str, _PYTHON))
        return broken("python", f"{version} is too old", f"install Python {wanted} or newer")
    return ok("python", f"{version} at {sys.executable}")


def check_packages(requirements: Iterable[str] | None = None) -> list[Finding]:
    """Check the version of everything that Sluice requires; `requirements` as metadata has them."""
    if requirements is None:
        requirements = metadata.requires(DISTRIBUTION) or ()
    findings: list[Finding] = []
    shown: list[str] = []
    for requirement in requirements:
        parts = _REQUIREMENT.match(requirement)
        if parts is None or "extra" in parts["rest"]:
            continue
        name, bounds = parts["name"], parts["bounds"].strip()
        mend = f"{sys.executable} -m pip install '{name}{bounds}'"
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            findings.append(broken("packages", f"{name} is not installed", mend))
            continue
        if not satisfies(version, bounds):
            findings.append(broken("packages", f"{name} is {version}, not {bounds}", mend))
        elif name in ("torch", "numpy"):
            shown.append(f"{name} {version}")
    return findings or [ok("packages", f"{', '.join(sorted(shown))}, and all others in range")]


def satisfies(version: str, bounds: str) -> bool:
    """Tell whether a version is within bounds such as `>=2.11,<2.14`; of releases, no more."""
    have = _release(version)
    for bound in _BOUND.finditer(bounds):
        want = _release(bound["version"])
        width = max(len(have), len(want))
        left, right = (tuple((*v, *(0,) * width)[:width]) for v in (have, want))
        holds = {
            ">=": left >= right,
            "<=": left <= right,
            "==": left == right,
            "!=": left != right,
            "<": left < right,
            ">": left > right,
        }
        if not holds[bound["sign"]]:
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    digits = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in digits[0].split(".")) if digits else ()
