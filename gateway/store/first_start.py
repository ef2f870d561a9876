"""What an empty database is given: organisation, tenants with a key each, admin token, a price.

It is decided and done in one transaction under the advisory lock of the migrations, by the
absence of any organisation: gateways that start together make it once, and a start that is
killed halfway makes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from uuid import uuid4

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.credentials import (
    ADMIN_PREFIX,
    KEY_PREFIX,
    Secrets,
    Token,
    is_weak,
    parse_token,
)
from gateway.domain import FirstStart, IssuedKey, KeyDraft, KeySecret, TenantSlo, is_name
from gateway.domain.admin import SYSTEM, AdminRole, AdminTokenDraft
from gateway.domain.price import ANY_MODEL, PriceDraft
from gateway.errors import StartupFailed
from gateway.settings import Settings
from gateway.store.admin_tokens import insert_admin_token
from gateway.store.audit_chain import AuditChain
from gateway.store.database import Database
from gateway.store.kept_heads import KeptHeads
from gateway.store.key_rows import insert_key
from gateway.store.migrate import take_advisory_lock
from gateway.store.organisations import insert_tenant
from gateway.store.prices import insert_price
from gateway.store.tables import admin_tokens, keys, organisations, prices

logger = logging.getLogger(__name__)

# 0.10, 0.05 and 0.40 USD a million tokens: a demo has money in it, an operator sets a real price.
_FIRST_PRICE = PriceDraft(
    model=ANY_MODEL,
    input_nano_per_mtok=100_000_000,
    cached_nano_per_mtok=50_000_000,
    output_nano_per_mtok=400_000_000,
)


@dataclass(frozen=True, slots=True)
class FirstStartPlan:
    """Say what to make: tenants, each with its key, and the admin token; None is to be drawn."""

    organisation: str
    tenants: Sequence[tuple[str, Token | None]] = field(repr=False)
    admin_token: Token | None


def plan_first_start(settings: Settings) -> FirstStartPlan:
    """Read the plan from `SLUICE_INIT_*`.

    Raises: `StartupFailed`: a given token is malformed, or keys and tenants do not pair up.
    """
    names, given = settings.init_tenants, settings.init_keys
    if given and "init_tenants" not in settings.model_fields_set:
        # Who gives one key and names no tenants wants one tenant.
        names = names[: len(given)]
    if given and len(given) != len(names):
        raise StartupFailed(
            f"SLUICE_INIT_KEYS names {len(given)} keys for the {len(names)} tenants of "
            "SLUICE_INIT_TENANTS: give one for each, in the same order"
        )
    for name in names:
        if not is_name(name):
            raise StartupFailed(
                f"SLUICE_INIT_TENANTS holds {name!r}: a name is 1 to 63 characters of a-z, 0-9, "
                "'-', '_' and '.', with a letter or digit first"
            )
    if len(set(names)) != len(names):
        raise StartupFailed("SLUICE_INIT_TENANTS names a tenant twice")
    tokens = [_given(secret.get_secret_value(), KEY_PREFIX, "SLUICE_INIT_KEYS") for secret in given]
    if len({token.kid for token in tokens}) != len(given):
        raise StartupFailed("SLUICE_INIT_KEYS gives two tenants the same key")
    admin = settings.init_admin_token
    return FirstStartPlan(
        organisation=settings.init_organisation,
        tenants=tuple(zip_longest(names, tokens)),
        admin_token=None
        if admin is None
        else _given(admin.get_secret_value(), ADMIN_PREFIX, "SLUICE_INIT_ADMIN_TOKEN"),
    )


async def first_start(
    database: Database,
    secrets: Secrets,
    plan: FirstStartPlan,
    audit: AuditChain,
    kept_heads: KeptHeads,
) -> FirstStart | None:
    """Fill an empty database and return what to show once; None where it was filled before.

    Its audit log is sealed where it had no key. Raises: `StartupFailed`: it was filled under
    another root secret, so no key could match.
    """
    async with database.platform() as connection:
        await take_advisory_lock(connection)
        organisation_id = await connection.scalar(
            select(organisations.c.id).order_by(organisations.c.created_at).limit(1)
        )
        if organisation_id is None:
            return await _fill(connection, secrets, plan, audit)
        known = await connection.scalars(select(admin_tokens.c.pepper_id).distinct())
        if secrets.pepper_id not in known.all():
            raise StartupFailed(
                "the keys in this database were made with another root secret: restore the "
                "file secrets/root of the data directory that belongs to it"
            )
        await _tell_of_unused(connection, plan)
        was_keyed = kept_heads.read(organisation_id) is not None
        await audit.seal(connection, organisation_id, was_keyed=was_keyed)
        # A database from before there were prices has none; nobody can take the last one away.
        if (await connection.execute(select(prices.c.id).limit(1))).first() is None:
            await insert_price(connection, audit, SYSTEM, organisation_id, _FIRST_PRICE)
    return None


async def _tell_of_unused(connection: AsyncConnection, plan: FirstStartPlan) -> None:
    """Warn of keys that a later start is given: whoever sends them gets a 401."""
    given = {token.kid for _, token in plan.tenants if token is not None}
    known = set(await connection.scalars(select(keys.c.kid).where(keys.c.kid.in_(given))))
    if given - known:
        logger.warning(
            "%d of the keys in SLUICE_INIT_KEYS (--api-key) are not in this database: they count "
            "at the first start alone; sluice keys create makes one now",
            len(given - known),
        )


async def _fill(
    connection: AsyncConnection, secrets: Secrets, plan: FirstStartPlan, audit: AuditChain
) -> FirstStart:
    organisation_id = uuid4()
    await connection.execute(
        insert(organisations).values(id=organisation_id, name=plan.organisation)
    )
    issued = []
    for name, given in plan.tenants:
        token = given or secrets.issue(KEY_PREFIX)
        tenant = await insert_tenant(
            connection, audit, SYSTEM, organisation_id, name, 1.0, TenantSlo()
        )
        secret = KeySecret(
            pepper_id=secrets.pepper_id,
            mac=secrets.key_mac(token),
            is_tagged=secrets.is_tagged(token),
        )
        draft = KeyDraft(kid=token.kid, name="default", secret=secret)
        key = await insert_key(connection, audit, SYSTEM, tenant, draft)
        issued.append(IssuedKey(key=key, token=token.text))
    admin = plan.admin_token or secrets.issue(ADMIN_PREFIX)
    first_admin = AdminTokenDraft(
        kid=admin.kid,
        pepper_id=secrets.pepper_id,
        mac=secrets.admin_mac(admin),
        name="first",
        role=AdminRole.OWNER,
        is_tagged=secrets.is_tagged(admin),
    )
    await insert_admin_token(connection, audit, SYSTEM, organisation_id, first_admin)
    await insert_price(connection, audit, SYSTEM, organisation_id, _FIRST_PRICE)
    return FirstStart(admin_token=admin.text, keys=tuple(issued))


def _given(text: str, prefix: str, variable: str) -> Token:
    token = parse_token(text, prefix)
    if token is None:
        raise StartupFailed(
            f"{variable} holds a token that is not of the form {prefix}<12 id><32 secret>"
            "<6 checksum>, or its checksum is wrong: sluice keys draw makes one"
        )
    if is_weak(text.removeprefix(prefix)[len(token.kid) :]):
        raise StartupFailed(
            f"{variable} holds a token whose secret nobody drew: sluice keys draw makes one"
        )
    return token
