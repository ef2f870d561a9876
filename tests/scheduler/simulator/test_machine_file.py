"""A machine to simulate may be a file, which says where it differs from one that is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scheduler.simulator.errors import SimulationError
from scheduler.simulator.machine_file import open_machine
from scheduler.simulator.setup import load_machine

PROFILE = json.loads(
    (Path(__file__).parents[3] / "engine" / "profiles" / "cpu-demo.json").read_text()
)


def write(tmp_path: Path, document: Any) -> str:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_file_differs_from_what_it_is_like(tmp_path: Path) -> None:
    """Sizes and costs that are not said are those of the machine it is like."""
    cpu, a100 = load_machine("cpu-demo"), load_machine("a100-llama-3-8b")
    machine = open_machine(write(tmp_path, {"like": "cpu-demo", "num_blocks": 77, "depth": 2}))
    assert (machine.num_blocks, machine.depth, machine.max_num_seqs) == (77, 2, cpu.max_num_seqs)
    assert (machine.cost.name, machine.cost.small) == ("small", cpu.cost.small)
    priced = open_machine(write(tmp_path, {"cost": PROFILE}))
    assert (priced.cost.small, priced.num_blocks) == (cpu.cost.small, a100.num_blocks)
    assert open_machine("cpu-demo") == cpu


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ([], "not a JSON object"),
        ({"likes": "x"}, "unknown: likes; it has like, cost, max_model_len"),
        ({"like": "x"}, "no machine 'x'"),
        ({"num_blocks": 0}, "num_blocks is not 1 to"),
        ({"num_blocks": 1e9}, "num_blocks is not 1 to"),
        ({"depth": 3}, "depth is 1 or 2"),
        ({"cost": 5}, "cost is not a profile"),
        ({"cost": PROFILE | {"small": {"speed": 1}}}, "cost.small is not coefficients"),
        ({"cost": PROFILE | {"large": {"intercept_s": 0, "per_token_s": 0}}}, "cost.large needs"),
        ({"cost": PROFILE | {"large": {"intercept_s": "1"}}}, "intercept_s is not a number"),
    ],
)
def test_file_that_makes_no_machine_says_so(tmp_path: Path, document: Any, complaint: str) -> None:
    """The file is named, and what is wrong in it."""
    with pytest.raises(SimulationError, match=rf"small\.json: .*{complaint}"):
        open_machine(write(tmp_path, document))


def test_neither_name_nor_file_says_what_there_is() -> None:
    """What can be chosen is listed."""
    with pytest.raises(
        SimulationError, match="choose one of a100-llama-3-8b, nvidia-h200-qwen3-8b, cpu-demo"
    ):
        open_machine("nowhere.json")
