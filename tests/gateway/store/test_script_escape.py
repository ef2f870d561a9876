"""Servers of which a script has more than it should."""

from __future__ import annotations

import pytest

from gateway.store.script_escape import product_of, version_to_use


@pytest.mark.parametrize(
    ("product", "version", "to_use"),
    [
        ("Redis", "7.0.15", "7.2.11"),
        ("Redis", "7.2.10", "7.2.11"),
        ("Redis", "7.2.11", None),
        ("Redis", "7.4.5", "7.4.6"),
        ("Redis", "8.0.3", "8.0.4"),
        ("Redis", "8.2.1", "8.2.2"),
        ("Redis", "8.2.2", None),
        ("Redis", "8.4.0", None),
        ("Valkey", "8.1.3", "8.1.4"),
        ("Valkey", "8.1.4", None),
        ("Valkey", "9.1.2", None),
    ],
)
def test_a_server_whose_scripts_break_out_is_told_which_version_to_use(
    product: str, version: str, to_use: str | None
) -> None:
    """Of its own line, if that has one that mends it, or of the next."""
    assert version_to_use(product, version) == to_use


def test_a_valkey_is_known_by_its_own_version() -> None:
    """It says a Redis's too, for clients that ask for that."""
    assert product_of({"redis_version": "7.2.4", "valkey_version": "9.1.2"}) == ("Valkey", "9.1.2")
    assert product_of({"redis_version": "8.2.2"}) == ("Redis", "8.2.2")
