"""Where the admin API may listen without TLS."""

from __future__ import annotations

import pytest

from gateway.http.plain_admin import exposed
from gateway.settings import Settings


@pytest.mark.parametrize(
    ("address", "is_exposed"),
    [
        ("127.0.0.1", False),
        ("127.8.9.1", False),
        ("::1", False),
        ("::ffff:127.0.0.1", False),
        ("0.0.0.0", True),
        ("::", True),
        ("10.0.0.1", True),
        ("::ffff:10.0.0.1", True),
        ("fe80::1%eth0", True),
        ("", True),
    ],
)
def test_only_this_machine_may_speak_plainly(address: str, is_exposed: bool) -> None:
    """Any address but a loopback one is refused, and none where the operator allows it."""
    assert (exposed(Settings(), address) is not None) is is_exposed
    assert exposed(Settings(admin_allow_plain=True), address) is None
