"""From LiteLLM's teams, keys, budgets and limits to a `tenants.toml`.

A team becomes a tenant and a virtual key a key of it. What means something else here is taken over
as near as it goes and told (`approximated`); what has no place here is told by name with the reason
(`unmapped`). Field names: LiteLLM's `schema.prisma` and its documentation of `config.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from gateway.cli.litellm_fields import (
    BOOKKEEPING,
    LIMIT_FIELDS,
    NO_PLACE,
    REASONS,
    setting_reason,
)
from gateway.cli.litellm_files import LiteLlm, Row
from gateway.domain.quota import MAX_AMOUNT

NO_TEAM: Final = "no-team"

_ALL_MODELS: Final = {"all-proxy-models", "*"}
_TEAM_MODELS: Final = "all-team-models"
_MTOK: Final = 1_000_000
# Of more digits than that nothing is an amount, and writing one out takes for ever.
_MOST_DIGITS: Final = 30
_MOST_USD: Final = 10**12
# The longest window there is, for a budget that LiteLLM never resets.
_LONGEST: Final = "366d"
# LiteLLM resets these on the calendar, as our windows do.
_CALENDAR: Final = {
    **{"24h": "day", "1d": "day", "7d": "week", "1w": "week"},
    **{"30d": "month", "1mo": "month"},
}
_ROLLING: Final = re.compile(r"([1-9]\d{0,3})([hdw])", re.ASCII)


@dataclass
class Imported:
    """Hold a document for `tenants.toml`, and what is to be told about it, place by place."""

    document: dict[str, Any] = field(default_factory=dict)
    approximated: list[tuple[str, str]] = field(default_factory=list)
    unmapped: list[tuple[str, str]] = field(default_factory=list)


def import_litellm(found: LiteLlm, now: datetime | None = None) -> Imported:
    """Map what was found."""
    return _Import(found, now or datetime.now(UTC)).run()


class _Import:
    def __init__(self, found: LiteLlm, now: datetime) -> None:
        self._found = found
        self._now = now
        self._budgets = {row.get("budget_id"): row for row in found.budgets}
        self._result = Imported()
        self._tenants: dict[str, dict[str, Any]] = {}
        self._tenant_of: dict[object, str] = {}
        self._team_models: dict[str, list[str]] = {}
        self._tokens: set[object] = set()

    def run(self) -> Imported:
        for team in self._found.teams:
            self._team(team)
        for number, key in enumerate(self._found.keys, 1):
            self._key(key, number)
        if self._found.keys:
            self._unmapped("secrets of keys", "LiteLLM keeps only hashes: each key gets a new one")
        if any(row.get("spend") for row in (*self._found.teams, *self._found.keys)):
            self._unmapped("spend so far", "budgets begin anew, with the ledger")
        document = self._result.document
        self._organizations(document)
        self._configuration(document)
        if self._tenants:
            document["tenants"] = self._tenants
        return self._result

    def _team(self, team: Row) -> None:
        alias = str(team.get("team_alias") or team.get("team_id") or "team")
        name = self._name(alias, self._tenants, f"team '{alias}'")
        where = f"team '{alias}'"
        if team.get("blocked"):
            self._unmapped(where, "it is blocked, which a tenant cannot be; it is left out")
            return
        if team.get("team_id") is not None and team["team_id"] in self._tenant_of:
            self._unmapped(where, "another team has its id, as where a page is here twice")
            return
        self._tenant_of[team.get("team_id")] = name
        tenant: dict[str, Any] = {}
        if quota := self._quota(where, team):
            tenant["quota"] = quota
        models = self._models(where, team.get("models"))
        if models is not None:
            self._team_models[name] = models
            self._nearly(f"{where}, models", "each of its keys is held to them; later keys are not")
        self._tenants[name] = tenant
        self._rest(where, team, {"keys", *LIMIT_FIELDS})

    def _key(self, key: Row, number: int) -> None:
        alias = str(key.get("key_alias") or f"key-{number}")
        where = f"key '{alias}'"
        token = key.get("token")
        if token is not None and token in self._tokens:
            self._unmapped(where, "another key has its token, as where a page is here twice")
            return
        self._tokens.add(token)
        expires_at = self._expiry(where, key)
        if key.get("blocked"):
            self._unmapped(where, "it is blocked; it is left out")
            return
        if expires_at is not None and expires_at <= self._now:
            self._unmapped(where, f"it expired at {expires_at.isoformat()}; it is left out")
            return
        tenant = self._tenant(where, key.get("team_id"))
        if tenant is None:
            return
        made: dict[str, Any] = {}
        named = key.get("models") or []
        models = self._models(where, [one for one in named if one != _TEAM_MODELS])
        if models is None:
            models = self._team_models.get(tenant)
        if models is not None:
            if not models:
                self._unmapped(where, "it is held to models that cannot be named; it is left out")
                return
            made["models"] = models
        if expires_at is not None:
            made["expires_at"] = expires_at
        budget = self._budget_row(where, key)
        own = {name: value for name, value in key.items() if value is not None}
        if quota := self._quota(where, {**budget, **own}):
            made["quota"] = quota
        keys: dict[str, Any] = self._tenants[tenant].setdefault("keys", {})
        keys[self._name(alias, keys, where)] = made
        self._rest(where, key, {"key_alias", "expires", *LIMIT_FIELDS})

    def _tenant(self, where: str, team_id: object) -> str | None:
        """Return the tenant of a key; keys of nobody share one."""
        if team_id is not None:
            name = self._tenant_of.get(team_id)
            if name is None:
                self._unmapped(where, f"its team '{team_id}' is not here; it is left out")
            return name
        if NO_TEAM not in self._tenants:
            self._tenants[NO_TEAM] = {}
        self._nearly(where, f"it has no team: it becomes a key of tenant {NO_TEAM}")
        return NO_TEAM

    def _organizations(self, document: dict[str, Any]) -> None:
        rows = self._found.organizations
        for row in rows:
            where = f"organization '{row.get('organization_alias') or row.get('organization_id')}'"
            if len(rows) > 1:
                self._unmapped(where, "there is one organisation here")
                continue
            budget = self._budget_row(where, row)
            if quota := self._quota(where, budget):
                document["organisation"] = {"quota": quota}

    def _configuration(self, document: dict[str, Any]) -> None:
        """Take what a `config.yaml` says of all requests together, and its models' prices."""
        other = dict(self._found.other)
        settings = dict(other.pop("litellm_settings", None) or {})
        general = dict(other.pop("general_settings", None) or {})
        whole = {name: settings.pop(name) for name in tuple(settings) if name in LIMIT_FIELDS}
        if "global_max_parallel_requests" in general:
            whole["max_parallel_requests"] = general.pop("global_max_parallel_requests")
        if quota := self._quota("litellm_settings", whole):
            document["platform"] = {"quota": quota}
        for model in other.pop("model_list", None) or ():
            self._model(model, document)
        for place, values in (("litellm_settings", settings), ("general_settings", general)):
            for name in values:
                self._unmapped(f"{place}.{name}", setting_reason(name))
        for name in other:
            self._unmapped(name, setting_reason(name))

    def _model(self, model: Row, document: dict[str, Any]) -> None:
        name = str(model.get("model_name"))
        where = f"model '{name}'"
        params = {**(model.get("model_info") or {}), **(model.get("litellm_params") or {})}
        costs = {
            "input_usd_per_mtok": params.get("input_cost_per_token"),
            "cached_usd_per_mtok": params.get("cache_read_input_token_cost"),
            "output_usd_per_mtok": params.get("output_cost_per_token"),
        }
        price = {field: _decimal(cost) for field, cost in costs.items() if cost is not None}
        if any(cost is None or not 0 <= cost * _MTOK <= _MOST_USD for cost in price.values()):
            self._unmapped(
                f"{where}, costs", "one is no amount of 0 to a trillion a million tokens"
            )
            price = {}
        if price and not name.isprintable():
            self._unmapped(f"{where}, costs", "no model has such a name")
            price = {}
        prices: dict[str, Any] = document.get("prices", {})
        if {"input_usd_per_mtok", "output_usd_per_mtok"} <= price.keys() and name not in prices:
            document["prices"] = prices
            prices[name] = {
                field: (cost * _MTOK).normalize()
                for field, cost in price.items()
                if cost is not None
            }
        elif price:
            self._unmapped(f"{where}, costs", "a model has one price, of input and of output")
        self._unmapped(
            where, "models run in the server itself: 'sluice serve --model'; no api_base or api_key"
        )

    def _quota(self, where: str, row: Row) -> dict[str, Any]:
        """Map limits and budget of a team, a key, a budget or everything."""
        quota: dict[str, Any] = {}
        if (rpm := self._count(where, row, "rpm_limit")) is not None:
            quota["rpm"] = rpm
        if (tpm := self._count(where, row, "tpm_limit")) is not None:
            quota |= {"input_tpm": tpm, "output_tpm": tpm}
            self._nearly(
                f"{where}, tpm_limit",
                "LiteLLM counts prompt and generated tokens together, here each has its own limit: "
                f"both are {tpm}",
            )
        if (parallel := self._count(where, row, "max_parallel_requests")) is not None:
            quota["concurrency"] = parallel
        return quota | self._budget(where, row)

    def _budget_row(self, where: str, row: Row) -> Row:
        """Return the budget that a key or an organization refers to; an empty one for none."""
        inside, budget_id = row.get("litellm_budget_table"), row.get("budget_id")
        if inside or budget_id is None:
            return inside or {}
        if budget_id not in self._budgets:
            self._unmapped(f"{where}, budget_id '{budget_id}'", "that budget is not here")
        return self._budgets.get(budget_id, {})

    def _count(self, where: str, row: Row, field: str) -> int | None:
        number = _decimal(row.get(field))
        if number is not None and 0 <= number <= MAX_AMOUNT and number == int(number):
            return int(number)
        if row.get(field) is not None:
            self._unmapped(f"{where}, {field} '{row[field]}'", "it is not a number of 0 or more")
        return None

    def _budget(self, where: str, row: Row) -> dict[str, Any]:
        hard, soft = _decimal(row.get("max_budget")), _decimal(row.get("soft_budget"))
        for name, amount in (("max_budget", hard), ("soft_budget", soft)):
            if row.get(name) is not None and (amount is None or not 0 <= amount <= _MOST_USD):
                self._unmapped(
                    f"{where}, {name} '{row[name]}'", "it is no amount of 0 to a trillion dollars"
                )
                return {}
        amount = soft if hard is None else hard
        if amount is None:
            return {}
        rounded = round(amount, 9)
        if rounded != amount:
            self._nearly(f"{where}, max_budget '{amount}'", "it is rounded to 9 decimals")
        budget: dict[str, Any] = {"budget_usd": rounded}
        if hard is None:
            budget["budget_hard"] = False
        elif soft is not None:
            self._unmapped(
                f"{where}, soft_budget",
                "thresholds are percents of the budget: SLUICE_QUOTA_THRESHOLDS",
            )
        duration = row.get("budget_duration")
        window = _CALENDAR.get(str(duration))
        if window is None:
            rolling = _ROLLING.fullmatch(str(duration))
            number, unit = (int(rolling[1]), rolling[2]) if rolling else (0, "")
            text = f"{number * 7}d" if unit == "w" else f"{number}{unit}"
            hours = number * {"h": 1, "d": 24, "w": 168}.get(unit, 0)
            window = text if 1 <= hours <= 366 * 24 else _LONGEST
            was = "never resets" if duration is None else f"resets every {duration}"
            self._nearly(
                f"{where}, budget_duration", f"it {was}; here it is for the last {window}, rolling"
            )
        budget["budget_window"] = window
        return budget

    def _models(self, where: str, models: object) -> list[str] | None:
        """Return the models that keys may be held to; None where all are allowed."""
        names = [str(one) for one in models] if isinstance(models, list) else []
        if not names or set(names) & _ALL_MODELS:
            return None
        kept = [name for name in dict.fromkeys(names) if "*" not in name and name.isprintable()]
        if dropped := sorted(set(names) - set(kept)):
            self._unmapped(f"{where}, models {', '.join(dropped)}", "models are named one by one")
        return kept

    def _expiry(self, where: str, key: Row) -> datetime | None:
        text = key.get("expires")
        if text is None:
            return None
        try:
            at = text if isinstance(text, datetime) else datetime.fromisoformat(str(text))
        except ValueError:
            self._unmapped(f"{where}, expires '{text}'", "it is not a time")
            return None
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at

    def _name(self, alias: str, taken: Mapping[str, Any], where: str) -> str:
        """Return a name of ours that nobody has yet."""
        plain = re.sub(r"[^a-z0-9._-]+", "-", alias.lower()).strip("-._")[:63] or "unnamed"
        name, number = plain, 1
        while name in taken:
            number += 1
            name = f"{plain[:58]}-{number}"
        if name != alias:
            self._nearly(where, f"it is named {name} here")
        return name

    def _rest(self, where: str, row: Row, known: set[str]) -> None:
        """Tell every field that says something and has no place."""
        for name, value in row.items():
            if name in known or name in BOOKKEEPING or value in (None, "", [], {}, False):
                continue
            inside = f" ({', '.join(map(str, value))})" if isinstance(value, Mapping) else ""
            self._unmapped(f"{where}, {name}{inside}", REASONS.get(name, NO_PLACE))

    def _nearly(self, place: str, how: str) -> None:
        self._result.approximated.append((_shown(place), _shown(how)))

    def _unmapped(self, place: str, reason: str) -> None:
        self._result.unmapped.append((_shown(place), _shown(reason)))


def _shown(text: str) -> str:
    """Return a text on one line, with nothing that speaks to a terminal: its users chose it."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _decimal(value: object) -> Decimal | None:
    """Return a number as it was written: YAML reads it as a binary fraction, or as a text."""
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return None
    return number if number.is_finite() and abs(number.adjusted()) <= _MOST_DIGITS else None
