"""Compiled loops over the columns of rows, where they are built: `engine/native/rows/rows.cpp`.

Choosing who decodes and taking tokens in are thirty and forty small array operations for a few
hundred rows, and most of what each takes is being one. As two loops they take a twentieth. Each has
a twin in Python, which runs where nothing is built or a step is out of the ordinary, and comes to
the same last digit.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_void_p
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.native.row_library import PickStep, TakeStep
from scheduler.outputs import DrawnTokens
from scheduler.running.decode_rows import DecodingRows, Slots
from scheduler.running.kv_growth import KvGrowth
from scheduler.running.pace import Pace

_MAX_BANDS = 8


class Ledger(NamedTuple):
    """Hold the columns that a tree's counters are kept in, by entry."""

    values: NDArray[np.float64]
    served: NDArray[np.float64]
    weights: NDArray[np.float64]
    has_organisations: bool


class Taken(NamedTuple):
    """Say what tokens have done: who goes on, who has ended, by index, and what was charged.

    `tenants` have entries and may repeat; `bands` pairs the entries of bands with what was charged.
    """

    drawn: DrawnTokens
    ended: list[int]
    tenants: NDArray[np.intp]
    bands: dict[int, float]


class RowKernel:
    """Run the compiled loops over the columns of one running set, which are never replaced."""

    def __init__(
        self, library: ctypes.PyDLL, rows: DecodingRows, pace: Pace, growth: KvGrowth
    ) -> None:
        self._pick_rows = library.sluice_pick
        self._take_rows = library.sluice_take_rows
        self._rows = rows
        self._pace = pace
        num_slots = len(rows.epochs)
        columns = rows.columns() | pace.columns() | growth.columns()
        self._held = np.zeros(num_slots, dtype=np.int64)
        self._chosen = np.zeros(num_slots, dtype=np.intp)
        self._tenants = np.zeros(num_slots, dtype=np.intp)
        self._going, self._ended = np.zeros((2, num_slots), dtype=np.int64)
        self._tokens, self._cached, self._drawn = np.zeros((3, num_slots), dtype=np.intc)
        self._bands = np.zeros(_MAX_BANDS, dtype=np.int64)
        self._band_costs = np.zeros(_MAX_BANDS)
        self._costs = np.zeros(num_slots)
        columns |= {
            "held_tenants": self._held,
            "chosen": self._chosen,
            "tenants": self._tenants,
            "costs": self._costs,
            "going": self._going,
            "tokens": self._tokens,
            "cached": self._cached,
            "drawn": self._drawn,
            "ended": self._ended,
            "bands": self._bands,
            "band_costs": self._band_costs,
        }
        # Kept: the structures have no more than addresses.
        self._columns = columns
        self._step = PickStep()
        self._step.held = _address(self._held)
        self._taking = TakeStep(num_slots=num_slots)
        for structure in (self._step, self._taking):
            for name, kind in [field[:2] for field in structure._fields_]:
                if kind is c_void_p and name in columns and getattr(structure, name) is None:
                    setattr(structure, name, _address(columns[name]))
        self._at_step = ctypes.byref(self._step)
        self._at_taking = ctypes.byref(self._taking)
        self._ledger: Ledger | None = None
        self._part_of: NDArray[np.float64] | None = None
        self._credit_s: NDArray[np.float64] | None = None

    def ends_with(self, is_end: NDArray[np.bool_]) -> None:
        """End rows with these tokens, [vocabulary], where they end as the model says."""
        self._columns["is_end"] = is_end
        self._taking.is_end = _address(is_end)

    def pick(
        self,
        slots: Slots,
        part_of: NDArray[np.float64],
        credit_s: NDArray[np.float64],
        held: Slots,
        *,
        costs: tuple[float, float],
        must_before_s: float,
        num_steps: int,
        max_steps_out: int,
    ) -> tuple[Slots, Slots, bool] | None:
        """Do as `DecodeShares._pick`: who runs, who is held now, and whether a promise waits.

        Returns: None where `credit_s` is too short; all of `slots` where nobody is held.
        """
        step = self._step
        if self._part_of is not part_of:
            self._part_of, step.part_of, step.num_parts = part_of, _address(part_of), len(part_of)
        if self._credit_s is not credit_s:
            self._credit_s, step.credit_s = credit_s, _address(credit_s)
            step.num_credits = len(credit_s)
        self._held[: len(held)] = held
        step.num_held = len(held)
        step.row_s, step.context_s = costs
        step.must_before_s = must_before_s
        step.num_steps, step.max_steps_out = num_steps, max_steps_out
        num_chosen = self._pick_rows(self._at_step, c_void_p(_address(slots)), c_int64(len(slots)))
        if num_chosen == -2:
            return None
        if num_chosen < 0:
            return slots, held, False
        chosen = self._chosen[:num_chosen].copy()
        return chosen, self._held[: step.num_held].copy(), bool(step.some_promised_out)

    def take(
        self,
        slots: Slots,
        epochs: NDArray[np.intc],
        token_ids: NDArray[np.intc],
        num_decodes: int,
        *,
        ledger: Ledger,
        prices: tuple[float, float, float],
        now: float,
    ) -> Taken | None:
        """Take a token for each row, charge for it and say what has come of it.

        The first `num_decodes` rows have drawn before. `prices` are those of
        `scheduler.order.StepPrices`.
        Returns: None, and nothing has changed, where a row is not the one it was planned as.
        """
        taking = self._taking
        known = self._ledger
        if known is None or known.values is not ledger.values:
            taking.values, taking.served = _address(ledger.values), _address(ledger.served)
            taking.weights = _address(ledger.weights)
            self._ledger = ledger
        taking.has_organisations = ledger.has_organisations
        taking.now = now
        taking.row, taking.context_token, taking.held_token = prices
        taking.has_promises = self._pace.has_promises
        self._rows.make_room(slots)
        num_ended = self._take_rows(
            self._at_taking,
            c_void_p(_address(slots)),
            c_void_p(_address(epochs)),
            c_void_p(_address(token_ids)),
            c_int64(len(slots)),
            c_int64(num_decodes),
        )
        if num_ended < 0:
            return None
        num_going, num_bands = taking.num_going, taking.num_bands
        going = self._going[:num_going]
        drawn = DrawnTokens(
            self._rows.request_ids(going),
            self._tokens[:num_going].copy(),
            self._cached[:num_going].copy(),
            self._drawn[:num_going].copy(),
        )
        bands = dict(zip(self._bands[:num_bands].tolist(), self._band_costs.tolist(), strict=False))
        ended: list[int] = self._ended[:num_ended].tolist()
        return Taken(drawn, ended, self._tenants[: taking.num_tenants].copy(), bands)


def _address(column: NDArray[np.generic]) -> int:
    assert column.flags.c_contiguous, "what is compiled reads columns end to end"
    address: int = column.__array_interface__["data"][0]
    return address
