"""Administering who may sign in: who, with which role, and the links that set their passwords.

Nobody sets another's password: whoever makes a user, or resets one, gets a link to hand over.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from gateway.domain.admin import Actor, Admin, AdminRole
from gateway.domain.page import Page, PageRequest
from gateway.domain.sign_in import Session, User, UserDraft, subject_text
from gateway.errors import Conflict, InvalidRequest, NotFound, PermissionDenied
from gateway.ports import UserStore
from gateway.services.admin.tenants import TenantService
from gateway.services.admin.tokens import may_give
from gateway.services.sign_in import Sessions, SignIn
from gateway.services.sign_in.service import require_user_name

# OpenID Connect Core 1.0 §2
_MAX_SUBJECT_CHARS: Final = 255


class UserService:
    """Make, change and remove users; which roles may try is decided above."""

    def __init__(
        self, users: UserStore, tenants: TenantService, sign_in: SignIn, sessions: Sessions
    ) -> None:
        self._users = users
        self._tenants = tenants
        self._sign_in = sign_in
        self.sessions = sessions

    def subject_of(self, user: User) -> str:
        """Return who a user is to the issuer of sign-ins that is set, "" for nobody."""
        known, _, subject = (user.subject or "").partition(" ")
        return subject if known == self._sign_in.issuer else ""

    async def page(self, admin: Admin, request: PageRequest) -> Page[User]:
        """Return users by name. Raises: `InvalidRequest`: the cursor."""
        return await self._users.page(admin.organisation_id, request)

    async def get(self, admin: Admin, name: str) -> User:
        """Return a user. Raises: `NotFound`."""
        record = await self._users.find(admin.organisation_id, name)
        if record is None:
            raise _no_user()
        return record.user

    async def create(
        self,
        admin: Admin,
        actor: Actor,
        *,
        name: str,
        role: AdminRole,
        tenant: str | None = None,
        subject: str | None = None,
    ) -> tuple[User, str]:
        """Make a user, and the link by which they set a password.

        `subject` is who they are to the issuer of sign-ins, where one is set.
        Raises: `InvalidRequest`; `Conflict`: the name is taken; `NotFound`: no such tenant;
        `PermissionDenied`: `admin` may not give that role.
        """
        name = name.strip().lower()
        require_user_name(name)
        rights = await self._rights(admin, role, tenant)
        draft = UserDraft(
            name=name,
            role=role,
            tenant_id=rights["tenant_id"],
            subject=None if subject is None else self._subject(subject),
        )
        await self._users.add(actor, admin.organisation_id, draft)
        return await self._sign_in.new_link(admin, actor, name)

    async def update(
        self,
        admin: Admin,
        actor: Actor,
        name: str,
        *,
        role: AdminRole | None = None,
        tenant: str | None = None,
        is_suspended: bool | None = None,
        subject: str | None = None,
        version: int | None = None,
    ) -> User:
        """Change a user's role, whether they may sign in, and as whom; their sessions end with it.

        An empty `subject` is nobody's: the issuer's word lets them in no more.
        Raises: `NotFound`; `VersionConflict`; `InvalidRequest`: the last owner, a tenant without
        its role, or no issuer; `Conflict`: the subject is another's; `PermissionDenied`.
        """
        changes: dict[str, object] = {}
        if role is not None:
            changes |= await self._rights(admin, role, tenant)
        elif tenant is not None:
            raise InvalidRequest("'tenant' goes with a role.", param="tenant")
        if is_suspended is not None:
            changes["is_suspended"] = is_suspended
        if subject is not None:
            changes["subject"] = self._subject(subject) if subject else None
        user = await self._users.update(actor, admin.organisation_id, name, changes, version)
        self.sessions.forget()
        if user is None:
            raise _no_user()
        return user

    async def remove(self, admin: Admin, actor: Actor, name: str) -> User:
        """Remove a user, at once everywhere. Raises: `NotFound`; `InvalidRequest`: the last one."""
        user = await self._users.remove(actor, admin.organisation_id, name)
        self.sessions.forget()
        if user is None:
            raise _no_user()
        return user

    async def reset(self, admin: Admin, actor: Actor, name: str) -> tuple[User, str]:
        """Make a link by which a user sets a new password; the old one holds until then.

        Raises: `NotFound`.
        """
        return await self._sign_in.new_link(admin, actor, name)

    async def first_link(self, actor: Actor) -> str:
        """Make a link for the first owner. Raises: `Conflict`: there is an owner."""
        link = await self._sign_in.first_link(actor)
        if link is None:
            raise Conflict(
                "There is an owner who can sign in: 'sluice admin reset NAME' helps one."
            )
        return link

    async def page_of_sessions(self, request: PageRequest) -> Page[Session]:
        """Return everybody's sessions, the newest first. Raises: `InvalidRequest`: the cursor."""
        return await self.sessions.page(request)

    async def end_session(self, actor: Actor, session_id: UUID) -> Session:
        """End anybody's session at once. Raises: `NotFound`."""
        return await self.sessions.end(actor, session_id)

    def _subject(self, subject: str) -> str:
        issuer, subject = self._sign_in.issuer, subject.strip()
        if issuer is None:
            raise InvalidRequest("No issuer of sign-ins is set.", param="subject")
        if not 0 < len(subject) <= _MAX_SUBJECT_CHARS or not subject.isprintable():
            raise InvalidRequest(
                f"A subject is 1 to {_MAX_SUBJECT_CHARS} characters.", param="subject"
            )
        return subject_text(issuer, subject)

    async def _rights(self, admin: Admin, role: AdminRole, tenant: str | None) -> dict[str, Any]:
        if not may_give(admin.role, role):
            raise PermissionDenied(f"The role {admin.role.value} may not give {role.value}.")
        if role.is_of_tenant != (tenant is not None):
            raise InvalidRequest(
                "'tenant' goes with the roles tenant-owner and tenant-viewer, which need it.",
                param="tenant",
            )
        if tenant is None:
            return {"role": role, "tenant_id": None}
        return {"role": role, "tenant_id": (await self._tenants.get(tenant)).id}


def _no_user() -> NotFound:
    return NotFound("There is no user of that name.", param="user")
