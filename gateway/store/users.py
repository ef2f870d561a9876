"""Users in PostgreSQL, and the links that set their passwords.

A change of what a user may ends every session of theirs in its own transaction. The last owner who
can sign in stays one: changes of owners take their turns by the organisation's row.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final
from uuid import UUID, uuid4

from sqlalchemy import Row, Select, and_, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.admin import Actor, AdminRole, AuditEntry
from gateway.domain.page import Page, PageRequest
from gateway.domain.sign_in import Caller, User, UserDraft, UserRecord
from gateway.errors import Conflict, InvalidRequest, VersionConflict
from gateway.store.audit_chain import AuditChain
from gateway.store.database import Database
from gateway.store.keyset import Keyset
from gateway.store.organisations import hold_tenant
from gateway.store.sign_in_tables import password_links, sessions, users
from gateway.store.tables import organisations, tenants

_ORDER: Final = Keyset((users.c.name, users.c.id))
# Of servers that start one after the other, before anybody has signed in.
_MAX_FIRST_LINKS: Final = 8
# Who a link is for that makes the first owner, in the audit log.
_FIRST_OWNER: Final = "first owner"
_SUBJECTS: Final = "uq_users_organisation_id_subject"
# What decides what a session may: it ends with any of them.
_RIGHTS: Final = ("role", "tenant_id", "suspended_at", "subject", "password_hash")

may_sign_in = and_(
    users.c.suspended_at.is_(None),
    or_(users.c.tenant_id.is_(None), tenants.c.archived_at.is_(None)),
)


class SqlUsers:
    """Implement `UserStore`."""

    def __init__(self, database: Database, audit: AuditChain) -> None:
        self._database = database
        self._audit = audit

    async def find(self, organisation_id: UUID, name: str) -> UserRecord | None:
        async with self._database.platform() as connection:
            return await _record(
                connection, users.c.organisation_id == organisation_id, users.c.name == name
            )

    async def by_subject(self, organisation_id: UUID, subject: str) -> UserRecord | None:
        async with self._database.platform() as connection:
            return await _record(
                connection, users.c.organisation_id == organisation_id, users.c.subject == subject
            )

    async def page(self, organisation_id: UUID, request: PageRequest) -> Page[User]:
        query = described_users().where(users.c.organisation_id == organisation_id)
        async with self._database.platform() as connection:
            return await _ORDER.page(connection, query, request, user_of)

    async def add(self, actor: Actor, organisation_id: UUID, draft: UserDraft) -> User:
        async with self._database.platform() as connection:
            if draft.tenant_id is not None:
                await hold_tenant(connection, draft.tenant_id)
            return await self._insert(connection, actor, organisation_id, draft)

    async def update(
        self,
        actor: Actor,
        organisation_id: UUID,
        name: str,
        changes: Mapping[str, Any],
        version: int | None = None,
    ) -> User | None:
        values = dict(changes)
        is_suspended = values.pop("is_suspended", None)
        async with self._database.platform() as connection:
            before = await self._held(connection, organisation_id, name)
            if before is None:
                return None
            if version not in (None, before.version):
                raise VersionConflict(before)
            if values.get("tenant_id") is not None:
                await hold_tenant(connection, values["tenant_id"])
            if is_suspended is not None and is_suspended != (before.suspended_at is not None):
                values["suspended_at"] = func.now() if is_suspended else None
            values = {
                field: value
                for field, value in values.items()
                if field in ("suspended_at", "password_hash") or getattr(before, field) != value
            }
            if not values:
                return before
            try:
                async with connection.begin_nested():
                    after = await _change(connection, before, values)
            except IntegrityError as exc:
                raise _taken("subject") from exc
            await _keep_an_owner(connection, organisation_id, before)
            await self._audited(connection, actor, "user.update", organisation_id, before, after)
        return after

    async def remove(self, actor: Actor, organisation_id: UUID, name: str) -> User | None:
        async with self._database.platform() as connection:
            before = await self._held(connection, organisation_id, name)
            if before is None:
                return None
            await connection.execute(delete(users).where(users.c.id == before.id))
            await _keep_an_owner(connection, organisation_id, before)
            await self._audited(connection, actor, "user.delete", organisation_id, before, None)
        return before

    async def set_password(
        self, actor: Actor, organisation_id: UUID, name: str, password_hash: str, old_hash: str
    ) -> User | None:
        async with self._database.platform() as connection:
            before = await self._held(connection, organisation_id, name)
            if before is None:
                return None
            record = await _record(connection, users.c.id == before.id)
            if record is None or record.password_hash != old_hash:
                return None
            after = await _change(connection, before, {"password_hash": password_hash})
            await self._audited(connection, actor, "user.password", organisation_id, before, after)
        return after

    async def has_owner(self, organisation_id: UUID) -> bool:
        async with self._database.platform() as connection:
            return await _num_owners(connection, organisation_id) > 0

    async def add_link(
        self, actor: Actor, organisation_id: UUID, mac: bytes, name: str | None, life_s: float
    ) -> User | None:
        async with self._database.platform() as connection:
            user = None
            if name is None:
                await _hold_owners(connection, organisation_id)
                if await _num_owners(connection, organisation_id) > 0:
                    raise Conflict("There is an owner who can sign in.")
                await _drop_first_links(connection)
            else:
                user = await self._held(connection, organisation_id, name)
                if user is None:
                    return None
                await connection.execute(
                    delete(password_links).where(password_links.c.user_id == user.id)
                )
            await connection.execute(
                insert(password_links).values(
                    mac=mac,
                    user_id=None if user is None else user.id,
                    expires_at=func.now() + timedelta(seconds=life_s),
                )
            )
            if user is not None:
                await self._audited(connection, actor, "user.link", organisation_id, user, user)
            else:
                # Nobody has a name yet, and yet whoever follows it is an owner.
                entry = AuditEntry(
                    action="user.link",
                    object_kind="user",
                    object_id=_FIRST_OWNER,
                    organisation_id=organisation_id,
                    after={"role": AdminRole.OWNER.value},
                )
                await self._audit.append(connection, actor, entry)
        return user

    async def link_is_for(self, mac: bytes) -> tuple[bool, str | None]:
        query = (
            select(password_links.c.user_id, users.c.name)
            .join_from(password_links, users, password_links.c.user_id == users.c.id, isouter=True)
            .where(password_links.c.mac == mac, password_links.c.expires_at > func.now())
        )
        async with self._database.platform() as connection:
            row = (await connection.execute(query)).one_or_none()
        return (False, None) if row is None else (True, row.name)

    async def follow_link(
        self,
        caller: Caller,
        organisation_id: UUID,
        mac: bytes,
        name: str | None,
        password_hash: str,
    ) -> UserRecord | None:
        async with self._database.platform() as connection:
            await _hold_owners(connection, organisation_id)
            used = (
                delete(password_links)
                .where(password_links.c.mac == mac, password_links.c.expires_at > func.now())
                .returning(password_links.c.user_id)
            )
            row = (await connection.execute(used)).one_or_none()
            if row is None:
                return None
            if row.user_id is None:
                before = await self._first_owner(connection, caller, organisation_id, name or "")
            else:
                found = await _record(connection, users.c.id == row.user_id)
                assert found is not None, "its links go with a user"
                before = found.user
            after = await _change(connection, before, {"password_hash": password_hash})
            actor = caller.actor(f"user:{after.name}", after.role)
            await self._audited(connection, actor, "user.password", organisation_id, before, after)
        return UserRecord(after, password_hash)

    async def _first_owner(
        self, connection: AsyncConnection, caller: Caller, organisation_id: UUID, name: str
    ) -> User:
        if await _num_owners(connection, organisation_id) > 0:
            raise Conflict("There is an owner who can sign in.")
        await connection.execute(delete(password_links).where(password_links.c.user_id.is_(None)))
        # One of that name who was made and never signed in is who comes here.
        known = await self._held(connection, organisation_id, name)
        if known is not None:
            rights: dict[str, Any] = {"role": "owner", "tenant_id": None, "suspended_at": None}
            return await _change(connection, known, rights)
        draft = UserDraft(name=name, role=AdminRole.OWNER)
        actor = caller.actor("first link", AdminRole.OWNER)
        return await self._insert(connection, actor, organisation_id, draft)

    async def _insert(
        self, connection: AsyncConnection, actor: Actor, organisation_id: UUID, draft: UserDraft
    ) -> User:
        user_id = uuid4()
        try:
            async with connection.begin_nested():
                await connection.execute(
                    insert(users).values(
                        id=user_id,
                        organisation_id=organisation_id,
                        name=draft.name,
                        role=draft.role.value,
                        tenant_id=draft.tenant_id,
                        subject=draft.subject,
                    )
                )
        except IntegrityError as exc:
            raise _taken("subject" if _SUBJECTS in str(exc.orig) else "name") from exc
        record = await _record(connection, users.c.id == user_id)
        assert record is not None, "it was inserted"
        await self._audited(connection, actor, "user.create", organisation_id, None, record.user)
        return record.user

    async def _held(
        self, connection: AsyncConnection, organisation_id: UUID, name: str
    ) -> User | None:
        """Keep others from changing a user; owners of an organisation are changed in turns."""
        await _hold_owners(connection, organisation_id)
        record = await _record(
            connection, users.c.organisation_id == organisation_id, users.c.name == name
        )
        return None if record is None else record.user

    async def _audited(
        self,
        connection: AsyncConnection,
        actor: Actor,
        action: str,
        organisation_id: UUID,
        before: User | None,
        after: User | None,
    ) -> None:
        whose = after or before
        assert whose is not None, "a change is of somebody"
        # Of who comes from elsewhere neither tenant is told: the record names the other.
        is_one = before is None or after is None or before.tenant_id == after.tenant_id
        entry = AuditEntry(
            action=action,
            object_kind="user",
            object_id=str(whose.id),
            organisation_id=organisation_id,
            tenant_id=whose.tenant_id if is_one else None,
            before=None if before is None else _public(before),
            after=None if after is None else _public(after),
        )
        await self._audit.append(connection, actor, entry)


def described_users() -> Select[*tuple[Any, ...]]:
    """Select what `user_of` reads."""
    return select(
        *users.c, tenants.c.name.label("tenant"), tenants.c.archived_at.label("tenant_archived_at")
    ).join_from(users, tenants, users.c.tenant_id == tenants.c.id, isouter=True)


def user_of(row: Row[*tuple[Any, ...]]) -> User:
    """Read a user from a row of `described_users`; a tenant that is gone suspends its own."""
    return User(
        id=row.id,
        name=row.name,
        role=AdminRole(row.role),
        has_password=row.password_hash is not None,
        version=row.version,
        created_at=row.created_at,
        tenant_id=row.tenant_id,
        tenant=row.tenant,
        subject=row.subject,
        suspended_at=row.suspended_at or row.tenant_archived_at,
        last_login_at=row.last_login_at,
    )


async def _record(connection: AsyncConnection, *where: Any) -> UserRecord | None:  # conditions
    row = (await connection.execute(described_users().where(*where))).one_or_none()
    return None if row is None else UserRecord(user_of(row), row.password_hash)


async def _change(connection: AsyncConnection, before: User, values: dict[str, Any]) -> User:
    await connection.execute(
        update(users).where(users.c.id == before.id).values(**values, version=users.c.version + 1)
    )
    if not values.keys().isdisjoint(_RIGHTS):
        await connection.execute(delete(sessions).where(sessions.c.user_id == before.id))
    if "password_hash" in values:
        # Whoever has a link still has it from before, and it would set another.
        await connection.execute(
            delete(password_links).where(password_links.c.user_id == before.id)
        )
    record = await _record(connection, users.c.id == before.id)
    assert record is not None, "it was changed"
    return record.user


async def _hold_owners(connection: AsyncConnection, organisation_id: UUID) -> None:
    held = select(organisations.c.id).where(organisations.c.id == organisation_id)
    await connection.execute(held.with_for_update(key_share=True))


async def _num_owners(connection: AsyncConnection, organisation_id: UUID) -> int:
    query = select(func.count()).where(
        users.c.organisation_id == organisation_id,
        users.c.role == AdminRole.OWNER.value,
        users.c.suspended_at.is_(None),
        or_(users.c.password_hash.is_not(None), users.c.subject.is_not(None)),
    )
    return int((await connection.execute(query)).scalar_one())


async def _keep_an_owner(connection: AsyncConnection, organisation_id: UUID, before: User) -> None:
    was_one = before.role is AdminRole.OWNER and before.suspended_at is None
    if was_one and before.may_prove and await _num_owners(connection, organisation_id) == 0:
        raise InvalidRequest("The last owner who can sign in stays one.", param="role")


async def _drop_first_links(connection: AsyncConnection) -> None:
    """Forget links that are over, and of those for the first owner all but the newest."""
    await connection.execute(
        delete(password_links).where(password_links.c.expires_at <= func.now())
    )
    newest = (
        select(password_links.c.mac)
        .where(password_links.c.user_id.is_(None))
        .order_by(password_links.c.created_at.desc())
        .limit(_MAX_FIRST_LINKS - 1)
    )
    await connection.execute(
        delete(password_links).where(
            password_links.c.user_id.is_(None), password_links.c.mac.not_in(newest)
        )
    )


def _taken(param: str) -> Conflict:
    return Conflict(f"There is a user of that {param}.", param=param)


def _public(user: User) -> dict[str, Any]:
    return {
        "name": user.name,
        "role": user.role.value,
        "tenant": user.tenant,
        "has_password": user.has_password,
        "subject": user.subject,
        "is_suspended": user.suspended_at is not None,
    }
