"""The sections of the UI: what the navigation shows, to which roles, and the keys that go there.

Who is bound to a tenant is at home below `/portal`, everybody else below `/admin`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.api.admin.routing import OPERATORS, OWNERS, VIEWERS
from gateway.domain.admin import AdminRole

ADMIN: Final = "/admin"
PORTAL: Final = "/portal"
ROOTS: Final = (ADMIN, PORTAL)
# Who may open the portal, and who may change keys there.
TENANTS: Final = frozenset(role for role in AdminRole if role.is_of_tenant)
TENANT_OWNER: Final = frozenset({AdminRole.TENANT_OWNER})


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
        if self.path in ROOTS:
            return path == self.path
        return path == self.path or path.startswith(self.path + "/")


SECTIONS: Final = (
    Section("Overview", "/admin", "overview", "o"),
    Section("Tenants", "/admin/tenants", "tenants", "t"),
    Section("Keys", "/admin/keys", "keys", "k"),
    Section("Plans & prices", "/admin/plans", "plans", "p"),
    Section("Requests", "/admin/requests", "requests", "r"),
    Section("Batches", "/admin/batches", "batches", "b"),
    Section("Playground", "/admin/playground", "play", "y", OPERATORS),
    Section("Scheduler", "/admin/scheduler", "scheduler", "s"),
    Section("People", "/admin/users", "user", "u", OWNERS),
    Section("Audit", "/admin/audit", "audit", "a"),
    Section("Settings", "/admin/settings", "settings", "e"),
)
PORTAL_SECTIONS: Final = (
    Section("Limits", "/portal", "overview", "l", TENANTS),
    Section("Usage", "/portal/usage", "plans", "u", TENANTS),
    Section("Requests", "/portal/requests", "requests", "r", TENANTS),
    Section("Batches", "/portal/batches", "batches", "b", TENANTS),
    Section("Keys", "/portal/keys", "keys", "k", TENANTS),
    Section("Playground", "/portal/playground", "play", "y", TENANT_OWNER),
    Section("Prices", "/portal/prices", "price", "p", TENANTS),
    Section("Changes", "/portal/audit", "audit", "a", TENANTS),
)


def sections_for(role: AdminRole) -> tuple[Section, ...]:
    """Return the sections that a role may open, in their order."""
    sections = PORTAL_SECTIONS if role.is_of_tenant else SECTIONS
    return tuple(section for section in sections if role in section.allows)


def root_of(role: AdminRole) -> str:
    """Return below which root the pages of a role are."""
    return PORTAL if role.is_of_tenant else ADMIN
