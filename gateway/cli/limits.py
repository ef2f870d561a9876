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

_Amount = int | None

# Option → how it is declared.
_OPTIONS: Final[dict[str, Any]] = {
    "rpm": Annotated[_Amount, typer.Option(min=0, help="Requests a minute.")],
    "input_tpm": Annotated[_Amount, typer.Option(min=0, help="Prompt tokens a minute.")],
    "output_tpm": Annotated[_Amount, typer.Option(min=0, help="Generated tokens a minute.")],
    "concurrency": Annotated[_Amount, typer.Option(min=0, help="Requests at the same time.")],
    "queued_tokens": Annotated[
        _Amount, typer.Option(min=0, help="Tokens that may wait at the same time.")
    ],
    "daily_tokens": Annotated[_Amount, typer.Option(min=0, help="Tokens a day, in UTC.")],
    "monthly_tokens": Annotated[_Amount, typer.Option(min=0, help="Tokens a month, in UTC.")],
    "budget_usd": Annotated[
        str | None, typer.Option(metavar="USD", help="US dollars a window, as 25 or 0.15.")
    ],
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

# What each is called in the admin API, where that is another name.
_FIELDS: Final = {"budget_usd": "budget_nano_usd", "soft_budget": "budget_hard"}
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
    return nano_to_usd(value) if field == "budget_nano_usd" and value is not None else value


def label(field: str) -> str:
    """Return a limit's name as a person reads it."""
    return "budget_usd" if field == "budget_nano_usd" else field


def readable_quota(quota: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits of an answer by readable names."""
    return {label(field): readable(field, quota[field]) for field in FIELDS}


def _read(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given by the admin API's names."""
    fields: dict[str, Any] = {}
    for option, value in values.items():
        if value is None:
            continue
        if option == "budget_usd":
            value = nano_usd(value, "--budget-usd")
        elif option == "soft_budget":
            value = not value
        fields[_FIELDS.get(option, option)] = value
    return fields
