"""Settings as the page of them shows them: the value that holds, where it comes from, its help."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.settings import Settings

_MAX_TEXT = 120
# Settings are described for the README, which is Markdown.
_LINK = re.compile(r"\[([^]]+)]\(([^)]+)\)")


@dataclass(frozen=True, slots=True)
class SettingRow:
    """Show one setting; `variable` sets it, at the next start."""

    name: str
    text: str
    source: str
    help: str
    variable: str


def setting_rows(
    settings: Settings, shown: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> list[SettingRow]:
    """Return all settings by name; `shown` is what may be seen of their values."""
    return [
        SettingRow(
            name=name,
            text=_text(shown[name]),
            source=_source(settings, name, environment),
            help=_plain(field.description or ""),
            variable=f"SLUICE_{name.upper()}",
        )
        for name, field in type(settings).model_fields.items()
    ]


def _plain(description: str) -> str:
    """Leave out the marks of Markdown; a link is the name of its document."""
    return _LINK.sub(r"\2", description).replace("`", "")


def _source(settings: Settings, name: str, environment: Mapping[str, str]) -> str:
    if name not in settings.model_fields_set:
        return "default"
    return "environment" if f"SLUICE_{name.upper()}" in environment else "flag or sluice.toml"


def _text(value: object) -> str:
    if value is None:
        return "—"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…"
