"""A scheduler's configuration as JSON: shown whole, changed in part.

Names are those of `scheduler.config`; bands go by theirs in lower case. A change is laid over the
configuration in force: first `preset`, which sets how steps are filled, who is admitted and who
is preempted, and leaves alone who is next and what belongs to this server (its queue's bound);
then `policy`, short for `fairness.policy`; then each section, field by field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from math import isfinite
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec

from gateway.errors import InvalidRequest
from scheduler.config import PRESETS, FairnessConfig, SchedulerConfig
from scheduler.errors import UnknownPolicy
from scheduler.policies.registry import levels_of, make_policy, policy_names
from scheduler.request import Band

# Every number of a configuration → its least and its greatest value.
BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "fairness.prices.input": (0, 1_000),
    "fairness.prices.output": (1e-3, 1_000),
    "fairness.prices.cached_input": (0, 1_000),
    "fairness.borrow_tokens": (0, 1e9),
    "fairness.best_effort_ttft_s": (1e-3, 86_400),
    "fairness.max_throughput_loss": (0, 0.9),
    "fairness.band_shares": (0, 1),
    "composer.max_num_batched_tokens": (1, 1 << 20),
    "composer.min_chunk_tokens": (1, 1 << 20),
    "composer.max_overhead_share": (0.001, 1),
    "composer.pace_fraction": (0.01, 10),
    "composer.max_step_s": (1e-3, 60),
    "composer.admission_interval_steps": (1, 10_000),
    "composer.max_bypasses": (0, 10_000),
    "composer.kv_quantile": (0.01, 1),
    "composer.batch_kv_headroom": (0, 1),
    "composer.harvest_step_s": (1e-3, 60),
    "composer.harvest_pause_s": (0, 3_600),
    "admission.ttft_fraction": (0.01, 10),
    "admission.max_num_queued": (1, 10_000_000),
    "admission.max_queued_tokens": (1, 1e12),
    "admission.tenant_queue_alpha": (1e-3, 1_000),
    "preemption.max_preemptions": (0, 1_000),
    "preemption.min_run_steps": (0, 1_000_000),
}


def changed(config: SchedulerConfig, changes: Mapping[str, Any]) -> SchedulerConfig:
    """Lay decoded JSON over a configuration.

    Raises: `InvalidRequest` with the field's name in `param`.
    """
    changes = dict(changes)
    if "preset" in changes:
        config = _with_preset(config, changes.pop("preset"))
    if "policy" in changes:
        policy = _convert(changes.pop("policy"), str, "policy")
        config = replace(config, fairness=replace(config.fairness, policy=policy))
        _check_policy(config.fairness, "policy")
    config = _over(config, changes, "")
    _check_policy(config.fairness, "fairness.policy")
    _check_numbers(config)
    return config


def preset_of(config: SchedulerConfig) -> str | None:
    """Name the preset that a configuration is of; None where a number of it was changed."""
    same = (name for name in PRESETS if _with_preset(config, name) == config)
    return next(same, None)


def plain(value: Any) -> Any:
    """Spell data as JSON can hold it: dataclasses as objects, enums as names, no infinities."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Band):
        return value.name.lower()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return value


def _with_preset(config: SchedulerConfig, name: object) -> SchedulerConfig:
    preset = PRESETS.get(name) if isinstance(name, str) else None
    if preset is None:
        raise InvalidRequest(f"'preset' must be one of {', '.join(PRESETS)}.", param="preset")
    return replace(
        config,
        composer=preset.composer,
        admission=replace(preset.admission, max_num_queued=config.admission.max_num_queued),
        preemption=preset.preemption,
    )


def _over(value: Any, change: Any, path: str) -> Any:
    """Return the dataclass `value` with the fields of `change` laid over its own."""
    if not isinstance(change, Mapping):
        raise InvalidRequest(f"'{path}' must be an object.", param=path, code="invalid_type")
    kinds = get_type_hints(type(value))
    new = {}
    for name, item in change.items():
        where = f"{path}.{name}" if path else str(name)
        if name not in kinds:
            raise InvalidRequest(
                f"There is no field '{where}'.", param=where, code="unknown_parameter"
            )
        new[name] = _field(getattr(value, name), item, kinds[name], where)
    return replace(value, **new)


def _field(value: Any, item: Any, kind: Any, path: str) -> Any:
    if is_dataclass(kind):
        return _over(value, item, path)
    if get_origin(kind) is not Mapping:
        return _convert(item, kind, path)
    key_kind, value_kind = get_args(kind)
    if not isinstance(item, Mapping):
        raise InvalidRequest(f"'{path}' must be an object.", param=path, code="invalid_type")
    entries = {
        _band(key, f"{path}.{key}") if key_kind is Band else key: _convert(
            entry, value_kind, f"{path}.{key}"
        )
        for key, entry in item.items()
    }
    return {**value, **entries}


def _convert(item: Any, kind: Any, path: str) -> Any:
    try:
        return msgspec.convert(item, kind)
    except msgspec.ValidationError as exc:
        text = str(exc).partition(" - at")[0]
        raise InvalidRequest(f"{text} (at '{path}').", param=path, code="invalid_type") from None


def _band(name: str, path: str) -> Band:
    by_name = {band.name.lower(): band for band in Band}
    if name not in by_name:
        raise InvalidRequest(f"The bands are {', '.join(by_name)}.", param=path)
    return by_name[name]


def _check_policy(fairness: FairnessConfig, param: str) -> None:
    try:
        levels_of(fairness.policy)
    except UnknownPolicy as exc:
        raise InvalidRequest(str(exc), param=param) from None
    for name in fairness.params:
        where = f"fairness.params.{name}"
        if name not in policy_names():
            raise InvalidRequest(
                f"There is no policy '{name}'; there are {', '.join(policy_names())}.", param=where
            )
        try:
            make_policy(name, fairness)
        except (TypeError, ValueError) as exc:
            raise InvalidRequest(
                f"The policy '{name}' does not take these parameters.",
                param=where,
                detail=str(exc),
            ) from None


def _check_numbers(config: SchedulerConfig) -> None:
    for path, value in numbers(config):
        low, high = BOUNDS[path]
        if not low <= value <= high:  # NaN fails this too
            raise InvalidRequest(f"'{path}' must be between {low:g} and {high:g}.", param=path)
    shares = config.fairness.band_shares
    if sum(shares.values()) >= 1:
        raise InvalidRequest(
            "The shares of the bands must add up to less than 1.", param="fairness.band_shares"
        )


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """List the numbers of a configuration by their paths; those of a mapping share its path.

    A policy's own parameters are left to the policy.
    """
    for field in fields(value):
        item, where = getattr(value, field.name), f"{path}{field.name}"
        if is_dataclass(item):
            yield from numbers(item, f"{where}.")
        elif isinstance(item, Mapping) and where != "fairness.params":
            yield from ((where, entry) for entry in item.values())
        elif isinstance(item, int | float) and not isinstance(item, bool):
            yield where, item
