"""LiteLLM's fields: limits, bookkeeping that says nothing, and why the others have no place."""

from __future__ import annotations

from typing import Final

# Fields with a place here, and fields that only say how it was there.
LIMIT_FIELDS: Final = {
    *("tpm_limit", "rpm_limit", "max_parallel_requests"),
    *("max_budget", "soft_budget", "budget_duration"),
}
BOOKKEEPING: Final = {
    *("spend", "model_spend", "budget_reset_at", "soft_budget_cooldown", "created_at"),
    *("updated_at", "created_by", "updated_by", "last_active", "key_name", "token", "key"),
    *("token_id", "litellm_budget_table", "organization_id", "org_id", "team_id", "blocked"),
    *("last_rotation_at", "rotation_count", "key_rotation_at", "team_memberships", "model_id"),
    *("budget_id", "litellm_model_table", "team_alias", "models"),
}
REASONS: Final = {
    "aliases": "a model has one name here, and the server's own aliases",
    "model_aliases": "a model has one name here, and the server's own aliases",
    "allowed_cache_controls": "there is no cache of answers",
    "allowed_routes": "every key reaches the same routes",
    "budget_limits": "limits are of all models together",
    "config": "keys have no settings of the router",
    "guardrails": "there are no guardrails",
    "members": "there are no users: give them keys",
    "members_with_roles": "there are no users: give them keys, or admin tokens of the tenant",
    "admins": "there are no users: give them admin tokens of role tenant-owner",
    "metadata": "there is nowhere to keep it",
    "model_max_budget": "budgets are of all models together",
    "model_rpm_limit": "limits are of all models together",
    "model_tpm_limit": "limits are of all models together",
    "object_permission": "there are no tools or vector stores",
    "object_permission_id": "there are no tools or vector stores",
    "permissions": "keys have no such permissions",
    "policies": "there are no policies",
    "router_settings": "nothing is routed: the engine is in the server",
    "tags": "there are no tags",
    "team_member_budget": "there are no users: give a member a key with a budget",
    "team_member_permissions": "there are no users",
    "user_id": "there are no users; the key is its tenant's",
    "auto_rotate": "rotate with 'sluice keys rotate'",
    "rotation_interval": "rotate with 'sluice keys rotate'",
}
NO_PLACE: Final = "there is no such thing here"


def setting_reason(name: str) -> str:
    """Say why a setting of `config.yaml` is not taken over."""
    if "callback" in name or "alert" in name:
        return "there are no callbacks; thresholds go to SLUICE_WEBHOOK_URL"
    if name.startswith(("default_", "upperbound_")):
        return "there are no defaults for what is made later: use a plan"
    if name.endswith(("_key", "_url", "_password")) or name == "environment_variables":
        return "secrets and addresses are not taken over: see 'sluice serve --help'"
    return REASONS.get(name, NO_PLACE)
