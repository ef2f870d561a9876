"""What of others is served: pinned, licensed, and as its package has it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from admin_ui.assets import STATIC, Assets
from admin_ui.pages import TEMPLATES

_VENDOR = STATIC / "vendor"
_OF_TESTS = Path(__file__).parent / "vendor"
LICENSES = {_VENDOR: ("0BSD", "MIT"), _OF_TESTS: ("MPL-2.0",)}


@pytest.mark.parametrize("vendor", [_VENDOR, _OF_TESTS], ids=["served", "of tests"])
def test_every_vendored_file_is_in_the_manifest(vendor: Path) -> None:
    """Each has a package, a version and a licence whose text is there too."""
    manifest = tomllib.loads((vendor / "manifest.toml").read_text())
    named = set()
    for package in manifest["package"]:
        assert package["version"].count(".") == 2
        assert package["license"] in LICENSES[vendor]
        assert re.fullmatch(r"sha512-[A-Za-z0-9+/]{86}==", package["integrity"])
        assert any("licenses/" in name for name in package["files"])
        named |= set(package["files"])
    there = {str(path.relative_to(vendor)) for path in vendor.rglob("*") if path.is_file()}
    assert there - {"manifest.toml"} == named


def test_own_scripts_stay_small() -> None:
    """The scripts of our own are conveniences: 400 lines in all, without inline handlers."""
    scripts = [path.read_text() for path in (STATIC / "js").glob("*.js")]
    assert sum(len(text.splitlines()) for text in scripts) <= 400
    assert not any("innerHTML" in text or "eval(" in text for text in scripts)


@pytest.mark.parametrize("path", sorted(TEMPLATES.rglob("*.html")), ids=lambda path: path.name)
def test_templates_obey_the_content_security_policy(path: object) -> None:
    """No template has an inline script, style or handler, and none says that text is safe."""
    text = path.read_text()  # type: ignore[attr-defined]
    assert not re.search(r"<script(?![^>]*\bsrc=)", text)
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|hx-on|javascript:", text)
    assert "| safe" not in text
    assert "autoescape false" not in text


def test_scripts_and_styles_are_what_a_page_can_afford() -> None:
    """All that a page loads once is under 150 KB."""
    assets = Assets()
    assert sum(len(asset.body) for asset in assets._assets.values()) < 150_000
