"""How a port is served: its limits, the proxies in front of it, its certificate."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from gateway.domain.address import Network
from gateway.errors import StartupFailed
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
        """Read those of the public port, for as many connections as there is room for.

        Raises: `StartupFailed`: as `check_tls`.
        """
        check_tls(settings)
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


def check_tls(settings: Settings) -> None:
    """Load the certificate and its key, if any. Raises: `StartupFailed`: which one is not good."""
    if settings.tls_cert is None or settings.tls_key is None:
        return
    for name, path in (
        ("SLUICE_TLS_CERT", settings.tls_cert),
        ("SLUICE_TLS_KEY", settings.tls_key),
    ):
        try:
            path.read_bytes()
        except OSError as exc:
            raise StartupFailed(f"{name}: {path}: {exc.strerror}") from None
    try:
        ssl.create_default_context().load_cert_chain(settings.tls_cert, settings.tls_key)
    except ssl.SSLError as exc:
        raise StartupFailed(
            f"SLUICE_TLS_CERT and SLUICE_TLS_KEY are no certificate and its key: {exc.reason}"
        ) from None
