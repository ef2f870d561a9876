"""Which servers let a script break out of its interpreter, and in which versions that is mended.

Whoever may run a script on such a server has the server: CVE-2025-49844, and others mended with it.
Sluice runs its own scripts alone, but a password that has leaked is then more than its keys.
https://redis.io/blog/security-advisory-cve-2025-49844/
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

# The first of each line of versions in which it is mended; lines behind the last never had it.
_MENDED: Final = {
    "Redis": ((6, 2, 20), (7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2)),
    "Valkey": ((7, 2, 11), (8, 0, 6), (8, 1, 4)),
}


def product_of(info: Mapping[str, object]) -> tuple[str, str]:
    """Return what answers INFO and in which version; a Valkey says to be a Redis too."""
    if "valkey_version" in info:
        return "Valkey", str(info["valkey_version"])
    return "Redis", str(info["redis_version"])


def numbers_of(version: str) -> tuple[int, ...]:
    """Return the three numbers that a version begins with, or fewer."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def version_to_use(product: str, version: str) -> str | None:
    """Return the version that mends it for whoever has this one; None: it is mended."""
    has, lines = numbers_of(version), _MENDED[product]
    own = [line for line in lines if line[:2] == has[:2]]
    if has >= (own[0] if own else lines[-1]):
        return None
    return ".".join(map(str, own[0] if own else next(line for line in lines if line > has)))
