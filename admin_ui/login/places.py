"""Where to go on after signing in: a page of ours, whatever an address asked for."""

from __future__ import annotations

import re
from typing import Final

from admin_ui.navigation import ADMIN, root_of
from gateway.domain.admin import Admin

# Below one of our roots, in characters that no browser reads as the beginning of another host.
_OURS: Final = re.compile(r"/(?:admin|portal)(?:[/?][A-Za-z0-9/?&=%:,+~._@-]*)?")
_OURS_MAX_CHARS: Final = 2000
_NOT_AFTER: Final = ("/admin/login", "/admin/logout", "/admin/password", "/portal/login")


def place_of(admin: Admin, asked: str) -> str:
    """Return where somebody goes on to: what was asked for, if it is below their own root."""
    home = root_of(admin.role)
    place = place_after(asked, home)
    return place if home == ADMIN or place.startswith(home) else home


def place_after(asked: str, default: str) -> str:
    """Return the address asked for if it is one of our pages, or `default`."""
    if len(asked) > _OURS_MAX_CHARS or _OURS.fullmatch(asked) is None:
        return default
    if "//" in asked or ".." in asked or asked.startswith(_NOT_AFTER):
        return default
    return asked
