"""What a child is asked, as JSON: a machine, a configuration, policies, and who came when.

Each request asks for as many tokens as it got: how long an answer may be is not in the ledger. The
engine's steps cost what the scheduler has learned of them. A request that was refused is in no
row, and so in no replay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import msgspec

from engine.contract import EngineInfo
from gateway.domain import Tenant
from gateway.domain.past_request import PastRequest
from scheduler.request import Band

MAX_MINUTES: Final = 60
MAX_REQUESTS: Final = 1_000


class Came(msgspec.Struct, frozen=True, array_like=True):
    """Describe a request; times are from the first one's, in seconds."""

    at_s: float
    tenant: str
    org: str
    weight: float
    band: str
    num_prompt_tokens: int
    num_output_tokens: int
    ttft_s: float | None
    tpot_s: float | None


class Engine(msgspec.Struct, frozen=True):
    """Size an engine, and say what its steps cost, in microseconds."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    block_size: int
    depth: int
    step_us: float
    prompt_token_us: float
    row_us: float
    context_token_us: float


class Question(msgspec.Struct, frozen=True):
    """Ask for replays of the same requests under each of some policies."""

    engine: Engine
    config: dict[str, Any]
    policies: list[str]
    came: list[Came]


def engine_of(info: EngineInfo, costs_us: Mapping[str, float]) -> Engine:
    """Describe a running engine by what its scheduler has learned of it."""
    return Engine(
        max_model_len=info.max_model_len,
        max_num_seqs=info.max_num_seqs,
        max_num_batched_tokens=info.max_num_batched_tokens,
        num_blocks=info.num_blocks,
        block_size=info.block_size,
        depth=info.depth,
        # A step that takes no time would let none pass.
        step_us=max(1.0, costs_us.get("step", 0.0)),
        prompt_token_us=max(0.0, costs_us.get("prompt_token", 0.0)),
        row_us=max(0.0, costs_us.get("row", 0.0)),
        context_token_us=max(0.0, costs_us.get("context_token", 0.0)),
    )


def came_of(
    past: Sequence[PastRequest], tenants: Mapping[UUID, Tenant], info: EngineInfo
) -> list[Came]:
    """Describe requests as they came; one that the engine has no room for is left out."""
    if not past:
        return []
    first = past[0].at
    return [
        _came(one, (one.at - first).total_seconds(), tenants.get(one.tenant_id))
        for one in past
        if one.input_tokens >= 1
        and one.output_tokens >= 1
        and one.input_tokens + one.output_tokens <= info.max_model_len
    ]


def band_of(one: PastRequest) -> str:
    """Name the class that a request was of."""
    return Band.BATCH.name.lower() if one.is_batch else one.tier


def _came(one: PastRequest, at_s: float, tenant: Tenant | None) -> Came:
    ttft_ms = tpot_ms = None
    weight, org = 1.0, ""
    if tenant is not None:
        weight = tenant.weight
        org = "" if tenant.org_id is None else str(tenant.org_id)
        if not one.is_batch:
            ttft_ms, tpot_ms = tenant.slo.ttft_ms, tenant.slo.tpot_ms
    return Came(
        at_s=at_s,
        tenant=str(one.tenant_id),
        org=org,
        weight=weight,
        band=band_of(one),
        num_prompt_tokens=one.input_tokens,
        num_output_tokens=one.output_tokens,
        ttft_s=None if ttft_ms is None else ttft_ms / 1000,
        tpot_s=None if tpot_ms is None else tpot_ms / 1000,
    )
