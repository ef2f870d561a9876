"""Sessions in PostgreSQL: who speaks is read with each, so that a right that is gone is gone.

A row is a session as long as it is found by `_living`: in its life, used lately, its user not
suspended, its key and the secret it was begun with not ended. The database's clock decides.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any, Final
from uuid import UUID, uuid4

from sqlalchemy import (
    ARRAY,
    Row,
    Uuid,
    and_,
    any_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.admin import Actor, Admin, AdminRole, AuditEntry
from gateway.domain.page import Page, PageRequest
from gateway.domain.sign_in import ACTOR_PREFIX, Session, SessionDraft
from gateway.store.audit_chain import AuditChain
from gateway.store.database import Database
from gateway.store.keyset import Keyset
from gateway.store.sign_in_tables import sessions, users
from gateway.store.tables import key_secrets, keys, tenants

IDLE_S: Final = 1800.0
MAX_PER_USER: Final = 10
_ORDER: Final = Keyset((sessions.c.created_at, sessions.c.id), descending=True)
# How far `seen_at` may lag behind.
_TOUCH_S: Final = 60.0

_IDLE, _TOUCH = timedelta(seconds=IDLE_S), timedelta(seconds=_TOUCH_S)
# Both ways lead to a tenant: that of a user, and that of a key.
_theirs, _its = tenants.alias("theirs"), tenants.alias("its")

_same_secret = exists().where(
    key_secrets.c.key_id == sessions.c.key_id,
    key_secrets.c.mac == sessions.c.key_mac,
    or_(key_secrets.c.expires_at.is_(None), key_secrets.c.expires_at > func.now()),
)
_living = and_(
    sessions.c.expires_at > func.now(),
    sessions.c.seen_at > func.now() - _IDLE,
    or_(
        and_(
            sessions.c.user_id.is_not(None),
            users.c.suspended_at.is_(None),
            or_(users.c.tenant_id.is_(None), _theirs.c.archived_at.is_(None)),
        ),
        and_(
            sessions.c.key_id.is_not(None),
            keys.c.revoked_at.is_(None),
            or_(keys.c.expires_at.is_(None), keys.c.expires_at > func.now()),
            _its.c.archived_at.is_(None),
            _same_secret,
        ),
    ),
)


_joined = (
    sessions.outerjoin(users, sessions.c.user_id == users.c.id)
    .outerjoin(_theirs, users.c.tenant_id == _theirs.c.id)
    .outerjoin(keys, sessions.c.key_id == keys.c.id)
    .outerjoin(_its, keys.c.tenant_id == _its.c.id)
)
# Of sessions that live: what `_session_of` reads, and which of some they are. The latter is asked
# twice a second while anybody watches, and not built anew for it.
_DESCRIBED: Final = (
    select(
        sessions.c.id,
        sessions.c.created_at,
        sessions.c.seen_at,
        sessions.c.expires_at,
        sessions.c.address,
        sessions.c.agent,
        sessions.c.user_id,
        sessions.c.key_id,
        (sessions.c.seen_at < func.now() - _TOUCH).label("is_late"),
        users.c.name,
        users.c.role,
        keys.c.kid,
        keys.c.cidrs,
        _its.c.cidrs.label("tenant_cidrs"),
        func.coalesce(users.c.organisation_id, _its.c.organisation_id).label("organisation_id"),
        func.coalesce(users.c.tenant_id, keys.c.tenant_id).label("tenant_id"),
    )
    .select_from(_joined)
    .where(_living)
)
_WHICH_LIVE: Final = (
    select(sessions.c.id)
    .select_from(_joined)
    .where(_living, sessions.c.id == any_(bindparam("ids", type_=ARRAY(Uuid))))
)


class SqlSessions:
    """Implement `SessionStore`."""

    def __init__(self, database: Database, audit: AuditChain) -> None:
        self._database = database
        self._audit = audit

    async def find(self, mac: bytes) -> Session | None:
        async with self._database.platform() as connection:
            row = (await connection.execute(_DESCRIBED.where(sessions.c.mac == mac))).one_or_none()
            if row is None:
                return None
            if row.is_late:
                await connection.execute(
                    update(sessions).where(sessions.c.id == row.id).values(seen_at=func.now())
                )
        return _session_of(row)

    async def living(self, ids: Collection[UUID]) -> Collection[UUID]:
        async with self._database.platform() as connection:
            found = await connection.scalars(_WHICH_LIVE, {"ids": list(ids)})
            return set(found)

    async def begin(
        self, organisation_id: UUID, draft: SessionDraft, password_hash: str | None
    ) -> Session | None:
        async with self._database.platform() as connection:
            if draft.user_id is not None:
                same = [users.c.id == draft.user_id]
                if password_hash is not None:
                    same.append(users.c.password_hash == password_hash)
                if draft.subject is not None:
                    same.append(users.c.subject == draft.subject)
                held = select(users.c.id).where(*same).with_for_update()
                if (await connection.execute(held)).one_or_none() is None:
                    return None
                await connection.execute(
                    update(users)
                    .where(users.c.id == draft.user_id)
                    .values(last_login_at=func.now())
                )
            await _make_room(connection, draft)
            session_id = uuid4()
            await connection.execute(
                insert(sessions).values(
                    id=session_id,
                    mac=draft.mac,
                    user_id=draft.user_id,
                    key_id=draft.key_id,
                    key_mac=draft.key_mac,
                    expires_at=func.now() + timedelta(seconds=draft.life_s),
                    address=draft.caller.address,
                    agent=draft.caller.agent,
                )
            )
            row = (
                await connection.execute(_DESCRIBED.where(sessions.c.id == session_id))
            ).one_or_none()
            if row is None:
                # Suspended, or revoked, since it was asked for.
                await connection.execute(delete(sessions).where(sessions.c.id == session_id))
                return None
            session = _session_of(row)
            actor = draft.caller.actor(session.admin.name, session.admin.role)
            await self._tell(connection, actor, "login", organisation_id, session)
        return session

    async def end(self, actor: Actor, organisation_id: UUID, session_id: UUID) -> Session | None:
        async with self._database.platform() as connection:
            query = _DESCRIBED.where(sessions.c.id == session_id)
            row = (await connection.execute(query)).one_or_none()
            await connection.execute(delete(sessions).where(sessions.c.id == session_id))
            if row is None:
                return None
            session = _session_of(row)
            is_own = actor.name == session.admin.name
            action = "logout" if is_own else "session.revoke"
            await self._tell(connection, actor, action, organisation_id, session)
        return session

    async def page(
        self, organisation_id: UUID, request: PageRequest, *, of: UUID | None = None
    ) -> Page[Session]:
        query = _DESCRIBED.where(
            func.coalesce(users.c.organisation_id, _its.c.organisation_id) == organisation_id
        )
        if of is not None:
            query = query.where(or_(sessions.c.user_id == of, sessions.c.key_id == of))
        async with self._database.platform() as connection:
            return await _ORDER.page(connection, query, request, _session_of)

    async def _tell(
        self,
        connection: AsyncConnection,
        actor: Actor,
        action: str,
        organisation_id: UUID,
        session: Session,
    ) -> None:
        entry = AuditEntry(
            action=action,
            object_kind="session",
            object_id=str(session.id),
            organisation_id=organisation_id,
            tenant_id=session.admin.tenant_id,
            after={"who": session.admin.name, "role": session.admin.role.value},
        )
        await self._audit.append(connection, actor, entry)


async def _make_room(connection: AsyncConnection, draft: SessionDraft) -> None:
    """Drop what is over, and of whoever signs in the oldest beyond what one may have."""
    await connection.execute(
        delete(sessions).where(
            or_(sessions.c.expires_at <= func.now(), sessions.c.seen_at <= func.now() - _IDLE)
        )
    )
    name, owner = "user_id", draft.user_id
    if owner is None:
        name, owner = "key_id", draft.key_id
    whose, other = sessions.c[name] == owner, sessions.alias()
    newest = (
        select(other.c.id)
        .where(other.c[name] == owner)
        .order_by(other.c.created_at.desc(), other.c.id)
        .limit(MAX_PER_USER - 1)
    )
    await connection.execute(delete(sessions).where(whose, sessions.c.id.not_in(newest)))


def _session_of(row: Row[*tuple[Any, ...]]) -> Session:
    if row.user_id is not None:
        admin = Admin(
            f"{ACTOR_PREFIX}{row.name}", AdminRole(row.role), row.organisation_id, row.tenant_id
        )
    else:
        admin = Admin(
            f"key:{row.kid}",
            AdminRole.TENANT_VIEWER,
            row.organisation_id,
            row.tenant_id,
            None if row.cidrs is None else tuple(row.cidrs),
            None if row.tenant_cidrs is None else tuple(row.tenant_cidrs),
        )
    return Session(
        id=row.id,
        admin=admin,
        created_at=row.created_at,
        seen_at=row.seen_at,
        expires_at=row.expires_at,
        address=row.address,
        agent=row.agent,
        user_id=row.user_id,
        key_id=row.key_id,
    )
