"""Whether the admin port speaks plain HTTP to other machines, and whether that is meant.

Its tokens open everything, and it has no TLS of its own: beyond this machine whoever is on the way
could read one. What counts is the address that a name stands for when the port is bound.
"""

from __future__ import annotations

from typing import Final

from gateway.domain.address import is_loopback
from gateway.settings import Settings

WAY_OUT: Final = (
    "leave SLUICE_ADMIN_HOST at 127.0.0.1, behind a proxy that speaks TLS or 'ssh -L'; or set "
    "SLUICE_ADMIN_ALLOW_PLAIN=true where nobody else is on the way"
)


def exposed(settings: Settings, address: str) -> str | None:
    """Say what is wrong with the admin API at the address that it is bound to, None for nothing."""
    if settings.admin_allow_plain or is_loopback(address):
        return None
    return f"the admin API on {address} would send its tokens over the network without TLS"
