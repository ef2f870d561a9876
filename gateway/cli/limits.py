"""The options of limits, which plans, quotas and overrides share, and limits as people read them.

A command declared `@with_limits` has them all, and gets what was given as one argument, `limits`,
by the names of the admin API.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import typer

from gateway.cli.options import names, nano_to_usd, nano_usd
from gateway.domain.quota import Metric, Unit

_MONEY: Final = tuple(metric for metric in Metric if metric.row.unit is Unit.NANO_USD)


def is_money(field: str) -> bool:
    """Tell whether a limit is in billionths of a dollar, which people write in dollars."""
    return field in _MONEY


def _option(metric: Metric) -> Any:  # what Typer reads from an annotation
    if is_money(metric):
        return Annotated[str | None, typer.Option(metavar="USD", help=metric.row.help)]
    return Annotated[int | None, typer.Option(min=0, help=metric.row.help)]


# Option → how it is declared.
_OPTIONS: Final[dict[str, Any]] = {
    **{metric.flag: _option(metric) for metric in Metric},
    "budget_window": Annotated[
        str | None,
        typer.Option(help="What the budget is for: day, week, month, or as 24h or 30d."),
    ],
    "soft_budget": Annotated[
        bool | None,
        typer.Option(
            "--soft-budget/--hard-budget", help="Whether a spent budget only warns, or refuses."
        ),
    ],
}

# What each is called in the admin API, and that as people read it, where it is another name.
_FIELDS: Final = {
    **{metric.flag: metric.value for metric in Metric if metric.flag != metric.value},
    "soft_budget": "budget_hard",
}
_LABELS: Final[dict[str, str]] = {metric.value: metric.flag for metric in Metric}
_ALIASES: Final = {"budget": "budget_nano_usd", "hard_budget": "budget_hard"}

FIELDS: Final = tuple(_FIELDS.get(option, option) for option in _OPTIONS)

Unset = Annotated[
    str | None,
    typer.Option(help="Limits to take back, by their options' names, separated by commas."),
]


def with_limits(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of limits in place of its argument `limits`."""
    own = inspect.signature(command, eval_str=True)

    @functools.wraps(command)
    def called(**given: Any) -> None:  # what Typer read
        values = {option: given.pop(option) for option in _OPTIONS}
        command(**given, limits=_read(values))

    parameters: list[inspect.Parameter] = []
    for name, parameter in own.parameters.items():
        if name != "limits":
            parameters.append(parameter)
            continue
        parameters += [
            inspect.Parameter(option, parameter.kind, default=None, annotation=kind)
            for option, kind in _OPTIONS.items()
        ]
    called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    return called


def unset_fields(text: str) -> list[str]:
    """Return the fields that `--unset` names. Raises: `typer.BadParameter`."""
    found = []
    for name in names(text):
        option = name.removeprefix("--").replace("-", "_")
        field = _ALIASES.get(option, _FIELDS.get(option, option))
        if field not in FIELDS:
            options = ", ".join(one.replace("_", "-") for one in _OPTIONS)
            raise typer.BadParameter(
                f"'{name}' is no limit; there are {options}", param_hint="--unset"
            )
        found.append(field)
    return found


def readable(field: str, value: Any) -> Any:
    """Return a limit as a person reads it: budgets in dollars."""
    return nano_to_usd(value) if is_money(field) and value is not None else value


def label(field: str) -> str:
    """Return a limit's name as a person reads it."""
    return _LABELS.get(field, field)


def readable_quota(quota: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits of an answer by readable names."""
    return {label(field): readable(field, quota[field]) for field in FIELDS}


def _read(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given by the admin API's names."""
    fields: dict[str, Any] = {}
    for option, value in values.items():
        if value is None:
            continue
        field = _FIELDS.get(option, option)
        if is_money(field):
            value = nano_usd(value, f"--{option.replace('_', '-')}")
        elif option == "soft_budget":
            value = not value
        fields[field] = value
    return fields
