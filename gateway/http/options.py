"""How a port is served: its limits, the proxies in front of it, its certificate."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gateway.domain.address import Network
from gateway.http.limits import HttpLimits
from gateway.http.open_files import Room
from gateway.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """Gather what a server of one port is told; `tls_cert` and `tls_key` go together."""

    limits: HttpLimits = field(default_factory=HttpLimits)
    trusted_proxies: tuple[Network, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None

    @classmethod
    def of(cls, settings: Settings, room: Room) -> HttpOptions:
        """Read those of the public port, for as many connections as there is room for."""
        limits = HttpLimits(
            max_connections=room.public,
            max_connections_per_address=settings.max_connections_per_address,
        )
        return cls(
            limits=limits,
            trusted_proxies=settings.trusted_proxies,
            tls_cert=settings.tls_cert,
            tls_key=settings.tls_key,
        )

    @classmethod
    def of_admin(cls, settings: Settings, room: Room) -> HttpOptions:
        """Read those of the admin port: behind a proxy too, sign-ins count by their client."""
        return cls(
            limits=HttpLimits(max_connections=room.admin),
            trusted_proxies=settings.trusted_proxies,
        )
