"""What administrators change, and the log of it."""

from gateway.services.admin.audit import AuditService
from gateway.services.admin.keys import GRACE_S, KeyService
from gateway.services.admin.plans import PlanService
from gateway.services.admin.quota_settings import QuotaSettingsService
from gateway.services.admin.scheduler_config import changed
from gateway.services.admin.scheduler_control import SchedulerControl
from gateway.services.admin.tenants import HoldsTenants, TenantService
from gateway.services.admin.tokens import AdminTokenService

__all__ = [
    "GRACE_S",
    "AdminTokenService",
    "AuditService",
    "HoldsTenants",
    "KeyService",
    "PlanService",
    "QuotaSettingsService",
    "SchedulerControl",
    "TenantService",
    "changed",
]
