"""Contrast, recomputed from the styles that are served. Source: WCAG 2.2, relative luminance."""

from __future__ import annotations

import re

import pytest

from admin_ui.assets import STATIC

_PAIR = re.compile(r"--([a-z0-9-]+): light-dark\((#[0-9A-F]{6}), (#[0-9A-F]{6})\)")
_ONE = re.compile(r"--([a-z0-9-]+): (#[0-9A-F]{6});")
GROUNDS = ("canvas", "surface", "sunken", "raised")
TEXTS = ("text", "text-2", "text-3", "accent", "danger", "warning", "success", "info")
SERIES = ("blue", "vermilion", "green", "purple", "amber", "slate")


def colours(theme: int) -> dict[str, str]:
    """Read the tokens of a theme, 0 light and 1 dark."""
    css = (STATIC / "css" / "tokens.css").read_text()
    found = {name: pair[theme] for name, *pair in _PAIR.findall(css)}
    return found | dict(_ONE.findall(css))


def contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    r, g, b = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


THEMED = pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])


@THEMED
def test_texts_are_read_on_every_ground(theme: int) -> None:
    """Every colour of text has 4.5 : 1 on every ground."""
    found = colours(theme)
    for text in TEXTS:
        for ground in GROUNDS:
            assert contrast(found[text], found[ground]) >= 4.5, (text, ground)


@THEMED
def test_chips_and_buttons_are_read(theme: int) -> None:
    """What stands on a soft or a solid ground of its own colour has 4.5 : 1 there."""
    found = colours(theme)
    for name in ("success", "warning", "danger", "info", "accent"):
        assert contrast(found[name], found[f"{name}-soft"]) >= 4.5, name
        assert contrast(found["text"], found[f"{name}-soft"]) >= 4.5, name
        assert contrast(found["text-2"], found[f"{name}-soft"]) >= 4.5, name
    for name in ("solid", "solid-hover", "solid-danger"):
        assert contrast(found["on-solid"], found[name]) >= 4.5, name


@THEMED
def test_borders_of_controls_and_lines_of_charts_are_seen(theme: int) -> None:
    """What is not text but has to be seen has 3 : 1."""
    found = colours(theme)
    for name in ("control", *SERIES):
        for ground in ("canvas", "surface"):
            assert contrast(found[name], found[ground]) >= 3.0, (name, ground)


def test_colours_are_tokens() -> None:
    """No colour is written outside of the tokens, but the mark's own."""
    for path in (STATIC / "css").glob("*.css"):
        if path.name != "tokens.css":
            assert not re.search(r"#[0-9A-Fa-f]{3,8}\b", path.read_text()), path.name
