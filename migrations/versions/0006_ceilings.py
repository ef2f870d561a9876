"""Give tenants ceilings, and mark what operators set on keys and their limits.

The code before this revision names its columns, so it goes on reading; what it inserts has no
ceilings and no marks.

What stands on keys today was made before there were marks. The audit log knows by whom: a key, or
its limits, that no tenant's owner has ever made or changed is an operator's work, and marked.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql as pg

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_CEILINGS = ("max_tier", "models", "cidrs", "max_keys")
# Sorted as the code sorts them; a budget is held whole.
_MARK_KEYS = """
    UPDATE keys SET operator_set = array_remove(ARRAY[
        CASE WHEN NOT allows_batch THEN 'allows_batch' END,
        CASE WHEN cidrs IS NOT NULL THEN 'cidrs' END,
        CASE WHEN max_tier = 'flex' THEN 'max_tier' END,
        CASE WHEN models IS NOT NULL THEN 'models' END
    ]::text[], NULL)
    WHERE NOT EXISTS (
        SELECT FROM audit_log WHERE object_kind = 'key' AND object_id = keys.id::text
        AND actor_role = 'tenant-owner'
    )
"""
_MARK_LIMITS = """
    UPDATE quotas SET operator_set = array_remove(ARRAY[
        CASE WHEN budget_nano_usd IS NOT NULL THEN 'budget_hard' END,
        CASE WHEN budget_nano_usd IS NOT NULL THEN 'budget_nano_usd' END,
        CASE WHEN budget_nano_usd IS NOT NULL THEN 'budget_window' END,
        CASE WHEN concurrency IS NOT NULL THEN 'concurrency' END,
        CASE WHEN daily_tokens IS NOT NULL THEN 'daily_tokens' END,
        CASE WHEN input_tpm IS NOT NULL THEN 'input_tpm' END,
        CASE WHEN monthly_tokens IS NOT NULL THEN 'monthly_tokens' END,
        CASE WHEN output_tpm IS NOT NULL THEN 'output_tpm' END,
        CASE WHEN queued_tokens IS NOT NULL THEN 'queued_tokens' END,
        CASE WHEN rpm IS NOT NULL THEN 'rpm' END
    ]::text[], NULL)
    WHERE scope_kind = 'key' AND NOT EXISTS (
        SELECT FROM audit_log WHERE object_kind = 'quota'
        AND object_id = 'key:' || quotas.scope_id::text AND actor_role = 'tenant-owner'
    )
"""


def upgrade() -> None:
    op.add_column(
        "tenants", sa.Column("max_tier", sa.Text(), nullable=False, server_default="priority")
    )
    op.add_column("tenants", sa.Column("models", pg.ARRAY(sa.Text())))
    op.add_column("tenants", sa.Column("cidrs", pg.ARRAY(sa.Text())))
    op.add_column("tenants", sa.Column("max_keys", sa.Integer()))
    op.create_check_constraint("max_tier", "tenants", "max_tier IN ('priority', 'default', 'flex')")
    op.create_check_constraint("max_keys", "tenants", "max_keys >= 0")
    for table in ("keys", "quotas"):
        op.add_column(
            table,
            sa.Column("operator_set", pg.ARRAY(sa.Text()), nullable=False, server_default="{}"),
        )
    # The owner is bound by the policies as everyone is, and sees no row.
    op.execute("SET LOCAL ROLE sluice_platform")
    op.execute(_MARK_KEYS)
    op.execute(_MARK_LIMITS)
    op.execute("RESET ROLE")


def downgrade() -> None:
    for table in ("quotas", "keys"):
        op.drop_column(table, "operator_set")
    for column in reversed(_CEILINGS):
        op.drop_column("tenants", column)
