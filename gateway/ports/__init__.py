"""What the services need from the outside, as protocols; `gateway.store` implements them.

Every method that takes `tenant_id` touches rows of that tenant alone. Methods raise
`gateway.errors.StoreUnavailable` where the store does not answer.
"""

from __future__ import annotations

from gateway.ports.answers import (
    IdempotencyStore,
    ResponseStore,
)
from gateway.ports.batches import (
    BacklogStore,
    BatchListStore,
    BatchQueue,
    BatchSteps,
    BatchStore,
    DeadItemStore,
)
from gateway.ports.files import (
    FileStorage,
    FileStore,
    IsKnown,
)
from gateway.ports.people import (
    AdminTokenStore,
    AuditStore,
    HeadKeeper,
    LoginAttempts,
    SessionStore,
    UserStore,
)
from gateway.ports.settings import (
    PlanStore,
    PriceStore,
    QuotaSettings,
    SchedulerPolicyStore,
    SettingsStore,
)
from gateway.ports.tenants import (
    AuthEpoch,
    KeyStore,
    OrganisationStore,
    OrgStore,
    TenantArchiveStore,
    TenantStore,
    UntaggedTokenStore,
)
from gateway.ports.time import (
    Clock,
)
from gateway.ports.usage import (
    LedgerStore,
    PastRequestStore,
    QuotaCounters,
    QuotaEventStore,
    ReplicaRates,
    RequestRecordStore,
    UsageStore,
)

__all__ = [
    "AdminTokenStore",
    "AuditStore",
    "AuthEpoch",
    "BacklogStore",
    "BatchListStore",
    "BatchQueue",
    "BatchSteps",
    "BatchStore",
    "Clock",
    "DeadItemStore",
    "FileStorage",
    "FileStore",
    "HeadKeeper",
    "IdempotencyStore",
    "IsKnown",
    "KeyStore",
    "LedgerStore",
    "LoginAttempts",
    "OrgStore",
    "OrganisationStore",
    "PastRequestStore",
    "PlanStore",
    "PriceStore",
    "QuotaCounters",
    "QuotaEventStore",
    "QuotaSettings",
    "ReplicaRates",
    "RequestRecordStore",
    "ResponseStore",
    "SchedulerPolicyStore",
    "SessionStore",
    "SettingsStore",
    "TenantArchiveStore",
    "TenantStore",
    "UntaggedTokenStore",
    "UsageStore",
    "UserStore",
]
