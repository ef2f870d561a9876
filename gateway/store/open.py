"""Open everything that is stored, in the order it depends on each other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.credentials import Secrets
from gateway.domain import FirstStart
from gateway.errors import StartupFailed
from gateway.ports import FileStorage
from gateway.settings import Settings
from gateway.store.admin_tokens import SqlAdminTokens
from gateway.store.audit import SqlAudit
from gateway.store.audit_chain import AuditChain
from gateway.store.backup import refuse_half_restored
from gateway.store.batch_backlog import SqlBatchBacklog
from gateway.store.batch_heartbeat import BatchHeartbeat
from gateway.store.batch_queue import SqlBatchQueue
from gateway.store.batch_steps import SqlBatchSteps
from gateway.store.batches import SqlBatches
from gateway.store.database import Database
from gateway.store.dead_items import SqlDeadItems
from gateway.store.embedded import EmbeddedServers
from gateway.store.files import SqlFiles
from gateway.store.first_start import first_start, plan_first_start
from gateway.store.idempotency import SqlIdempotency
from gateway.store.kept_heads import KeptHeads
from gateway.store.keys import SqlKeys
from gateway.store.ledger import SqlLedger
from gateway.store.login_attempts import RedisLoginAttempts
from gateway.store.logins import embedded_urls, given_urls, let_in
from gateway.store.migrate import upgrade
from gateway.store.organisations import SqlOrganisations, SqlTenants
from gateway.store.orgs import SqlOrgs
from gateway.store.partitions import Partitions
from gateway.store.past_requests import SqlPastRequests
from gateway.store.plans import SqlPlans
from gateway.store.prices import SqlPrices
from gateway.store.quota_counters import RedisQuotaCounters
from gateway.store.quota_events import SqlQuotaEvents
from gateway.store.quota_settings import SqlQuotaSettings
from gateway.store.reach_database import owner_name, reach_database
from gateway.store.record_hours import RecordHours
from gateway.store.redis import (
    ADMIN_EPOCH,
    AUTH_EPOCH,
    SCHEDULER_EPOCH,
    RedisAuthEpoch,
    connect_for_pipe,
    connect_redis,
    is_cluster,
)
from gateway.store.redis_pipe import RedisPipe
from gateway.store.replica_rates import RedisReplicaRates
from gateway.store.request_records import SqlRequestRecords
from gateway.store.responses import SqlResponses
from gateway.store.retention import Retention
from gateway.store.scheduler_policies import SqlSchedulerPolicies
from gateway.store.script_escape import product_of, version_to_use
from gateway.store.secrets import open_secrets
from gateway.store.sessions import SqlSessions
from gateway.store.settings import SqlSettings
from gateway.store.storage_place import open_file_storage
from gateway.store.tenant_archive import SqlTenantArchive
from gateway.store.untagged import SqlUntaggedTokens
from gateway.store.usage_queries import SqlUsage
from gateway.store.users import SqlUsers

logger = logging.getLogger(__name__)

# Functions came with it, and limits are counted in one.
_REDIS_MAJOR = 7
# A start waits longer than a request does: nobody is served until it ends, and a machine on which
# everything starts at once has been seen to answer after more than the second of a request.
_START_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Store:
    """Hand out the repositories; `first_start` is set the one time that there was nothing."""

    database: Database
    redis: Redis
    secrets: Secrets = field(repr=False)
    organisations: SqlOrganisations
    tenant_archive: SqlTenantArchive
    orgs: SqlOrgs
    tenants: SqlTenants
    keys: SqlKeys
    plans: SqlPlans
    quota_settings: SqlQuotaSettings
    prices: SqlPrices
    settings: SqlSettings
    scheduler_policies: SqlSchedulerPolicies
    audit: SqlAudit
    kept_heads: KeptHeads
    admin_tokens: SqlAdminTokens
    users: SqlUsers
    sessions: SqlSessions
    login_attempts: RedisLoginAttempts
    untagged: SqlUntaggedTokens
    auth_epoch: RedisAuthEpoch
    admin_epoch: RedisAuthEpoch
    scheduler_epoch: RedisAuthEpoch
    idempotency: SqlIdempotency
    batch_queue: SqlBatchQueue
    batch_heartbeat: BatchHeartbeat
    batches: SqlBatches
    batch_steps: SqlBatchSteps
    batch_backlog: SqlBatchBacklog
    dead_items: SqlDeadItems
    files: SqlFiles
    file_storage: FileStorage
    quota_events: SqlQuotaEvents
    ledger: SqlLedger
    usage: SqlUsage
    request_records: SqlRequestRecords
    past_requests: SqlPastRequests
    responses: SqlResponses
    counters: RedisQuotaCounters
    replica_rates: RedisReplicaRates
    first_start: FirstStart | None


@asynccontextmanager
async def open_store(
    settings: Settings, *, before_first_start: Callable[[], Awaitable[object]] | None = None
) -> AsyncIterator[Store]:
    """Start what is not given by URL, migrate, do the first start; close it all on leaving.

    What a first start makes is shown once, so `before_first_start` is where to wait for what may
    still fail. Raises: `StartupFailed`: with one line that says what to do; what that raises.
    """
    plan = plan_first_start(settings)
    refuse_half_restored(settings.data_dir)
    servers = EmbeddedServers(
        settings.data_dir,
        postgres=settings.database_url is None,
        valkey=settings.redis_url is None,
    )
    async with AsyncExitStack() as stack:
        # Registered first, because a cancelled start goes on in its thread: `stop` waits for it.
        stack.push_async_callback(asyncio.to_thread, servers.stop)
        await asyncio.to_thread(servers.start)
        secrets = open_secrets(settings.data_dir)
        urls = given_urls(settings) or embedded_urls(servers)
        redis_url = (
            servers.redis_url()
            if settings.redis_url is None
            else settings.redis_url.get_secret_value()
        )
        owner = await reach_database(urls.owner, owner_name(settings))
        stack.push_async_callback(owner.close)
        redis = await _open_redis(redis_url)
        stack.push_async_callback(redis.aclose)
        pipe = RedisPipe(connect_for_pipe(redis_url), timeout_s=settings.redis_timeout_s)
        stack.push_async_callback(pipe.close)
        await upgrade(owner)
        database = owner
        if urls.server != urls.owner:
            database = await reach_database(urls.server, "SLUICE_DATABASE_URL")
            stack.push_async_callback(database.close)
            await let_in(owner, database)
            await owner.close()
        file_storage = open_file_storage(settings.file_storage, settings.data_dir)
        stack.callback(file_storage.close)
        partitions = Partitions(database, keep_days=settings.ledger_days)
        await partitions.look_after()
        await stack.enter_async_context(partitions.running())
        hours = RecordHours(database, keep_hours=settings.request_record_hours)
        await hours.look_after()
        await stack.enter_async_context(hours.running())
        if before_first_start is not None:
            await before_first_start()
        audit, kept_heads = AuditChain(secrets), KeptHeads(settings.data_dir)
        made = await first_start(database, secrets, plan, audit, kept_heads)
        retention = Retention(
            database,
            event_days=settings.quota_event_days,
            answer_hours=settings.keyed_answer_hours,
            answer_bytes=settings.keyed_answers_mib << 20,
            batch_days=settings.batch_days,
            response_days=settings.response_days,
            responses=settings.tenant_responses,
            response_bytes=settings.tenant_responses_mib << 20,
        )
        await stack.enter_async_context(retention.running())
        yield Store(
            database=database,
            redis=redis,
            secrets=secrets,
            organisations=SqlOrganisations(database),
            tenant_archive=SqlTenantArchive(database, audit),
            orgs=SqlOrgs(database, audit),
            tenants=SqlTenants(database, audit),
            keys=SqlKeys(database, audit),
            plans=SqlPlans(database, audit),
            quota_settings=SqlQuotaSettings(database, audit),
            prices=SqlPrices(database, audit),
            settings=SqlSettings(database, audit),
            scheduler_policies=SqlSchedulerPolicies(database, audit),
            audit=SqlAudit(database, audit),
            kept_heads=kept_heads,
            admin_tokens=SqlAdminTokens(database, audit),
            users=SqlUsers(database, audit),
            sessions=SqlSessions(database, audit),
            login_attempts=RedisLoginAttempts(redis, secrets),
            untagged=SqlUntaggedTokens(database),
            auth_epoch=RedisAuthEpoch(redis, AUTH_EPOCH),
            admin_epoch=RedisAuthEpoch(redis, ADMIN_EPOCH),
            scheduler_epoch=RedisAuthEpoch(redis, SCHEDULER_EPOCH),
            idempotency=SqlIdempotency(database),
            batch_queue=SqlBatchQueue(database),
            batch_heartbeat=BatchHeartbeat(urls.server),
            batches=SqlBatches(database),
            batch_steps=SqlBatchSteps(database),
            batch_backlog=SqlBatchBacklog(database),
            dead_items=SqlDeadItems(database, audit),
            files=SqlFiles(database),
            file_storage=file_storage,
            quota_events=SqlQuotaEvents(database),
            ledger=SqlLedger(database),
            usage=SqlUsage(database),
            request_records=SqlRequestRecords(database),
            past_requests=SqlPastRequests(database),
            responses=SqlResponses(database),
            counters=RedisQuotaCounters(pipe),
            replica_rates=RedisReplicaRates(redis),
            first_start=made,
        )


async def _open_redis(url: str) -> Redis:
    """Return a client of a server that answers: a wrong URL is to fail the start, not later."""
    try:
        asking = connect_redis(url, timeout_s=_START_TIMEOUT_S)
    except ValueError as exc:
        raise StartupFailed(f"SLUICE_REDIS_URL cannot be used: {exc}") from exc
    try:
        info = await asking.info()
    except (RedisError, OSError) as exc:
        raise StartupFailed(
            f"Redis does not answer: {exc}; start it, or mend SLUICE_REDIS_URL"
        ) from exc
    finally:
        await asking.aclose()
    if is_cluster(info):
        raise StartupFailed(
            "SLUICE_REDIS_URL is a Redis Cluster, whose keys no script can change together: set it "
            "to a single server"
        )
    if int(str(info["redis_version"]).partition(".")[0]) < _REDIS_MAJOR:
        raise StartupFailed(
            f"SLUICE_REDIS_URL is a Redis {info['redis_version']}: set it to version 7 or newer "
            "or to Valkey"
        )
    product, version = product_of(info)
    if (mended := version_to_use(product, version)) is not None:
        logger.warning(
            "SLUICE_REDIS_URL is a %s %s, which a script can break out of (CVE-2025-49844): "
            "use %s or newer",
            product,
            version,
            mended,
        )
    if info.get("role", "master") != "master":
        logger.warning(
            "SLUICE_REDIS_URL is a replica, which takes no writes: what has a hard limit is refused"
        )
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        logger.warning(
            "SLUICE_REDIS_URL evicts (%s): holds are forgotten, and hard limits can be passed; set "
            "maxmemory-policy to noeviction",
            policy,
        )
    return connect_redis(url)
