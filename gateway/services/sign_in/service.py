"""Signing in: by password, by a link that sets one, by a tenant's key, by another issuer's word.

Every failure by name and password is the same `LoginFailed`, after the same work. A sign-in begins
a session with an id of its own; whatever id the browser had before is no part of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from gateway.credentials import (
    KEY_PREFIX,
    LINK_PREFIX,
    SESSION_PREFIX,
    Secrets,
    Token,
    parse_token,
)
from gateway.domain import Principal
from gateway.domain.admin import Actor, Admin, AdminRole
from gateway.domain.sign_in import (
    ACTOR_PREFIX,
    Caller,
    Identity,
    Session,
    SessionDraft,
    User,
    UserDraft,
    UserRecord,
    is_user_name,
)
from gateway.errors import (
    AuthenticationFailed,
    Conflict,
    InvalidRequest,
    LinkOver,
    LoginFailed,
    NotFound,
    NotInvited,
)
from gateway.ports import SessionStore, UserStore
from gateway.services.auth import Authenticator, admits
from gateway.services.sign_in.attempts import Attempts
from gateway.services.sign_in.failed_logins import FailedLogins
from gateway.services.sign_in.passwords import Passwords, require_password
from gateway.services.sign_in.sessions import Sessions

SESSION_S: Final = 12 * 3600.0
KEY_SESSION_S: Final = 3600.0
FIRST_LINK_S: Final = 3600.0
LINK_S: Final = 24 * 3600.0
_AGENT_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class SignedIn:
    """Pair a new session with its id, which its browser alone keeps."""

    session: Session
    text: str = field(repr=False)


class SignIn:
    """Begin sessions, set passwords."""

    def __init__(
        self,
        users: UserStore,
        store: SessionStore,
        secrets: Secrets,
        organisation_id: UUID,
        *,
        sessions: Sessions,
        passwords: Passwords,
        attempts: Attempts,
        failed: FailedLogins,
        keys: Authenticator,
        issuer: str | None = None,
    ) -> None:
        """`issuer` is whose word is taken for who somebody is, besides passwords."""
        self._users = users
        self._store = store
        self._secrets = secrets
        self._organisation_id = organisation_id
        self._sessions = sessions
        self._passwords = passwords
        self._attempts = attempts
        self._failed = failed
        self._keys = keys
        self.issuer = issuer

    async def with_password(self, name: str, password: str, caller: Caller) -> SignedIn:
        """Sign a user in. Raises: `LoginFailed`, `LoginLimited`, `StoreUnavailable`."""
        name = name.strip().lower()
        record = await self._proven(name, password, caller)
        signed_in = await self._begin_user(record, caller)
        await self._attempts.succeeded(name, caller.address)
        return signed_in

    async def with_key(self, key: str, caller: Caller) -> SignedIn:
        """Let a tenant's key read for an hour what its tenant may, whatever its limits say.

        Raises: `LoginFailed`, `LoginLimited`, `StoreUnavailable`.
        """
        await self._attempts.admit(caller.address)
        token = parse_token(key.strip(), KEY_PREFIX)
        try:
            if token is None:
                raise AuthenticationFailed
            principal = await self._keys.authenticate(token.text)
        except AuthenticationFailed as exc:
            self._failed.note(None, caller.address)
            raise LoginFailed("That is no live key.", detail=exc.detail) from exc
        for cidrs in (principal.cidrs, principal.tenant_cidrs):
            if not admits(cidrs, caller.address):
                raise LoginFailed("This key may not be used from your address.")
        return await self._begin_key(principal, token, caller)

    async def with_identity(self, identity: Identity, caller: Caller) -> SignedIn:
        """Sign in whom the issuer vouches for: the user that an owner has made for them.

        Nobody is found by a name or an address, which issuers let people choose. Raises:
        `NotInvited`, `LoginFailed`, `StoreUnavailable`.
        """
        assert identity.issuer == self.issuer, "another's word was not taken"
        record = await self._users.by_subject(self._organisation_id, identity.text)
        if record is None and identity.role is not None:
            record = await self._welcomed(identity, identity.role, caller)
        if record is None:
            self._failed.note(None, caller.address)
            raise NotInvited(
                "Nobody here was invited as you. An owner can make a user for you, by the subject "
                f"that you are there: {identity.subject}"
            )
        if record.user.suspended_at is not None:
            self._failed.note(record.user.name, caller.address)
            raise LoginFailed("You may not sign in here.")
        return await self._begin_user(record, caller, subject=identity.text)

    async def link_is_for(self, text: str) -> str | None:
        """Return whose password a link sets; None: the first owner's, who has no name yet.

        Raises: `LinkOver`.
        """
        is_good, name = await self._users.link_is_for(self._secrets.session_mac(self._link(text)))
        if not is_good:
            raise LinkOver
        return name

    async def with_link(self, text: str, name: str, password: str, caller: Caller) -> SignedIn:
        """Set a password by a link, which is used up by it, and sign in.

        `name` is what the first owner is to be called; others have theirs.
        Raises: `LinkOver`; `InvalidRequest`: the name or the password; `LoginLimited`.
        """
        link = self._link(text)
        known = await self.link_is_for(text)
        name = known or name.strip().lower()
        require_user_name(name)
        require_password(password, name)
        await self._attempts.admit(caller.address)
        password_hash = await self._passwords.hash(password)
        mac = self._secrets.session_mac(link)
        try:
            record = await self._users.follow_link(
                caller, self._organisation_id, mac, name, password_hash
            )
        except Conflict as exc:
            raise LinkOver from exc
        if record is None:
            raise LinkOver
        self._sessions.forget()
        await self._attempts.succeeded(name, caller.address)
        return await self._begin_user(record, caller)

    async def change_password(
        self, session: Session, old: str, new: str, caller: Caller
    ) -> SignedIn:
        """Change the password of who is signed in; all of their sessions end, and one begins.

        Raises: `LoginFailed`: the old one; `InvalidRequest`: the new one; `LoginLimited`.
        """
        if session.user_id is None:
            raise InvalidRequest("Who signs in by a key has no password.")
        name = session.title
        require_password(new, name)
        record = await self._proven(name, old, caller)
        assert record.password_hash is not None, "it was proven"
        new_hash = await self._passwords.hash(new)
        actor = caller.actor(session.admin.name, session.admin.role)
        user = await self._users.set_password(
            actor, self._organisation_id, name, new_hash, record.password_hash
        )
        self._sessions.forget()
        if user is None:
            raise LoginFailed
        return await self._begin_user(UserRecord(user, new_hash), caller)

    async def first_link(self, actor: Actor) -> str | None:
        """Make a link for the first owner; None where there is an owner who can sign in."""
        if await self._users.has_owner(self._organisation_id):
            return None
        link = self._secrets.issue(LINK_PREFIX)
        mac = self._secrets.session_mac(link)
        try:
            await self._users.add_link(actor, self._organisation_id, mac, None, FIRST_LINK_S)
        except Conflict:
            return None
        return link.text

    async def new_link(self, admin: Admin, actor: Actor, name: str) -> tuple[User, str]:
        """Make a link by which a user sets a password. Raises: `NotFound`."""
        link = self._secrets.issue(LINK_PREFIX)
        mac = self._secrets.session_mac(link)
        user = await self._users.add_link(actor, admin.organisation_id, mac, name, LINK_S)
        if user is None:
            raise NotFound("There is no user of that name.", param="user")
        return user, link.text

    async def _proven(self, name: str, password: str, caller: Caller) -> UserRecord:
        """Find a user by name and password. Raises: `LoginFailed`, `LoginLimited`."""
        await self._attempts.admit(caller.address, name)
        record = None
        if is_user_name(name):
            record = await self._users.find(self._organisation_id, name)
        may = record is not None and record.user.suspended_at is None
        known = record.password_hash if record is not None and may else None
        if not await self._passwords.verify(password, known) or record is None:
            self._failed.note(None if record is None else name, caller.address)
            raise LoginFailed
        return record

    async def _welcomed(self, identity: Identity, role: AdminRole, caller: Caller) -> UserRecord:
        """Make a user of who was not invited, where the issuer's word gives a role.

        Raises: `LoginFailed`: there is somebody of the name already.
        """
        name = identity.name.strip().lower()
        if not is_user_name(name) or name.startswith(ACTOR_PREFIX):
            raise LoginFailed("Your name there is none that a user here may have.")
        draft = UserDraft(name=name, role=role, subject=identity.text)
        actor = caller.actor(f"{ACTOR_PREFIX}{name}", role)
        try:
            user = await self._users.add(actor, self._organisation_id, draft)
        except Conflict:
            raise LoginFailed(
                "There is another user of your name here. An owner can let you in as yourself."
            ) from None
        return UserRecord(user, None)

    async def _begin_user(
        self, record: UserRecord, caller: Caller, *, subject: str | None = None
    ) -> SignedIn:
        token = self._secrets.issue(SESSION_PREFIX)
        draft = SessionDraft(
            mac=self._secrets.session_mac(token),
            life_s=SESSION_S,
            caller=_short(caller),
            user_id=record.user.id,
            subject=subject,
        )
        return await self._begin(token, draft, record.password_hash if subject is None else None)

    async def _begin_key(self, principal: Principal, key: Token, caller: Caller) -> SignedIn:
        token = self._secrets.issue(SESSION_PREFIX)
        draft = SessionDraft(
            mac=self._secrets.session_mac(token),
            life_s=KEY_SESSION_S,
            caller=_short(caller),
            key_id=principal.key_id,
            key_mac=self._secrets.key_mac(key),
        )
        return await self._begin(token, draft, None)

    async def _begin(
        self, token: Token, draft: SessionDraft, password_hash: str | None
    ) -> SignedIn:
        session = await self._store.begin(self._organisation_id, draft, password_hash)
        if session is None:
            raise LoginFailed
        return SignedIn(session, token.text)

    def _link(self, text: str) -> Token:
        token = parse_token(text, LINK_PREFIX)
        if token is None or not self._secrets.is_tagged(token):
            raise LinkOver
        return token


def require_user_name(name: str) -> None:
    """Refuse what is no name of a user. Raises: `InvalidRequest`."""
    if not is_user_name(name) or name.startswith(ACTOR_PREFIX):
        raise InvalidRequest(
            "A user's name is 1 to 127 of a-z, 0-9 and '._%+@-', a letter or digit first.",
            param="name",
        )


def _short(caller: Caller) -> Caller:
    agent = "".join(char for char in caller.agent[:_AGENT_CHARS] if char.isprintable())
    return Caller(caller.address, agent, caller.request_id)
