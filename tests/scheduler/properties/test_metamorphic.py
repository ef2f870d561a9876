"""How the schedule must change, or not, when what is sent is changed in a known way."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fairness_properties import order_of
from tenant_world import Burst, Machine, World, bursts

_SETTINGS = settings(max_examples=40, deadline=None, derandomize=True, database=None)
_POLICIES = st.sampled_from(["vtc", "dlpm", "vtc/vtc/sjf", "dlpm/vtc/hrrn"])


@_SETTINGS
@given(sent=bursts(weights=(1.0, 3.0, 0.5)), scale=st.sampled_from([0.25, 2.0, 64.0]))
def test_only_ratios_of_weights_matter(sent: list[Burst], scale: float) -> None:
    """All weights times the same number is the same schedule."""
    scaled = [replace(burst, weight=burst.weight * scale) for burst in sent]
    assert order_of(scaled, Machine()) == order_of(sent, Machine())


@_SETTINGS
@given(sent=bursts(shares_prefix=False), order=st.permutations("abc"), policy=_POLICIES)
def test_names_do_not_matter(sent: list[Burst], order: list[str], policy: str) -> None:
    """Tenants with each other's names are served as the others were."""
    renamed = dict(zip("abc", order, strict=True))
    permuted = [replace(burst, tenant=renamed[burst.tenant]) for burst in sent]
    machine = Machine().under(policy)
    assert order_of(permuted, machine) == order_of(sent, machine)


@_SETTINGS
@given(sent=bursts())
def test_endless_quantum_is_longest_prefix_first(sent: list[Burst]) -> None:
    """Deficit longest prefix match with an endless quantum is the order of cached prefixes.

    With steps that hold all prompts: whose chunk goes first is another question.
    """
    lpm = {"lpm": {"aging_tokens_per_s": 1e-9}}
    machine = Machine(budget=256)
    endless = machine.under("dlpm", {"dlpm": {"quantum": 1e12}, **lpm})
    assert order_of(sent, endless) == order_of(sent, machine.under("lpm", lpm))


@_SETTINGS
@given(sent=bursts(shares_prefix=False, ttfts=(None, 5.0, 50.0)), leaf=_POLICIES)
def test_runs_are_repeatable(sent: list[Burst], leaf: str) -> None:
    """The same requests at the same times are the same plans."""
    machine = Machine(num_blocks=12).under(leaf)
    assert World(sent, machine).run().plans == World(sent, machine).run().plans


@_SETTINGS
@given(sent=bursts(tenants="a", ttfts=(None, 5.0)), leaf=st.sampled_from(["fcfs", "edf", "sjf"]))
def test_lone_tenant_sees_its_leaf_order_alone(sent: list[Burst], leaf: str) -> None:
    """With one tenant and one key the fair levels decide nothing."""
    assert order_of(sent, Machine().under(f"vtc/vtc/{leaf}")) == order_of(
        sent, Machine().under(leaf)
    )
