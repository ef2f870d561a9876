"""What a check has found, and how bad that is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """Rank a finding: `WARNING` is served with, `BROKEN` is not."""

    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """Say what was found; `mend` is a command, or a sentence where no command does it."""

    name: str
    level: Level
    found: str
    mend: str | None = None


def ok(name: str, found: str) -> Finding:
    return Finding(name, Level.OK, found)


def warning(name: str, found: str, mend: str) -> Finding:
    return Finding(name, Level.WARNING, found, mend)


def broken(name: str, found: str, mend: str) -> Finding:
    return Finding(name, Level.BROKEN, found, mend)
