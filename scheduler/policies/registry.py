"""The policies by name, and what a single name means for the three levels of the tree.

`register` adds one. A name that stands alone is a whole order: `fcfs` is first come, first served
whoever it is from, while `vtc` is fair between tenants and between keys and takes each key's
requests by deadline. `tenant/key/request` spells the levels out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scheduler.config import FairnessConfig
from scheduler.errors import UnknownPolicy
from scheduler.policies.base import Policy
from scheduler.policies.dlpm import Dlpm
from scheduler.policies.edf import Edf
from scheduler.policies.fcfs import Fcfs
from scheduler.policies.hrrn import Hrrn
from scheduler.policies.hybrid import Hybrid
from scheduler.policies.lpm import Lpm
from scheduler.policies.mlfq import Mlfq
from scheduler.policies.priority import Priority
from scheduler.policies.sjf import Sjf
from scheduler.policies.vtc import Vtc

Levels = tuple[str, str, str]

_POLICIES: dict[str, Callable[..., Policy]] = {}
_LEVELS: dict[str, Levels] = {}


def register(name: str, factory: Callable[..., Policy], levels: Levels | None = None) -> None:
    """Add a policy; alone, its name stands for `levels`, or for itself at every level.

    `factory` is called with the parameters that the configuration has for `name`.
    """
    assert "/" not in name
    _POLICIES[name] = factory
    _LEVELS[name] = levels or (name, name, name)


def policy_names() -> list[str]:
    """List what may be configured."""
    return sorted(_POLICIES)


def levels_of(policy: str) -> Levels:
    """Name the policies of tenants, keys and requests.

    Raises: `UnknownPolicy`.
    """
    names = policy.split("/")
    levels = _LEVELS.get(policy) if len(names) == 1 else tuple(names)
    if levels is None or len(levels) != 3 or not all(name in _POLICIES for name in levels):
        raise UnknownPolicy(policy, policy_names())
    return levels[0], levels[1], levels[2]


def make_policy(name: str, config: FairnessConfig) -> Policy:
    """Make the policy of one node.

    Raises: `TypeError` or `ValueError` where the parameters are not the policy's.
    """
    params: Mapping[str, Any] = config.params.get(name, {})
    return _POLICIES[name](**params)


register("fcfs", Fcfs)
register("priority", Priority)
register("edf", Edf)
register("hybrid", Hybrid)
register("sjf", Sjf)
register("hrrn", Hrrn)
register("mlfq", Mlfq)
register("lpm", Lpm)
register("vtc", Vtc, ("vtc", "vtc", "edf"))
register("dlpm", Dlpm, ("dlpm", "vtc", "lpm"))
