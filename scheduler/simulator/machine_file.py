"""Reads a machine to simulate from a JSON file of its own.

{
  "like": "a100-llama-3-8b",     a machine by name, whose sizes it has unless it says others
  "cost": {"small": {…}, …},     what its steps cost: a profile, as `engine/profiles/` has them
  "num_blocks": 4096             and any other field of `Machine`
}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from engine.step_cost import LinearCost, StepCost
from scheduler.simulator.errors import SimulationError
from scheduler.simulator.setup import Machine, load_machine

_SIZES = tuple(field.name for field in fields(Machine) if field.name != "cost")
_MAX_SIZE = 1 << 24


def open_machine(name: str) -> Machine:
    """Size the engine of a name, or of the file of that path.

    Raises: `SimulationError`: there is neither, or the file does not read.
    """
    path = Path(name)
    return read_machine(path) if path.is_file() else load_machine(name)


def read_machine(path: Path) -> Machine:
    """Read a machine's file. Raises: `SimulationError`, which names what does not read."""
    try:
        document = json.loads(path.read_text("utf-8"))
        if not isinstance(document, dict):
            raise SimulationError("it is not a JSON object")
        return _machine(path.stem, document)
    except (OSError, ValueError, RecursionError) as exc:
        raise SimulationError(f"{path}: {exc}") from exc
    except SimulationError as exc:
        raise SimulationError(f"{path}: {exc}") from exc


def _machine(name: str, document: Mapping[str, Any]) -> Machine:
    unknown = document.keys() - {"like", "cost", *_SIZES}
    if unknown:
        known = ", ".join(("like", "cost", *_SIZES))
        raise SimulationError(f"unknown: {', '.join(sorted(unknown))}; it has {known}")
    sizes = {key: _size(key, document[key]) for key in _SIZES if key in document}
    if sizes.get("depth", 1) > 2:
        raise SimulationError("depth is 1 or 2")
    machine = load_machine(str(document.get("like", "a100-llama-3-8b")))
    cost = _cost(document["cost"]) if "cost" in document else machine.cost
    return replace(machine, cost=replace(cost, name=name), **sizes)


def _size(key: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= _MAX_SIZE:
        raise SimulationError(f"{key} is not 1 to {_MAX_SIZE:,}")
    return value


def _cost(profile: Any) -> StepCost:
    if not isinstance(profile, dict) or not {"small", "large"} <= profile.keys():
        raise SimulationError("cost is not a profile: it has small, large and split_num_tokens")
    regimes = [_regime(key, profile[key]) for key in ("small", "large")]
    split = _size("cost.split_num_tokens", profile.get("split_num_tokens", 512))
    return StepCost("", regimes[0], regimes[1], split)


def _regime(key: str, coefficients: Any) -> LinearCost:
    known = {field.name for field in fields(LinearCost)}
    if not isinstance(coefficients, dict) or not coefficients.keys() <= known:
        raise SimulationError(f"cost.{key} is not coefficients of {', '.join(sorted(known))}")
    for name, value in coefficients.items():
        if type(value) not in (int, float) or not math.isfinite(value):
            raise SimulationError(f"cost.{key}.{name} is not a number")
    # A step that takes no time would let none pass.
    if coefficients.get("intercept_s", 0.0) <= 0.0 or "per_token_s" not in coefficients:
        raise SimulationError(f"cost.{key} needs an intercept_s above 0, and per_token_s")
    return LinearCost(**coefficients)
