"""Tenants whose streams never end, beside each other in virtual time, and what their rows have.

A step takes a millisecond and a tenth of one for each token, as it is predicted, so ten rows cost
as much as the step that they are in. A stream that ends is replaced by another of its kind.
"""

from __future__ import annotations

import itertools
from array import array
from collections import Counter, deque
from dataclasses import dataclass, replace

import numpy as np

import fakes
from engine.contract import MaskCosts, SamplingParams, StepPlan, StepResult
from engine.step_cost import LinearCost, StepCost
from fake_constraint import Spelled
from scheduler.config import PRESETS, SchedulerConfig
from scheduler.core import Scheduler
from scheduler.facts import RequestFacts
from scheduler.learn import StepModel
from scheduler.request import Admit, Band, FinishReason, Request, Slo

FIXED_S, ROW_S = 0.001, 0.0001
_LINE = LinearCost(FIXED_S, ROW_S)
COST = StepCost("line", _LINE, _LINE)


@dataclass(frozen=True, kw_only=True)
class Flood:
    """Keep `streams` requests of a tenant going, over its keys in turn.

    With `grant` each may draw so many tokens at first, and as many more a few steps after each
    time that it has drawn them. Outputs are of `output` tokens and up to an eighth more. With
    `mask_s` they have a constraint whose masks take so long, the first one aside. Those that come
    `once` are not replaced.
    """

    tenant: str
    streams: int
    output: int = 40
    prompt: int = 2
    weight: float = 1.0
    keys: int = 1
    band: Band = Band.DEFAULT
    slo: Slo = fakes.NOTHING_PROMISED
    grant: int | None = None
    mask_s: float = 0.0
    once: bool = False


def config_of(max_throughput_loss: float = 0.2, policy: str = "vtc") -> SchedulerConfig:
    config = replace(PRESETS["mixed"], prefix_caching=False)
    fairness = replace(config.fairness, max_throughput_loss=max_throughput_loss, policy=policy)
    return replace(config, fairness=fairness)


