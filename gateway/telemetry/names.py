"""Every name that traces use: spans, attributes, events. Nothing else spells one.

Where OpenTelemetry has a name it is taken: HTTP's, the GenAI conventions' (`gen_ai.*`). What is
Sluice's own begins with `sluice.`, or `engine.` for what happens below the gateway.
https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
"""

from __future__ import annotations

from typing import Final

SCOPE: Final = "sluice"

# The phases of a request, in the order in which they come; they follow each other without a gap.
AUTH: Final = "sluice.auth"
TURN: Final = "sluice.turn"
ENTER: Final = "sluice.enter"
CLAIM: Final = "sluice.idempotency.claim"
KEEP: Final = "sluice.idempotency.keep"
READ: Final = "sluice.read"
VALIDATE: Final = "sluice.validate"
HANDLE: Final = "sluice.handle"
TOKENIZE: Final = "sluice.tokenize"
RESERVE: Final = "sluice.quota.reserve"
CHAT: Final = "chat"
SETTLE: Final = "sluice.quota.settle"
SEND: Final = "sluice.send"
RECALL: Final = "sluice.response.recall"
STORE: Final = "sluice.response.store"

# What lies within one of them.
LEDGER: Final = "sluice.ledger.write"
QUEUE: Final = "engine.queue"
PREFILL: Final = "engine.prefill"
DECODE: Final = "engine.decode"
DELIVER: Final = "sluice.deliver"
WRITE: Final = "sluice.stream.write"

# The root of an item of a batch.
ITEM: Final = "batch.item"

# Events.
FIRST_TOKEN: Final = "sluice.first_token"
EXTENDED: Final = "sluice.quota.extended"
STOPPED: Final = "sluice.quota.stopped"
REFUSED: Final = "sluice.refused"
WAITED: Final = "sluice.sched.waited"
RESTED: Final = "sluice.sched.rested"
PREEMPTED: Final = "sluice.sched.preempted"
RESUMED: Final = "sluice.sched.resumed"

# Attributes: HTTP, errors, databases.
HTTP_METHOD: Final = "http.request.method"
HTTP_ROUTE: Final = "http.route"
HTTP_STATUS: Final = "http.response.status_code"
ERROR_TYPE: Final = "error.type"
DB_SYSTEM: Final = "db.system.name"

# Attributes: GenAI.
OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_CHOICES: Final = "gen_ai.request.choice.count"
REQUEST_STREAM: Final = "gen_ai.request.stream"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
FIRST_CHUNK_S: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"

# Attributes: our own.
REQUEST_ID: Final = "sluice.request.id"
TENANT_ID: Final = "sluice.tenant.id"
ORGANISATION_ID: Final = "sluice.organisation.id"
KEY_ID: Final = "sluice.key.id"
AUTH_CACHE: Final = "sluice.auth.cache"
BODY_BYTES: Final = "sluice.body.bytes"
QUOTA_DECISION: Final = "sluice.quota.decision"
QUOTA_LIMIT: Final = "sluice.quota.limit"
QUOTA_RESERVED: Final = "sluice.quota.reserved_tokens"
QUOTA_MODE: Final = "sluice.quota.mode"
GRANTED_TOKENS: Final = "sluice.quota.granted_tokens"
NANO_USD: Final = "sluice.bill.nano_usd"
OUTCOME: Final = "sluice.outcome"
TIER: Final = "sluice.sched.class"
QUEUE_POSITION: Final = "sluice.queue.position"
CHUNKS: Final = "sluice.prefill.chunks"
PREEMPTIONS: Final = "sluice.preemptions"
CHOICE: Final = "sluice.choice"
CAUSE: Final = "sluice.cause"
SECONDS: Final = "sluice.seconds"
EVENTS: Final = "sluice.stream.events"
BYTES: Final = "sluice.stream.bytes"
STALL_MS: Final = "sluice.stream.stall_ms"
TTFT_SLO_MS: Final = "sluice.slo.ttft_ms"
TPOT_SLO_MS: Final = "sluice.slo.tpot_ms"
BATCH_ID: Final = "sluice.batch.id"
ITEM_ATTEMPT: Final = "sluice.item.attempt"
