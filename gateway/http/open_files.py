"""How many connections this process may hold, by how many files it may open."""

from __future__ import annotations

import contextlib
import resource
from dataclasses import dataclass
from typing import Final

# For what else is open: connections to the stores, the journal, libraries, pipes of a supervisor.
RESERVED_FILES: Final = 256
# The admin API has few clients, and sockets of its own that no tenant can take.
ADMIN_CONNECTIONS: Final = 512


@dataclass(frozen=True, slots=True)
class Room:
    """Say how many connections fit on each port; `max_files` is the limit they fit into."""

    public: int
    admin: int
    max_files: int

    def shortage(self, wanted: int) -> str | None:
        """Say in a sentence that less fits on the public port than is wanted; None if it does."""
        if self.public >= wanted:
            return None
        return (
            f"this process may open {self.max_files} files: {self.public} connections at most, "
            f"not SLUICE_MAX_CONNECTIONS={wanted}"
        )


def files_for(wanted: int) -> int:
    """Return how many files a server of so many connections may come to open."""
    return wanted + ADMIN_CONNECTIONS + RESERVED_FILES


def make_room(wanted: int) -> Room:
    """Raise this process's limit as far as is needed and allowed, and share out what it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = raised_limit(soft, hard, files_for(wanted))
    if raised != soft:
        # Some systems have a bound below what they say.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return room_within(soft, wanted)


def raised_limit(soft: int, hard: int, needed: int) -> int:
    """Return the soft limit to ask for; one that is enough stays, as others have reasons too."""
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return soft
    return needed if hard == resource.RLIM_INFINITY else min(hard, needed)


def room_within(max_files: int, wanted: int) -> Room:
    """Share out what a limit leaves: of a small one a half is reserved, a quarter the admin's."""
    if max_files == resource.RLIM_INFINITY or max_files >= files_for(wanted):
        return Room(wanted, ADMIN_CONNECTIONS, max_files)
    left = max(2, max_files - min(RESERVED_FILES, max_files // 2))
    admin = min(ADMIN_CONNECTIONS, left // 4 or 1)
    return Room(min(wanted, left - admin), admin, max_files)
