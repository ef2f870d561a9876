"""Limits: reserved, extended, settled, reconciled, and told of."""

from gateway.services.quotas.entry import Entry
from gateway.services.quotas.keeper import QuotaKeeper
from gateway.services.quotas.lease import Books, RequestLease, Terms
from gateway.services.quotas.link import CounterLink
from gateway.services.quotas.reconcile import Reconciler
from gateway.services.quotas.recovery import Recovery
from gateway.services.quotas.service import QuotaService
from gateway.services.quotas.thresholds import Thresholds
from gateway.services.quotas.usage import LimitUse, limit_uses
from gateway.services.quotas.webhook import DeliveryFailed, Webhook, WebhookDelivery

__all__ = [
    "Books",
    "CounterLink",
    "DeliveryFailed",
    "Entry",
    "LimitUse",
    "QuotaKeeper",
    "QuotaService",
    "Reconciler",
    "Recovery",
    "RequestLease",
    "Terms",
    "Thresholds",
    "Webhook",
    "WebhookDelivery",
    "limit_uses",
]
