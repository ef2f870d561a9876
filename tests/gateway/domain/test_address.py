"""What counts as one client."""

from __future__ import annotations

import pytest

from gateway.domain.address import counted_as


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:DB8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("unknown", "unknown"),
        ("a:b", "a:b"),
        ("", ""),
        ("x" * 1000, "x" * 64),
        (":" * 1000, ":" * 64),
    ],
)
def test_an_address_is_counted_as_its_client(address: str, expected: str) -> None:
    """IPv4 by itself however it is written, IPv6 by its /64, and what is neither by its text."""
    assert counted_as(address) == expected
