"""A TOML file gives clients their weights, bands and promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.request import Band, Slo
from scheduler.simulator.errors import SimulationError
from scheduler.simulator.tiers import apply_tiers, read_tiers
from scheduler.simulator.workload import Arrival, Workload

TIERS = """
[[tier]]
clients = ["0-9", "133"]
weight = 4
band = "priority"
ttft_s = 1.0

[[tier]]
clients = "acme"
tpot_s = 0.05
max_gap_s = 0.1
patience_s = 30

[[tier]]
weight = 0.5
band = "flex"
"""


def read(tmp_path: Path, text: str = TIERS) -> list[Arrival]:
    path = tmp_path / "tenants.toml"
    path.write_text(text)
    arrivals = [
        Arrival(at_s=0.0, tenant_id=name, num_prompt_tokens=1, num_output_tokens=1)
        for name in ("9", "10", "133", "acme")
    ]
    workload = Workload(name="w", arrivals=arrivals, duration_s=1.0)
    return list(apply_tiers(workload, read_tiers(path)).arrivals)


def test_first_tier_that_names_a_client_is_its_own(tmp_path: Path) -> None:
    """Ranges hold their ends, names are exact, and a tier without clients takes the rest."""
    nine, ten, listed, acme = read(tmp_path)
    assert (nine.weight, nine.band, nine.slo) == (4, Band.PRIORITY, Slo(ttft_s=1.0))
    assert listed.weight == 4
    assert (ten.weight, ten.band, ten.slo) == (0.5, Band.FLEX, Slo())
    assert (acme.weight, acme.slo, acme.patience_s) == (1.0, Slo(None, 0.05, 0.1), 30)


def test_client_that_no_tier_names_stays_as_it_is(tmp_path: Path) -> None:
    """Without a tier for everyone else, the others keep weight one and the default band."""
    arrivals = read(tmp_path, '[[tier]]\nclients = ["acme"]\nweight = 3\n')
    assert [a.weight for a in arrivals] == [1.0, 1.0, 1.0, 3]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[tier]]\nwieght = 2\n", "unknown: wieght"),
        ('[[tier]]\nband = "gold"\n', "no band 'gold'"),
        ("[[tier]]\nweight = 0\n", "weight must be a number above 0"),
        ('[[tier]]\nttft_s = "soon"\n', "ttft_s must be a number"),
        ("weight = 2\n", "tier"),
        ("[[tier]\n", "tenants.toml"),
    ],
)
def test_file_that_makes_no_sense_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    """A spelling mistake is named rather than ignored."""
    with pytest.raises(SimulationError, match=complaint):
        read(tmp_path, text)
