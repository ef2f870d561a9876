"""What a request asks its limits for, before it begins.

It asks for its whole prompt and the first tokens of each answer. Where a window has less left than
that, it asks again for what is left: the last tokens of a quota can be used, and what does not fit
ends with `length`. A rate is not asked for less, as it has more again shortly.

An item of a batch asks for all that it may use, and for no less: it can wait, so it never ends
short for want of money, nor computes what would then have to be thrown away unpaid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gateway.domain.counters import Reserve
from gateway.domain.limits import Amounts, Denied, Limit, Limits
from gateway.domain.quota import Unit
from gateway.services.quotas.lease import LEASE_US, Terms


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask for `granted` output tokens of each generation, and what comes with them."""

    terms: Terms
    limits: Limits
    granted: Sequence[int]
    held: Amounts = field(init=False)

    def __post_init__(self) -> None:
        num_prompt, num_output = self.terms.num_prompt_tokens, sum(self.granted)
        held = Amounts(
            requests=0 if self.terms.is_counted else 1,
            input_tokens=num_prompt,
            output_tokens=num_output,
            concurrency=1,
            queued_tokens=num_prompt if self.limits.has_queue else 0,
            tokens=num_prompt + num_output,
            nano_usd=self.terms.most_nano_usd(num_output),
        )
        object.__setattr__(self, "held", held)

    def op(self) -> Reserve:
        """Return the operation that holds it."""
        terms = self.terms
        meta = terms.meta().packed()
        return Reserve(terms.request_id.hex, self.limits, self.held, meta, LEASE_US)

    def amount_of(self, limit: Limit) -> int:
        """Return what this holds of a limit."""
        amount: int = getattr(self.held, limit.metric.row.counts)
        return amount

    def smaller(self, denied: Denied) -> Ask | None:
        """Return what fits into the rest of a window that refused this; None: nothing does."""
        if self.terms.is_batch or not denied.is_exhausted:
            return None
        terms, num_output = self.terms, sum(self.granted)
        unit = denied.limit.metric.row.unit
        if unit is Unit.REQUESTS:
            return None
        if unit is Unit.NANO_USD:
            prompt_nano = terms.most_nano_usd(0)
            output_nano = self.held.nano_usd - prompt_nano
            left = (denied.left - prompt_nano) * num_output // output_nano if output_nano else 0
            # Prices are rounded up: one token less is sure to fit.
            left -= 1
        else:
            left = denied.left - terms.num_prompt_tokens
        each = min(left, num_output - 1) // len(self.granted)
        if each < 1:
            return None
        return replace(self, granted=[min(each, one) for one in self.granted])


def first_grant(limits: Limits, max_tokens: Sequence[int], chunk: int) -> list[int]:
    """Say how many tokens each generation may begin with.

    No more than the smallest rate of output could ever let through at once, so that a small
    limit slows a request down and does not refuse it for ever.
    """
    if limits.output_tpm is not None:
        chunk = max(1, min(chunk, limits.output_tpm // len(max_tokens)))
    return [min(chunk, bound) for bound in max_tokens]
