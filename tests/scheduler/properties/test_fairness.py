"""What holds of every schedule, whatever tenants send: fairness, work, accounts, blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import fairness_properties as properties
import scheduler.order.places as places
import scheduler.step.passing as passing
from scheduler.config import FairnessUnit
from scheduler.core import Scheduler
from scheduler.order import Level
from scheduler.policies.registry import policy_names
from tenant_world import Burst, Machine, bursts, timed_scheduler

_SETTINGS = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)

_MACHINES = st.sampled_from(
    [
        Machine(),
        Machine(depth=2),
        # Rows of a few blocks each: they preempt each other all the time.
        Machine(num_blocks=10, max_num_seqs=6),
        Machine(num_blocks=16, kv_reserve="predicted"),
        Machine(budget=64, kv_reserve="max", num_blocks=20),
    ]
)


@pytest.mark.parametrize("leaf", policy_names())
@settings(_SETTINGS, max_examples=12)
@given(sent=bursts(keys="kl", ttfts=(None, 3.0, 30.0)), machine=_MACHINES)
def test_leaf_order_cannot_break_the_bound(leaf: str, sent: list[Burst], machine: Machine) -> None:
    """Tenants that both wait are served alike within 2 U, whatever order their requests go in."""
    machine = machine.under(f"vtc/vtc/{leaf}")
    properties.interval_service_is_bounded(sent, machine)


@_SETTINGS
@given(sent=bursts(weights=(1.0, 3.0, 0.5)), machine=_MACHINES)
def test_weights_share_service_in_proportion(sent: list[Burst], machine: Machine) -> None:
    """Service over weight stays within 2 U, U the largest cost over its weight."""
    properties.interval_service_is_bounded(sent, machine)


@_SETTINGS
@given(
    sent=bursts(weights=(1.0, 3.0), keys="kl"),
    machine=_MACHINES,
    above=st.sampled_from([Level.BAND, Level.TENANT]),
)
def test_time_is_shared_as_tokens_are(sent: list[Burst], machine: Machine, above: Level) -> None:
    """The bound holds in machine time, between tenants and between the keys of one."""
    by_time = replace(machine, unit="time")
    properties.interval_service_is_bounded(sent, by_time, timed_scheduler, above=above)


@_SETTINGS
@given(sent=bursts(tenants="ab", keys="klm"), machine=_MACHINES)
def test_keys_of_a_tenant_share_alike(sent: list[Burst], machine: Machine) -> None:
    """The bound holds between the keys of a tenant as it does between tenants."""
    properties.interval_service_is_bounded(sent, machine, above=Level.TENANT)


# One has two tenants, one has one, and a tenant of no organisation has the name of one that has.
_ORGANISATIONS = {"a": ("x", 1.0), "b": ("x", 1.0), "c": ("y", 2.0), "d": ("e", 1.0)}


@pytest.mark.parametrize("leaf", ["edf", "fcfs", "sjf"])
@pytest.mark.parametrize("above", [Level.BAND, Level.ORGANISATION, Level.TENANT])
@settings(_SETTINGS, max_examples=20)
@given(
    sent=bursts(tenants="abcde", keys="kl", organisations=_ORGANISATIONS, ttfts=(None, 3.0)),
    machine=_MACHINES,
)
def test_organisations_share_alike(
    leaf: str, above: Level, sent: list[Burst], machine: Machine
) -> None:
    """The bound holds between organisations, for their weights, and between tenants of one."""
    machine = machine.under(f"vtc/vtc/{leaf}")
    properties.interval_service_is_bounded(sent, machine, above=above)


@_SETTINGS
@given(
    sent=bursts(tenants="abcde", keys="kl", organisations=_ORGANISATIONS, cancels=True),
    machine=_MACHINES,
    policy=st.sampled_from(["vtc", "dlpm", "edf/vtc/fcfs", "fcfs"]),
)
def test_accounts_of_organisations_add_up(sent: list[Burst], machine: Machine, policy: str) -> None:
    """Charges at every level are what was served below, however they are made."""
    properties.accounts_add_up(sent, machine.under(policy))
    properties.everyone_finishes(sent, machine.under(policy))


@_SETTINGS
@given(sent=bursts(), machine=_MACHINES, quantum=st.sampled_from([1.0, 32.0, 128.0]))
def test_prefix_order_is_fair_within_its_quantum(
    sent: list[Burst], machine: Machine, quantum: float
) -> None:
    """Deficit longest prefix match keeps service within 2 (U + Q)."""
    machine = machine.under("dlpm", {"dlpm": {"quantum": quantum}})
    properties.interval_service_is_bounded(sent, machine, allowance=quantum)


@_SETTINGS
@given(sent=bursts(ttfts=(None, 4.0, 20.0)), machine=_MACHINES, loan=st.sampled_from([8.0, 64.0]))
def test_borrowing_is_paid_back(sent: list[Burst], machine: Machine, loan: float) -> None:
    """Tenants that borrow B to save deadlines are served alike within 2 (U + B)."""
    machine = machine.lending(loan)
    properties.interval_service_is_bounded(sent, machine, allowance=loan)


# Who holds long gets what it is due in the end, beside who is done at once and always comes again.
_LONG_BESIDE_SHORT = [
    Burst(tenant="a", count=40, prompt_len=2, output_len=40, at_s=0, gap_s=0),
    Burst(tenant="b", count=150, prompt_len=24, output_len=1, at_s=0, gap_s=0),
]


@_SETTINGS
@example(
    sent=_LONG_BESIDE_SHORT,
    machine=Machine(max_num_seqs=8, budget=32, num_blocks=256),
    unit="tokens",
    lead=4.0,
)
@given(
    sent=bursts(weights=(1.0, 3.0)),
    machine=_MACHINES,
    unit=st.sampled_from(["tokens", "time"]),
    lead=st.sampled_from([4.0, 32.0]),
)
def test_passing_by_is_paid_back(
    sent: list[Burst], machine: Machine, unit: FairnessUnit, lead: float
) -> None:
    """With slots and blocks kept for those below their share, L besides: within 2 (U + L)."""
    machine = replace(machine, has_headroom=True, unit=unit)
    make = Scheduler if unit == "tokens" else timed_scheduler
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(passing, "_MAX_LEAD", lead)
        properties.interval_service_is_bounded(sent, machine, make, allowance=lead)


@_SETTINGS
@given(sent=bursts(cancels=True), machine=_MACHINES, policy=st.sampled_from(policy_names()))
def test_work_is_conserved(sent: list[Burst], machine: Machine, policy: str) -> None:
    """No slot and no token goes unused while the next request fits, under any policy."""
    properties.work_is_conserved(sent, machine.under(policy))


@_SETTINGS
@given(
    sent=bursts(keys="kl", cancels=True), machine=_MACHINES, policy=st.sampled_from(policy_names())
)
def test_everyone_finishes_and_nothing_leaks(
    sent: list[Burst], machine: Machine, policy: str
) -> None:
    """All requests end with what they asked for, and all blocks are free then."""
    properties.everyone_finishes(sent, machine.under(policy))
    properties.nothing_is_leaked(sent, machine.under(policy))


@_SETTINGS
@given(sent=bursts(keys="kl", cancels=True), machine=_MACHINES, precharge=st.booleans())
def test_accounts_add_up(sent: list[Burst], machine: Machine, precharge: bool) -> None:
    """Charges less refunds are the useful tokens at their price, at every level of the tree."""
    properties.accounts_add_up(sent, machine.precharging(precharge))


@_SETTINGS
@given(sent=bursts(shares_prefix=False), num_blocks=st.integers(8, 16))
def test_waste_is_named(sent: list[Burst], num_blocks: int) -> None:
    """What preemptions make the engine compute again is in the ledger of waste, to the token."""
    properties.waste_is_named(sent, Machine(num_blocks=num_blocks, max_num_seqs=6))


@_SETTINGS
@given(sent=bursts(keys="kl"), machine=_MACHINES)
def test_idle_time_is_no_credit_and_no_pardon(sent: list[Burst], machine: Machine) -> None:
    """Who comes back waits with no less than those who stayed, and with no less than before."""
    properties.coming_back_erases_nothing(sent, machine)


@_SETTINGS
@given(sent=bursts(tenants="abcdef", keys="kl"))
def test_sweeping_forgets_nothing_that_matters(sent: list[Burst]) -> None:
    """The bound holds, and the same requests go first, with idle nodes swept all the time."""
    with pytest.MonkeyPatch.context() as patch:
        kept = properties.order_of(sent, Machine())
        patch.setattr(places, "_MIN_SWEEP", 1)
        assert properties.order_of(sent, Machine()) == kept
