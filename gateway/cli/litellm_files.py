"""Reading what LiteLLM has: its `config.yaml`, and JSON that its API or its database gives out.

JSON may be an object with `teams`, `keys`, `budgets`, `organizations` (or the tables' names), the
answer of `/key/list?return_full_object=true`, or a bare list of teams, as `/team/list` answers, or
of keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from gateway.cli.exits import CliError, Exit

Row = Mapping[str, Any]

# What each list may be called.
_LISTS: Final = {
    "teams": ("teams", "LiteLLM_TeamTable"),
    "keys": ("keys", "LiteLLM_VerificationToken"),
    "budgets": ("budgets", "LiteLLM_BudgetTable"),
    "organizations": ("organizations", "LiteLLM_OrganizationTable"),
}
# What surrounds a list in an answer and says nothing.
_PAGING: Final = {
    "total_count",
    "current_page",
    "total_pages",
    "total",
    "page",
    "page_size",
    "size",
}


def _is_plain(value: object) -> bool:
    return not isinstance(value, (list, dict))


def _is_object(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(name, str) for name in value)


def _are(kind: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(map(kind, value))


# Of the fields that are looked into: what each must be, at every depth.
_SHAPES: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    **dict.fromkeys(("team_id", "token", "budget_id"), (_is_plain, "a text or a number")),
    "models": (_are(_is_plain), "a list of names"),
    **dict.fromkeys(("keys", "model_list"), (_are(_is_object), "a list of objects")),
    **dict.fromkeys(("litellm_settings", "general_settings"), (_is_object, "an object")),
    **dict.fromkeys(("litellm_params", "model_info"), (_is_object, "an object")),
    "litellm_budget_table": (_is_object, "an object"),
}


@dataclass
class LiteLlm:
    """Hold what was found, in LiteLLM's own words; `other` is what is none of the lists."""

    teams: list[Row] = field(default_factory=list)
    keys: list[Row] = field(default_factory=list)
    budgets: list[Row] = field(default_factory=list)
    organizations: list[Row] = field(default_factory=list)
    other: dict[str, Any] = field(default_factory=dict)


def read_litellm(paths: list[Path]) -> LiteLlm:
    """Read files together. Raises: `CliError`."""
    found = LiteLlm()
    for path in paths:
        document = _read(path)
        if isinstance(document, list):
            document = {_kind_of(path, document): document}
        if not _is_object(document):
            raise CliError(f"{path} holds neither a configuration nor a list", Exit.USAGE)
        _take(path, document, found)
    # Teams bring their keys with them; an export of keys has the same ones again.
    known = {key.get("token") for key in found.keys}
    for team in found.teams:
        for key in team.get("keys") or ():
            if key.get("token") is None or key.get("token") not in known:
                found.keys.append({**key, "team_id": key.get("team_id") or team.get("team_id")})
    return found


def _take(path: Path, document: dict[str, Any], found: LiteLlm) -> None:
    for name, names in _LISTS.items():
        for one in names:
            rows = document.pop(one, None) or []
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                hint = "; ask /key/list with return_full_object=true" if name == "keys" else ""
                raise CliError(f"{path}: '{one}' must be a list of objects{hint}", Exit.USAGE)
            for row in rows:
                _check_shapes(path, row)
            getattr(found, name).extend(rows)
    _check_shapes(path, document)
    found.other |= {name: value for name, value in document.items() if name not in _PAGING}


def _check_shapes(path: Path, row: Row) -> None:
    """Raise `CliError` where a field holds what nobody could make sense of."""
    for name, value in row.items():
        is_right, what = _SHAPES.get(name, (_is_any, ""))
        if value is not None and not is_right(value):
            raise CliError(f"{path}: '{name}' must be {what}", Exit.USAGE)
        if name in _SHAPES:
            for inner in value if isinstance(value, list) else [value]:
                if isinstance(inner, dict):
                    _check_shapes(path, inner)


def _is_any(value: object) -> bool:
    return True


def _read(path: Path) -> Any:  # whatever the file holds
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        raise CliError(f"{path} cannot be read: {exc}", Exit.USAGE) from None
    if path.suffix.lower() == ".json":
        try:
            return json.loads(text, parse_float=Decimal)
        except (ValueError, RecursionError) as exc:
            raise CliError(f"{path} is not JSON: {exc}", Exit.USAGE) from None
    import yaml

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise CliError(f"{path} is not YAML: {exc}", Exit.USAGE) from None


def _kind_of(path: Path, rows: list[Any]) -> str:
    """Tell teams from keys; a key can name a team, but no team has a token."""
    if all(isinstance(row, dict) for row in rows):
        if any("token" in row or "key_alias" in row or "key_name" in row for row in rows):
            return "keys"
        if any("team_id" in row or "team_alias" in row for row in rows):
            return "teams"
    raise CliError(f"{path} is a list of neither teams nor keys", Exit.USAGE)
