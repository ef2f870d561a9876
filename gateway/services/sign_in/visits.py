"""Visits to an issuer: who leaves from here, and who comes back from there, is one browser.

A visit's id is random, has our tag, and is kept by the browser alone, for ten minutes. State, nonce
and PKCE's verifier are computed from it and our secret, each for its own purpose, so nothing is
kept here; what comes back without its id, with another's, late or a second time is refused. The
second time is told by the counters of sign-ins, over all gateways.
"""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.credentials import VISIT_PREFIX, Secrets, parse_token
from gateway.domain.sign_in import Caller
from gateway.errors import GatewayError, LoginFailed
from gateway.ports import Clock
from gateway.services.sign_in.attempts import Attempts
from gateway.services.sign_in.issuer import Issuer
from gateway.services.sign_in.service import SignedIn, SignIn

log = logging.getLogger(__name__)

VISIT_S: Final = 600.0
_MAX_CODE_CHARS: Final = 4096


@dataclass(frozen=True, slots=True)
class Departure:
    """Say where somebody goes, and what their browser keeps meanwhile."""

    address: str
    visit: str


class Visits:
    """Send people to the issuer, and sign in who comes back."""

    def __init__(
        self,
        issuer: Issuer,
        sign_in: SignIn,
        attempts: Attempts,
        secrets: Secrets,
        *,
        clock: Clock = time,
    ) -> None:
        self._issuer = issuer
        self._sign_in = sign_in
        self._attempts = attempts
        self._secrets = secrets
        self._clock = clock

    @property
    def name(self) -> str:
        """Return what people call the issuer."""
        return self._issuer.options.name

    async def begin(self) -> Departure:
        """Begin a visit. Raises: `IssuerUnavailable`."""
        visit = f"{self._secrets.issue(VISIT_PREFIX).text}.{int(self._clock.time())}"
        address = await self._issuer.address(
            state=self._secrets.visit_value(visit, "state"),
            nonce=self._secrets.visit_value(visit, "nonce"),
            verifier=self._secrets.visit_value(visit, "verifier"),
        )
        return Departure(address, visit)

    async def end(self, visit: str, answer: Mapping[str, str], caller: Caller) -> SignedIn:
        """Sign in who comes back with an answer of the issuer's.

        Raises: `LoginFailed`, `LoginLimited`, `NotInvited`, `IssuerUnavailable`,
        `StoreUnavailable`.
        """
        await self._attempts.admit(caller.address)
        try:
            await self._check(visit, answer)
            identity = await self._issuer.identity(
                answer["code"],
                answer.get("iss"),
                nonce=self._secrets.visit_value(visit, "nonce"),
                verifier=self._secrets.visit_value(visit, "verifier"),
            )
            return await self._sign_in.with_identity(identity, caller)
        except GatewayError as exc:
            log.warning("a sign-in by %s failed: %s", self.name, exc.detail or exc.message)
            raise

    async def _check(self, visit: str, answer: Mapping[str, str]) -> None:
        """Raise `LoginFailed` where an answer is not the first one to a visit of this browser."""
        text, _, began = visit.partition(".")
        token = parse_token(text, VISIT_PREFIX)
        if token is None or not self._secrets.is_tagged(token) or not began.isdecimal():
            raise _over("the browser brings no visit")
        state = self._secrets.visit_value(visit, "state")
        if not hmac.compare_digest(state.encode(), answer.get("state", "").encode()):
            raise _over("the state is another visit's")
        if not 0 <= self._clock.time() - int(began) <= VISIT_S:
            raise _over("the visit took too long")
        if not await self._attempts.is_first(token.kid, VISIT_S):
            raise _over("the visit has ended before")
        if "error" in answer:
            raise LoginFailed(
                f"{self.name} did not sign you in.", detail=f"error: {answer['error'][:100]!r}"
            )
        if not 0 < len(answer.get("code", "")) <= _MAX_CODE_CHARS:
            raise _over("there is no code")


def _over(detail: str) -> LoginFailed:
    return LoginFailed("That sign-in is over. Begin it again.", detail=detail)
