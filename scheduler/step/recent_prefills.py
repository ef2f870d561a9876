"""What the prompts of each tenant cost lately, in seconds of a step.

A tenant's part of the machine is what its rows have and what its prompts do. Prompts come in a few
steps out of many, so what they cost is spread over the steps that follow.

Prompts that come as a tenant's rows end are work that these bring with them: of fewer rows in a
step come fewer prompts. Those that steps are behind with are not, there being more of them than is
computed, whoever decodes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.step_cost import StepFeatures
from scheduler.learn import StepModel
from scheduler.request import Band, Slo
from scheduler.sequence import MEMBER
from scheduler.step.draft import Step
from scheduler.step.water_level import Seconds

_NUM_STEPS = 256
_KEPT = 1.0 - 1.0 / _NUM_STEPS
_LEAST_S = 1e-9
# Whose last prompt is no older will soon have another: in steps, and in seconds where so many steps
# take less. Steps that are cut for who comes take less, and were it for steps alone, whole ones
# would be back before the next prompt is there.
_LATELY, _LATELY_S = 64, 1.0
# Who has no more than this part of what another has is better off where steps are short; who has
# more waits for the machine.
FEW = 0.125
_COLUMNS = (
    "_mean_s",
    "_brought_s",
    "_decoded_s",
    "_at_step",
    "_decoded_at_step",
    "_unpromised_at_step",
    "_lately_until_s",
    "_bands",
)
_NO_SLO = Slo()


class RecentPrefills:
    """Average over about the last 256 steps, by the entries of tenants."""

    def __init__(self, step_model: StepModel) -> None:
        self._step_model = step_model
        # Of prompts: all, and those that steps kept up with. Of rows. In seconds of a step.
        self._mean_s, self._brought_s, self._decoded_s = np.zeros((3, 64))
        self._at_step, self._decoded_at_step = np.zeros((2, 64), dtype=np.int64)
        # The last step with a prompt that nothing was promised to, and of which band.
        self._unpromised_at_step, self._bands = np.zeros((2, 64), dtype=np.int64)
        # When that is a second ago.
        self._lately_until_s = np.zeros(64)

    def note(self, step: Step, number: int, now: float, *, is_behind: bool) -> None:
        """Take the prompts of a step in; one that `is_behind` has more of them than it computes."""
        for sequence, chunk in zip(step.slices, step.plan.slices, strict=True):
            tenant = sequence.account[MEMBER]
            if tenant >= len(self._mean_s):
                self._grow(tenant)
            cost_s = self._step_model.added_s(StepFeatures(chunk.n_tokens, 0, chunk.start, 0))
            kept = _KEPT ** (number - self._at_step.item(tenant))
            # There is always more of the batch band.
            is_brought = not is_behind and sequence.request.band is not Band.BATCH
            self._mean_s[tenant] = self._mean_s[tenant] * kept + cost_s / _NUM_STEPS
            brought_s = cost_s * is_brought / _NUM_STEPS
            self._brought_s[tenant] = self._brought_s[tenant] * kept + brought_s
            self._at_step[tenant] = number
            if sequence.request.slo == _NO_SLO:
                self._unpromised_at_step[tenant] = number
                self._lately_until_s[tenant] = now + _LATELY_S
                self._bands[tenant] = sequence.request.band

    def note_rows(self, tenants: NDArray[np.intp], decoded_s: Seconds, number: int) -> None:
        """Take in what the rows of tenants have had of each step since the last time."""
        if tenants[-1] >= len(self._mean_s):
            self._grow(int(tenants[-1]))
        kept = _KEPT ** (number - self._decoded_at_step[tenants])
        self._decoded_s[tenants] = self._decoded_s[tenants] * kept + decoded_s * (1.0 - kept)
        self._decoded_at_step[tenants] = number

    def of(self, tenants: NDArray[np.intp], number: int) -> Seconds:
        """Return the means of tenants at a step."""
        if tenants[-1] >= len(self._mean_s):
            self._grow(int(tenants[-1]))
        found: Seconds = self._mean_s[tenants]
        if found.any():
            found = found * _KEPT ** (number - self._at_step[tenants])
        return found

    def steps_since(self, tenants: NDArray[np.intp], number: int) -> NDArray[np.int64]:
        """Count the steps from the last one with a prompt of each tenant to the one after this."""
        found: NDArray[np.int64] = number + 1 - self._at_step[tenants]
        return found

    def lately(self, band: Band, number: int, now: float) -> NDArray[np.intp]:
        """List those of a band, or of higher ones, who had prompts in the last steps or second.

        Whose prompts were promised something are left out.
        """
        is_recent = self._unpromised_at_step > max(0, number - _LATELY)
        is_recent |= self._lately_until_s > now
        return (is_recent & (self._bands <= band)).nonzero()[0]

    def bands_of(self, tenants: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return the bands of the last prompts of tenants that had one lately."""
        found: NDArray[np.int64] = self._bands[tenants]
        return found

    def per_decode(self, tenants: NDArray[np.intp], number: int) -> Seconds:
        """Return what the prompts cost that a second of decoding brings, of tenants with rows."""
        brought_s = self._brought_s[tenants] * _KEPT ** (number - self._at_step[tenants])
        found: Seconds = brought_s / np.maximum(self._decoded_s[tenants], _LEAST_S)
        return found

    def forget(self, tenant: int) -> None:
        """Forget an entry, which may be another tenant's next."""
        if tenant < len(self._mean_s):
            for name in _COLUMNS:
                getattr(self, name)[tenant] = 0

    def _grow(self, tenant: int) -> None:
        size = 2 * tenant + 2
        for name in _COLUMNS:
            column = getattr(self, name)
            setattr(self, name, np.resize(column, size) * (np.arange(size) < len(column)))
