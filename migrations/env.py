"""Run Alembic on the connection that `gateway.store.migrate` hands over, in its transaction."""

from __future__ import annotations

from alembic import context

from gateway.store.batch_tables import batches

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=batches.metadata)
with context.begin_transaction():
    context.run_migrations()
