"""What Redis holds of a scope, read beside the function that writes it."""

from __future__ import annotations

import struct


def counted(stored: bytes | None) -> dict[str, float]:
    """Return a scope's fields, none where nothing is stored."""
    if stored is None:
        return {}
    head, _, values = stored.partition(b"\0")
    names = head.decode().split()
    return dict(zip(names, struct.unpack(f"<{len(names)}d", values), strict=True))


def newest_slot(stored: bytes | None, window: str) -> tuple[int, int]:
    """Return what the newest slot of a window has used and holds."""
    fields = counted(stored)
    newest = fields.get(f"{window}:l")
    if newest is None:
        return 0, 0
    used, held = (fields.get(f"{window}:{kind}:{newest:.0f}", 0) for kind in "uh")
    return int(used), int(held)
