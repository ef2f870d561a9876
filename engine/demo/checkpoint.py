"""Keep a training that goes on after an interruption: weights and the optimizer's moments."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from engine.demo.network import Llama


def save_checkpoint(
    path: Path | None, network: Llama, optimizer: torch.optim.Optimizer, step: int
) -> None:
    """Write what going on after `step` steps needs; without a path, nothing."""
    if path is None:
        return
    tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
    for index, parameter in enumerate(network.parameters()):
        for name, value in optimizer.state[parameter].items():
            tensors[f"optimizer.{index}.{name}"] = value
    tensors = {name: value.detach().clone() for name, value in tensors.items()}
    save_file(tensors, path, metadata={"step": str(step)})


def load_checkpoint(path: Path | None, network: Llama, optimizer: torch.optim.Optimizer) -> int:
    """Return the step to go on with; the optimizer's groups are as they were made."""
    if path is None or not path.exists():
        return 0
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
        step = int(file.metadata()["step"])
    network.load_state_dict(
        {name[8:]: value for name, value in tensors.items() if name.startswith("network.")}
    )
    for index, parameter in enumerate(network.parameters()):
        prefix = f"optimizer.{index}."
        optimizer.state[parameter] = {
            name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)
        }
    return step