class Contest:
    """Drive a scheduler that knows what steps cost, and count what each tenant is given.

    The scheduler knows what steps cost from `prior`; to hand a row's token out takes `host_row_s`
    besides. `late_after_rest` counts tokens that came late though their rows had sat out, and
    `most_steps_out` is how many steps in succession a row that might draw has sat out at most.
    """

    def __init__(
        self,
        *floods: Flood,
        config: SchedulerConfig | None = None,
        depth: int = 1,
        max_num_seqs: int = 64,
        num_blocks: int = 4000,
        prior: StepCost | None = COST,
        host_row_s: float = 0.0,
    ) -> None:
        self.engine = fakes.make_engine(
            cost=COST,
            max_model_len=600,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=256,
            num_blocks=num_blocks,
            depth=depth,
        )
        self.scheduler = Scheduler(
            self.engine.info, config or config_of(), step_model=StepModel(prior, margin=1.0)
        )
        self.now = 0.0
        self._host_row_s = host_row_s
        self.tokens: Counter[str] = Counter()
        self.facts: list[RequestFacts] = []
        self.plans: list[StepPlan] = []
        self.most_steps_out = self.late_after_rest = self.num_rested = 0
        self.live: dict[str, Flood] = {}
        self._names = itertools.count()
        self._steps_out: dict[tuple[int, int], int] = {}
        self._rested: set[tuple[int, int]] = set()
        self._handles: deque[object] = deque()
        self._grants: deque[tuple[int, str, int]] = deque()
        self._request_of_slot: dict[int, str] = {}
        # What masks took in each step that has come back, and where none was for long before.
        self.masks_s: list[float] = []
        # How much longer they take than a processor computes them, as on a machine that is busy.
        self.mask_stretch = 1.0
        for flood in floods:
            self.join(flood)

    def join(self, flood: Flood) -> None:
        for _ in range(flood.streams):
            self._offer(flood)

    def share(self, tenant: str) -> float:
        return self.tokens[tenant] / self.tokens.total()

    def run(self, num_steps: int, *, settle: int = 0) -> Contest:
        """Run so many steps, after some that do not count."""
        for step in range(settle + num_steps):
            if step == settle:
                self.tokens.clear()
            self.turn()
        return self

    def cancel(self, number: int) -> None:
        """Cancel a live request; its stream ends with it."""
        if self.live:
            request_id = sorted(self.live)[number % len(self.live)]
            self.scheduler.cancel(request_id, self.now)
            del self.live[request_id]

    def leave(self, tenant: str) -> None:
        """Cancel all that a tenant has live; its streams end with it."""
        for request_id in [name for name, flood in self.live.items() if flood.tenant == tenant]:
            self.scheduler.cancel(request_id, self.now)
            del self.live[request_id]

    def replace_place(self, tenant: str) -> str:
        """Let newcomers come and go until one has the place of a tenant that is idle; names it.

        Few places are kept where `scheduler.order.places` sweeps few.
        """
        tree = self.scheduler._lifecycle.waiting
        account = tree.find_account(Band.DEFAULT, "", tenant)
        assert account is not None
        entry = account.entry
        for number in range(1_000):
            name = f"new{number}"
            # A place is a tenant's or a key's: with as many keys it may be a key's for ever.
            self.join(Flood(tenant=name, streams=2, keys=1 + number % 2, once=True))
            found = tree.find_account(Band.DEFAULT, "", name)
            self.leave(name)
            if found is not None and found.entry == entry:
                return name
        raise AssertionError("the place was kept")

    def turn(self) -> None:
        while self._grants and self._grants[0][0] <= len(self.plans):
            _, request_id, num_tokens = self._grants.popleft()
            self.scheduler.extend(request_id, num_tokens, self.now)
        before = self._may_draw()
        plan = self.scheduler.plan(self.now)
        if plan is not None:
            self._note(plan, before)
            self._request_of_slot |= {new.slot: new.request_id for new in plan.admitted}
            self.plans.append(plan)
            self._handles.append(self.engine.launch(plan))
        assert plan is not None or self._handles or not before, "rows may draw and none does"
        if self._handles and (plan is None or len(self._handles) == self.engine.info.depth):
            self._collect()

    def _collect(self) -> None:
        result = self._masked(self.engine.collect(self._handles.popleft()))
        self.now += result.step_s + self._host_row_s * len(result.slots)
        rows, pace = self.scheduler._running.decode_rows, self.scheduler._running.pace
        for slot in result.slots:
            row = slot, rows.epochs.item(slot)
            if row in self._rested:
                self._rested.discard(row)
                self.late_after_rest += self.now > pace._due_s.item(slot) + 1e-9
        for output in self.scheduler.report(result, self.now):
            flood = self.live[output.request_id]
            self.tokens[flood.tenant] += len(output.token_ids)
            if output.finish_reason is not None:
                assert output.finish_reason is FinishReason.LENGTH
                assert output.facts is not None
                self.facts.append(output.facts)
                assert output.num_output_tokens == _length(flood, output.request_id)
                del self.live[output.request_id]
                if not flood.once:
                    self._offer(flood)
            elif flood.grant is not None and output.num_output_tokens % flood.grant == 0:
                granted = output.num_output_tokens + flood.grant
                self._grants.append((len(self.plans) + 3, output.request_id, granted))

    def _masked(self, result: StepResult) -> StepResult:
        """Have a step last until its masks are made, which begin when it does."""
        mask_s = {}
        plan = next(plan for plan in reversed(self.plans) if plan.step_id == result.step_id)
        decodes = set(plan.decodes.slots)
        for slot in result.slots:
            flood = self.live.get(self._request_of_slot[slot])
            if flood is not None and flood.mask_s:
                mask_s[slot] = flood.mask_s if slot in decodes else 0.0
        self.masks_s.append(sum(mask_s.values()))
        until_s = self.mask_stretch * self.masks_s[-1]
        masks = MaskCosts(
            np.array(list(mask_s), np.int32),
            np.array(list(mask_s.values()), np.float64),
            self.masks_s[-1],
            waited_s=max(0.0, until_s - result.step_s),
        )
        return replace(result, masks=masks, step_s=max(result.step_s, until_s))

    def _may_draw(self) -> dict[tuple[int, int], None]:
        rows = self.scheduler._running.decode_rows
        slots = rows.unpaused(rows.online()).tolist()
        return {(slot, rows.epochs.item(slot)): None for slot in slots}

    def _note(self, plan: StepPlan, before: dict[tuple[int, int], None]) -> None:
        """Count for each row that might have drawn how long it sat out."""
        ran = set(plan.decodes.slots)
        epochs = self.scheduler._running.decode_rows.epochs
        out = {row for row in before if row[0] not in ran and epochs.item(row[0]) == row[1]}
        self._steps_out = {row: self._steps_out.get(row, 0) + 1 for row in out}
        self._rested = {row for row in self._rested if epochs.item(row[0]) == row[1]}
        # Of two steps in flight the one before may hold a token of it yet: that one does not count.
        if self.engine.info.depth == 1:
            self._rested |= out
        self.num_rested += len(out)
        self.most_steps_out = max(self.most_steps_out, *self._steps_out.values(), 0)

    def _offer(self, flood: Flood) -> None:
        number = next(self._names)
        request = Request(
            request_id=f"{number:06}",
            tenant_id=flood.tenant,
            key_id=f"{flood.tenant}-{number % flood.keys}",
            prompt_token_ids=array("i", [1] * flood.prompt),
            params=SamplingParams(
                max_tokens=_length(flood, str(number)),
                seed=number,
                ignore_eos=True,
                constraint=Spelled([], end=0) if flood.mask_s else None,
            ),
            cache_salt=flood.tenant.encode(),
            arrival_s=self.now,
            weight=flood.weight,
            band=flood.band,
            slo=flood.slo,
            granted_tokens=flood.grant,
        )
        assert isinstance(self.scheduler.offer(request, self.now), Admit)
        self.live[request.request_id] = flood


def _length(flood: Flood, request_id: str) -> int:
    """Say how long an output gets: streams that began at once are not to end so."""
    return flood.output + int(request_id) * 7 % (flood.output // 8 + 1)
