"""An issuer of our own, as OpenID Connect has it: it signs in whomever a test says, by real keys.

It takes a code once, from the client and for the address that it was made for, with PKCE's proof.
What an ID token says, and how it is signed, a test may change.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

ISSUER = "https://issuer.example/realms/ours"
CLIENT, SECRET = "sluice", "a client's secret"

Claims = dict[str, Any]


@dataclass
class FakeIssuer:
    """Vouch for `subject`; `change` edits what is said, `sign` signs it, `extra` is metadata."""

    subject: str = "248289761001"
    change: Callable[[Claims], Claims] = lambda claims: claims
    sign: Callable[[Claims], str] | None = None
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "first"}))
    extra: Claims = field(default_factory=dict)
    # What comes back with a code beside it.
    iss: str | None = ISSUER
    is_away: bool = False
    are_keys_away: bool = False
    before_keys: asyncio.Event | None = None
    num_keys_asked: int = 0
    num_asked: int = 0
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def transport(self) -> httpx.ASGITransport:
        """Reach it as a client does."""
        path = urlsplit(ISSUER).path
        routes = [
            Route(f"{path}/.well-known/openid-configuration", self._metadata),
            Route(f"{path}/keys", self._keys),
            Route(f"{path}/token", self._token, methods=["POST"]),
        ]
        return httpx.ASGITransport(Starlette(routes=routes))

    def visit(self, address: str) -> str:
        """Sign somebody in who was sent to an address; returns where they are sent back to."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        assert address.startswith(f"{ISSUER}/authorize?")
        assert (asked["response_type"], asked["client_id"]) == ("code", CLIENT)
        assert (asked["code_challenge_method"], asked["scope"]) == ("S256", "openid profile email")
        code = secrets.token_hex(8)
        self._codes[code] = asked
        answer = {"code": code, "state": asked["state"]}
        if self.iss is not None:
            answer["iss"] = self.iss
        return f"{asked['redirect_uri']}?{urlencode(answer)}"

    def signed(self, claims: Claims) -> str:
        """Sign as it should be."""
        return jwt.encode({"alg": "RS256", "kid": self.key.kid}, claims, self.key)

    async def _metadata(self, request: Request) -> Response:
        self.num_asked += 1
        if self.is_away:
            return Response(status_code=502)
        known = {
            "issuer": ISSUER,
            "authorization_endpoint": f"{ISSUER}/authorize",
            "token_endpoint": f"{ISSUER}/token",
            "jwks_uri": f"{ISSUER}/keys",
            "authorization_response_iss_parameter_supported": True,
        }
        return JSONResponse(known | self.extra)

    async def _keys(self, request: Request) -> Response:
        self.num_asked += 1
        self.num_keys_asked += 1
        if self.before_keys is not None:
            await self.before_keys.wait()
        if self.are_keys_away:
            return Response(status_code=502)
        return JSONResponse(KeySet([self.key]).as_dict(private=False))

    async def _token(self, request: Request) -> Response:
        form = await request.form()
        asked = self._codes.pop(str(form["code"]), None)
        basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        proof = hashlib.sha256(str(form["code_verifier"]).encode()).digest()
        is_good = (
            asked is not None
            and asked["redirect_uri"] == form["redirect_uri"]
            and asked["code_challenge"] == base64.urlsafe_b64encode(proof).rstrip(b"=").decode()
            and len(str(form["code_verifier"])) >= 43
        )
        if asked is None or not is_good:
            return JSONResponse({"error": "invalid_grant"}, 400)
        if request.headers["authorization"] not in (f"Basic {basic}",):
            return JSONResponse({"error": "invalid_client"}, 401)
        now = int(time.time())
        claims = self.change(
            {
                **{"iss": ISSUER, "aud": CLIENT, "sub": self.subject, "nonce": asked["nonce"]},
                **{"iat": now, "exp": now + 300},
            }
        )
        raw = (self.sign or self.signed)(claims)
        return JSONResponse({"access_token": "x", "token_type": "Bearer", "id_token": raw})
