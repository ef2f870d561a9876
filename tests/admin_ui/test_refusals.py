"""Refusals and slow requests, in words for whose they were."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from admin_ui.refusals import explained, refused, told
from gateway.domain.quota import Metric, ScopeKind
from gateway.domain.request_record import Cause, RequestRecord

AT = datetime(2026, 1, 1, tzinfo=UTC)


def record(
    limit: str = "", *, status: int = 429, cause: Cause | None = None, at: datetime = AT
) -> RequestRecord:
    return RequestRecord(
        request_id=UUID(int=1),
        at=at,
        organisation_id=UUID(int=2),
        tenant_id=UUID(int=3),
        key_id=None,
        model="m",
        tier="default",
        status=status,
        code="some_code",
        outcome="",
        cause=cause,
        missed=(),
        is_preempted=False,
        is_degraded=False,
        duration_s=0.1,
        ttft_s=None,
        output_tokens=0,
        limit=limit,
    )


def test_refusals_are_counted_by_their_limit_with_the_newest_first() -> None:
    """Each limit has its number and when it refused last; they come with the newest first."""
    hour = timedelta(hours=1)
    records = [record("tenant.rpm"), record("key.rpm", at=AT - hour)]
    records += [record("tenant.rpm", at=AT - 2 * hour)] * 2
    found = [(one.refusal.limit, one.number, one.last_at) for one in refused(records)]
    assert found == [("tenant.rpm", 3, AT), ("key.rpm", 1, AT - hour)]


@pytest.mark.parametrize("metric", Metric)
def test_every_limit_is_explained(metric: Metric) -> None:
    """Whatever limit an error names, the page says what it is and what to do."""
    words = {explained(f"{scope.value}.{metric.value}").title for scope in ScopeKind}
    assert len(words) == len(ScopeKind), words
    assert explained(f"tenant.{metric.value}").advice.endswith(".")


def test_limits_that_nobody_knows_are_named_as_they_are() -> None:
    """A limit without words of its own is shown by its name; none at all is said to be none."""
    assert explained("tenant.queue").title == "Waiting requests, of the tenant"
    assert explained("tenant.new_limit").title == "tenant.new_limit"
    assert explained("").title == "A limit of its own"


def test_a_tenant_is_told_nothing_of_others() -> None:
    """Every cause has words, and none of them tells of others or of their number."""
    said = [told(record(status=200, cause=cause)) for cause in Cause]
    said += [told(record(status=status)) for status in (429, 503, 400)]
    assert all(said)
    assert not any(word in text for text in said for word in ("ahead", "other", "prompts of"))
    assert told(record(status=200)) == ""
