"""Requests that wait in a tree, without an engine or a scheduler around them."""

from __future__ import annotations

from array import array
from itertools import count

import fakes
from engine.contract import SamplingParams
from engine.kv.block_pool import BlockPool
from engine.kv.table import BlockTable
from scheduler.order.fair_tree import FairTree
from scheduler.request import Band, Request, Slo
from scheduler.sequence import Sequence

_INFO = fakes.make_engine(max_model_len=1 << 20).info
_POOL = BlockPool(64, 4)
_ORDINALS = count()


def make_sequence(
    num_tokens: int,
    *,
    tenant: str = "a",
    key: str = "",
    band: Band = Band.DEFAULT,
    arrival_s: float = 0.0,
    ttft_s: float | None = None,
    weight: float = 1.0,
    organisation: str = "",
    organisation_weight: float = 1.0,
    expires_s: float | None = None,
    max_tokens: int = 4,
) -> Sequence:
    """Make a request of so many tokens, none of which is cached, younger than all before."""
    ordinal = next(_ORDINALS)
    request = Request(
        request_id=f"q{ordinal}",
        tenant_id=tenant,
        key_id=key or tenant,
        prompt_token_ids=array("i", [0]) * num_tokens,
        params=SamplingParams(max_tokens=max_tokens),
        cache_salt=b"s",
        arrival_s=arrival_s,
        weight=weight,
        organisation_id=organisation,
        organisation_weight=organisation_weight,
        band=band,
        slo=Slo(ttft_s=ttft_s),
        expires_s=expires_s,
    )
    sequence = Sequence(
        request, BlockTable(_POOL, b"s"), ordinal=ordinal, max_len=1 << 20, info=_INFO
    )
    sequence.deadline_s = arrival_s + (60.0 if ttft_s is None else ttft_s)
    return sequence


def push(tree: FairTree, sequence: Sequence, now: float = 0.0) -> None:
    """Let a request wait."""
    tree.enrol(sequence, now)
    tree.push(sequence, now)
