"""Where people may sign in instead: whether it answers, as who it is set to be."""

from __future__ import annotations

import asyncio

from gateway.app.signing_in import issuer_of
from gateway.doctor.finding import Finding, broken, ok, warning
from gateway.errors import IssuerUnavailable, StartupFailed
from gateway.settings import Settings


def check_issuer(settings: Settings) -> list[Finding]:
    """Ask the issuer what it says of itself; nothing is found where none is set."""
    try:
        issuer = issuer_of(settings)
    except StartupFailed as exc:
        return [broken("issuer", str(exc), "install what the message names")]
    if issuer is None:
        return []
    try:
        asyncio.run(issuer.look())
    except IssuerUnavailable as exc:
        mend = "mend SLUICE_OIDC_ISSUER, or let this machine reach it; passwords go on"
        return [warning("issuer", exc.detail or exc.message, mend)]
    back = issuer.options.redirect_url
    return [ok("issuer", f"{settings.oidc_issuer} answers; the way back is {back}")]
