"""What another issuer says of who somebody is, and whether it is the issuer that says so.

OpenID Connect's code flow, with PKCE: Authlib speaks to the issuer, joserfc looks at signatures. Of
an ID token it is checked that a key of the issuer's signed it, by an algorithm whose signatures
others cannot make; that it is from this issuer, for this client alone, of now, of this visit.
Nothing of it is believed before that. The issuer is asked directly: no proxy of the environment
is, a redirect is a failure, and what it says of itself must be of itself.

Specs: OpenID Connect Core 1.0 §3.1.3.7; RFC 7636; RFC 9207; RFC 8725.
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from gateway.domain.admin import AdminRole
from gateway.domain.sign_in import Identity
from gateway.errors import IssuerUnavailable, LoginFailed, StartupFailed
from gateway.ports import Clock

T = TypeVar("T")

# What nobody can sign who has but what everybody may read. No HS*, and never `none`.
ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
_TIMEOUT_S: Final = 5.0
_MAX_BYTES: Final = 256 << 10
_KNOWN_S: Final = 3600.0
# One that does not answer is asked this often at most: strangers begin visits as they like, and
# each that waited for it would make the next one wait.
_AWAY_S: Final = 3.0
# Keys are asked for again where a token names one that is not known, this often at most.
_KEYS_AGAIN_S: Final = 30.0
_LEEWAY_S: Final = 60
# An ID token is made as the visit ends.
_MAX_AGE_S: Final = 600
_MAX_SUBJECT_CHARS: Final = 255
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerOptions:
    """Say whose word is taken, and as which client it is asked; `name` is what people call it.

    `roles` are given to who was not invited, by the values of `role_claim`; without it, to nobody.
    """

    issuer: str
    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    redirect_url: str
    scopes: str = "openid profile email"
    name: str = "single sign-on"
    role_claim: str | None = None
    roles: Mapping[str, AdminRole] = field(default_factory=dict)


class Issuer:
    """Send people to an issuer, and learn who came back. `transport` is for tests."""

    def __init__(
        self,
        options: IssuerOptions,
        *,
        clock: Clock = time,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Raises: `StartupFailed`: Authlib is not installed."""
        self.options = options
        self._clock = clock
        self._transport = transport
        self._tls: ssl.SSLContext | None = None
        self._known: _Kept[dict[str, Any]] = _Kept(clock)
        self._keys: _Kept[Any] = _Kept(clock)
        require_authlib()

    async def look(self) -> None:
        """See whether the issuer answers as itself. Raises: `IssuerUnavailable`."""
        await self._metadata()

    async def address(self, *, state: str, nonce: str, verifier: str) -> str:
        """Return where somebody signs in there. Raises: `IssuerUnavailable`."""
        from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
        from authlib.oauth2.rfc7636 import create_s256_code_challenge

        known = await self._metadata()
        url: str = prepare_grant_uri(
            known["authorization_endpoint"],
            self.options.client_id,
            "code",
            self.options.redirect_url,
            self.options.scopes,
            state,
            nonce=nonce,
            response_mode="query",
            code_challenge=create_s256_code_challenge(verifier),
            code_challenge_method="S256",
        )
        return url

    async def identity(
        self, code: str, named: str | None, *, nonce: str, verifier: str
    ) -> Identity:
        """Return who came back with a code; `named` is who the answer says that it is from.

        Raises: `LoginFailed`, with what is wrong in its detail; `IssuerUnavailable`.
        """
        known = await self._metadata()
        is_named = known.get("authorization_response_iss_parameter_supported") is True
        if named != self.options.issuer and (named is not None or is_named):
            raise _refused("the answer is of another issuer")
        raw = await self._token(known["token_endpoint"], code, verifier)
        return self._identity(await self._claims(raw, known), nonce)

    async def _token(self, url: str, code: str, verifier: str) -> str:
        """Change a code for an ID token."""
        from authlib.oauth2.auth import ClientAuth
        from authlib.oauth2.rfc6749.parameters import prepare_token_request

        options = self.options
        asked = prepare_token_request(
            "authorization_code",
            redirect_uri=options.redirect_url,
            code=code,
            code_verifier=verifier,
        )
        way = "client_secret_basic" if options.client_secret is not None else "none"
        auth = ClientAuth(options.client_id, options.client_secret, way)
        head = {"content-type": "application/x-www-form-urlencoded"}
        url, head, body = auth.prepare("POST", url, head, asked)
        status, answer = await self._ask("POST", url, head, body)
        raw = answer.get("id_token")
        if status != 200 or not isinstance(raw, str):
            raise _refused(f"the code was not taken: {status}, {str(answer.get('error'))[:100]!r}")
        return raw

    async def _claims(self, raw: str, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return what an ID token says, once its signature is known to be the issuer's."""
        from joserfc import jwt
        from joserfc.errors import JoseError
        from joserfc.jws import JWSRegistry

        for is_again in (False, True):
            keys = await self._key_set(known["jwks_uri"], is_again=is_again)
            try:
                token = jwt.decode(raw, keys, registry=JWSRegistry(algorithms=ALGORITHMS))
            except (JoseError, ValueError) as exc:
                reason = f"signature: {type(exc).__name__}: {exc}"
                continue
            return dict(token.claims)
        raise _refused(reason)

    def _identity(self, claims: Mapping[str, Any], nonce: str) -> Identity:
        options, now = self.options, self._clock.time()
        audience, subject = claims.get("aud"), claims.get("sub")
        audiences = audience if isinstance(audience, list) else [audience]
        if claims.get("iss") != options.issuer:
            raise _refused("it is of another issuer")
        if (
            audiences != [options.client_id]
            or claims.get("azp", options.client_id) != options.client_id
        ):
            raise _refused("it is for another client")
        if not _is_time(claims.get("exp")) or claims["exp"] + _LEEWAY_S <= now:
            raise _refused("it is over")
        if not _is_time(claims.get("iat")) or not -_LEEWAY_S <= now - claims["iat"] <= _MAX_AGE_S:
            raise _refused("it was not made just now")
        if not _is_time(claims.get("nbf", 0)) or claims.get("nbf", 0) - _LEEWAY_S > now:
            raise _refused("it is not good yet")
        given = claims.get("nonce")
        if not isinstance(given, str) or not hmac.compare_digest(given.encode(), nonce.encode()):
            raise _refused("it is of another visit")
        if not isinstance(subject, str) or not 0 < len(subject) <= _MAX_SUBJECT_CHARS:
            raise _refused("it names nobody")
        if not subject.isprintable():
            raise _refused("its subject is not to be read")
        return Identity(options.issuer, subject, _name(claims), self._role(claims))

    def _role(self, claims: Mapping[str, Any]) -> AdminRole | None:
        """Return the first of the roles, as they are set, whose value the claim has."""
        if self.options.role_claim is None:
            return None
        held = claims.get(self.options.role_claim)
        values = held if isinstance(held, list) else [held]
        return next((role for value, role in self.options.roles.items() if value in values), None)

    async def _metadata(self) -> dict[str, Any]:
        """Return what the issuer says of itself. Raises: `IssuerUnavailable`."""
        url = self.options.issuer.rstrip("/") + "/.well-known/openid-configuration"

        async def ask() -> dict[str, Any]:
            return self._checked(await self._document(url))

        return await self._known.get(ask, _KNOWN_S)

    def _checked(self, known: dict[str, Any]) -> dict[str, Any]:
        if known.get("issuer") != self.options.issuer:
            raise IssuerUnavailable(detail=f"it calls itself {known.get('issuer')!r}")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            url = known.get(name)
            if not isinstance(url, str) or not is_issuer_url(url, like=self.options.issuer):
                raise IssuerUnavailable(detail=f"its {name} is {url!r}")
        return known

    async def _key_set(self, url: str, *, is_again: bool) -> Any:
        """Return the issuer's keys; `is_again`: a token was signed by none of them."""
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        async def ask() -> Any:
            found = await self._document(url)
            try:
                public = [key for key in found["keys"] if key.get("kty") in ("RSA", "EC", "OKP")]
                return KeySet.import_key_set({"keys": public})
            except (JoseError, KeyError, TypeError, ValueError, AttributeError) as exc:
                raise IssuerUnavailable(detail=f"keys: {exc!r}") from exc

        return await self._keys.get(ask, _KEYS_AGAIN_S if is_again else _KNOWN_S)

    async def _document(self, url: str) -> dict[str, Any]:
        """Read what everybody may. Raises: `IssuerUnavailable`."""
        status, found = await self._ask("GET", url, {}, "")
        if status != 200:
            raise IssuerUnavailable(detail=f"{url} answers {status}")
        return found

    async def _ask(
        self, method: str, url: str, head: Mapping[str, str], body: str
    ) -> tuple[int, dict[str, Any]]:
        """Return the status and the JSON object of an answer. Raises: `IssuerUnavailable`."""
        raw = b""
        if self._tls is None:
            # In a thread, and once: reading certificates takes time that the event loop has not.
            self._tls = await asyncio.to_thread(lambda: httpx.create_ssl_context(trust_env=False))
        apart = httpx.AsyncClient(
            timeout=_TIMEOUT_S,
            trust_env=False,
            follow_redirects=False,
            verify=self._tls,
            transport=self._transport,
        )
        # As it is sent, so that what is small on its way is not large before it is counted.
        head = {"accept": "application/json", "accept-encoding": "identity", **head}
        try:
            async with (
                asyncio.timeout(_TIMEOUT_S),
                apart as client,
                client.stream(method, url, headers=head, content=body.encode()) as answer,
            ):
                async for part in answer.aiter_raw():
                    raw += part
                    if len(raw) > _MAX_BYTES:
                        raise IssuerUnavailable(detail=f"{url} is too long")
            return answer.status_code, msgspec.json.decode(raw, type=dict[str, Any])
        except (httpx.HTTPError, TimeoutError, msgspec.MsgspecError, UnicodeError) as exc:
            raise IssuerUnavailable(detail=f"{url}: {exc!r}") from exc


class _Kept(Generic[T]):
    """Keep one thing that the issuer said; it is asked by one at a time, and then not at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asking = asyncio.Lock()
        self._found: T | None = None
        self._away: IssuerUnavailable | None = None
        self._found_at = self._away_at = 0.0

    async def get(self, ask: Callable[[], Awaitable[T]], max_age_s: float) -> T:
        """Return what is kept, or what it says now. Raises: `IssuerUnavailable`, as `ask` does."""
        async with self._asking:
            now = self._clock.monotonic()
            if self._found is None or now - self._found_at > max_age_s:
                if self._away is not None and now - self._away_at < _AWAY_S:
                    raise IssuerUnavailable(detail=self._away.detail)
                try:
                    self._found = await ask()
                except IssuerUnavailable as exc:
                    self._away, self._away_at = exc, self._clock.monotonic()
                    raise
                self._found_at = self._clock.monotonic()
            return self._found


def require_authlib() -> None:
    """Raises: `StartupFailed`: the extra is not installed."""
    try:
        import authlib
        import joserfc
    except ImportError:
        raise StartupFailed(
            "SLUICE_OIDC_ISSUER is set, which needs: pip install 'sluice-gateway[oidc]'"
        ) from None
    del authlib, joserfc


def is_issuer_url(url: str, *, like: str | None = None) -> bool:
    """Tell whether an issuer, or a part of it, may be there: over TLS, or on this machine alone.

    `like` is the issuer's own address: one that speaks TLS has no part that does not.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    if not parts.hostname or "@" in parts.netloc or parts.fragment or not url.isprintable():
        return False
    if parts.scheme == "https":
        return True
    is_here = parts.scheme == "http" and parts.hostname in _LOOPBACK
    return is_here and (like is None or urlsplit(like).scheme == "http")


def _name(claims: Mapping[str, Any]) -> str:
    """Return what somebody could be called here."""
    for claim in ("preferred_username", "email"):
        if isinstance(name := claims.get(claim), str):
            return name
    return ""


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _refused(detail: str) -> LoginFailed:
    """Say no more to a stranger than that it did not work; `detail` is for the log."""
    return LoginFailed("That sign-in did not work. Begin it again.", detail=detail)
