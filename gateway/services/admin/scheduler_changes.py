"""What operators set of a scheduler, as a document: changes laid together, and whose a value is.

A document is a change as the admin API takes it, and `merged` makes one change of two: laid over a
configuration it is as both in their order. It holds what was set and no more, so it may be laid
over other settings by another gateway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.domain.scheduler_policy import Changes, OperatorPolicy

OPERATORS, SETTINGS = "operators", "settings"
# What a preset sets whole, but for what belongs to a server: its queue's bound.
_OF_PRESET: Final = ("composer", "admission", "preemption")
_NOT_OF_PRESET: Final = ("admission", "max_num_queued")
# A section, a field, an entry of it; below, a value is replaced whole.
_DEPTH: Final = 3


def merged(document: Changes, changes: Changes) -> dict[str, Any]:
    """Return the document that does what `document` does and then `changes`."""
    changes = _named_once(changes)
    if "preset" in changes:
        document = _without_preset(document)
    return _laid(document, changes, _DEPTH)


def changed_policy(
    policy: OperatorPolicy, changes: Changes | None, model: str | None
) -> OperatorPolicy:
    """Return what is set once a change came, of one model by its name or of all.

    `changes`: None: nothing is to be set any more.
    """

    def after(document: Changes) -> dict[str, Any]:
        return {} if changes is None else merged(document, changes)

    every, models = policy.every, dict(policy.models)
    if model is not None:
        models[model] = after(policy.of(model))
    else:
        every, models = after(every), {name: after(one) for name, one in models.items()}
    # Who has nothing of its own goes with the rest.
    models = {name: one for name, one in models.items() if one != every}
    return OperatorPolicy(policy.version, every, models)


def is_same(one: OperatorPolicy, other: OperatorPolicy) -> bool:
    """Tell whether two set the same, whatever their versions."""
    return (one.every, one.models) == (other.every, other.models)


def origins(config: Mapping[str, Any], document: Changes) -> dict[str, Any]:
    """Say of each value of a plain configuration who set it: `operators`, or this `settings`."""
    shown: dict[str, Any] = {}
    for section, fields in config.items():
        if not isinstance(fields, Mapping):
            shown[section] = _who(section in document)
            continue
        given = document.get(section, {})
        by_preset = "preset" in document and section in _OF_PRESET
        shown[section] = {
            name: _of_field(
                value,
                given.get(name),
                by_preset and (section, name) != _NOT_OF_PRESET,
                name in given,
            )
            for name, value in fields.items()
        }
    if "policy" in document:
        shown["fairness"]["policy"] = OPERATORS
    return shown


def at_same_places(config: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """Return what a plain configuration has where a change sets something; None: nothing there."""
    return {
        name: at_same_places(config.get(name) or {}, change)
        if isinstance(change, Mapping)
        else config.get(name)
        for name, change in changes.items()
    }


def _named_once(changes: Changes) -> dict[str, Any]:
    """Return a change without a second name for the policy, and without what sets nothing."""
    named = {name: dict(one) if isinstance(one, Mapping) else one for name, one in changes.items()}
    fairness = named.get("fairness", {})
    if "policy" in fairness:
        named["policy"] = fairness.pop("policy")
    for name, section in tuple(named.items()):
        if isinstance(section, dict):
            kept = {field: value for field, value in section.items() if value != {}}
            named[name] = kept
            if not kept:
                del named[name]
    return named


def _without_preset(document: Changes) -> dict[str, Any]:
    kept = {name: one for name, one in document.items() if name not in ("preset", *_OF_PRESET)}
    section, name = _NOT_OF_PRESET
    if name in document.get(section, {}):
        kept[section] = {name: document[section][name]}
    return kept


def _laid(document: Changes, changes: Changes, depth: int) -> dict[str, Any]:
    new = dict(document)
    for name, change in changes.items():
        there = new.get(name)
        if depth > 1 and isinstance(change, Mapping) and isinstance(there, Mapping):
            new[name] = _laid(there, change, depth - 1)
        else:
            new[name] = change
    return new


def _of_field(value: Any, given: Any, by_preset: bool, is_given: bool) -> Any:
    if not isinstance(value, Mapping):
        return _who(by_preset or is_given)
    entries = given if isinstance(given, Mapping) else {}
    return {name: _who(name in entries) for name in value}


def _who(is_set: bool) -> str:
    return OPERATORS if is_set else SETTINGS
