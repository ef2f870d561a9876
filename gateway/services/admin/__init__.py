"""What administrators change, and the log of it."""

from gateway.services.admin.apply import Applied, ApplyService
from gateway.services.admin.audit import AuditService
from gateway.services.admin.batch_list import BatchListService
from gateway.services.admin.dead_items import DeadItemService, DeadItemWatch
from gateway.services.admin.head_watch import HeadPost, HeadWatch
from gateway.services.admin.keys import GRACE_S, KeyService
from gateway.services.admin.live_history import LiveHistory, Sample
from gateway.services.admin.live_view import MAX_SHARES, LiveView
from gateway.services.admin.orgs import HoldsOrgs, OrgService
from gateway.services.admin.past_limits import PastLimits, WouldHave
from gateway.services.admin.plans import PlanService
from gateway.services.admin.quota_settings import QuotaSettingsService
from gateway.services.admin.request_records import RequestRecordService
from gateway.services.admin.scheduler_config import changed
from gateway.services.admin.scheduler_control import SchedulerControl
from gateway.services.admin.scheduler_policies import SchedulerPolicies
from gateway.services.admin.tenant_archive import TenantArchive
from gateway.services.admin.tenants import HoldsTenants, TenantService
from gateway.services.admin.tokens import AdminTokenService
from gateway.services.admin.users import UserService
from gateway.services.admin.wanted import placed, wanted, wanted_key, wanted_tenant

__all__ = [
    "GRACE_S",
    "MAX_SHARES",
    "AdminTokenService",
    "Applied",
    "ApplyService",
    "AuditService",
    "BatchListService",
    "DeadItemService",
    "DeadItemWatch",
    "HeadPost",
    "HeadWatch",
    "HoldsOrgs",
    "HoldsTenants",
    "KeyService",
    "LiveHistory",
    "LiveView",
    "OrgService",
    "PastLimits",
    "PlanService",
    "QuotaSettingsService",
    "RequestRecordService",
    "Sample",
    "SchedulerControl",
    "SchedulerPolicies",
    "TenantArchive",
    "TenantService",
    "UserService",
    "WouldHave",
    "changed",
    "placed",
    "wanted",
    "wanted_key",
    "wanted_tenant",
]
