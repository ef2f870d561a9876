"""The sections of the UI: what the navigation shows, to which roles, and the keys that go there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.api.admin.routing import EVERYONE, OWNERS, VIEWERS
from gateway.domain.admin import AdminRole


@dataclass(frozen=True, slots=True)
class Section:
    """Name a section; `key` goes there after `g`."""

    name: str
    path: str
    icon: str
    key: str
    allows: frozenset[AdminRole] = VIEWERS

    def is_at(self, path: str) -> bool:
        """Tell whether an address belongs to it."""
        if self.path == "/admin":
            return path == self.path
        return path == self.path or path.startswith(self.path + "/")


SECTIONS: Final = (
    Section("Overview", "/admin", "overview", "o"),
    Section("Tenants", "/admin/tenants", "tenants", "t", EVERYONE),
    Section("Keys", "/admin/keys", "keys", "k", EVERYONE),
    Section("Plans & prices", "/admin/plans", "plans", "p"),
    Section("Requests", "/admin/requests", "requests", "r", EVERYONE),
    Section("Batches", "/admin/batches", "batches", "b"),
    Section("Scheduler", "/admin/scheduler", "scheduler", "s"),
    Section("People", "/admin/users", "user", "u", OWNERS),
    Section("Audit", "/admin/audit", "audit", "a", EVERYONE),
    Section("Settings", "/admin/settings", "settings", "e"),
)


def sections_for(role: AdminRole) -> tuple[Section, ...]:
    """Return the sections that a role may open, in their order."""
    return tuple(section for section in SECTIONS if role in section.allows)
