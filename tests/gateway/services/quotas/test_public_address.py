"""Which addresses count as public."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from gateway.services.quotas.public_address import NoAddress, choose, is_public, resolve

pytestmark = pytest.mark.anyio

INSIDE = [
    "127.0.0.1",
    "127.8.8.8",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "239.1.1.1",
    "255.255.255.255",
    "192.0.2.1",
    "240.0.0.1",
    "168.63.129.16",
    "192.0.0.8",
    "192.0.0.192",
    "192.88.99.1",
    "::1",
    "::",
    "fe80::1",
    "fc00::1",
    "fd00::1",
    "fec0::1",
    "ff02::1",
    "2001:db8::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "2002:7f00:1::",
    "64:ff9b::7f00:1",
    "64:ff9b:1::1",
    "2001:0:7f00:1::",
    "3fff::1",
    "::ffff:168.63.129.16",
    "64:ff9b::a83f:8110",
]
OUTSIDE = [
    "8.8.8.8",
    "1.1.1.1",
    "2606:4700::1",
    "::ffff:8.8.8.8",
    "2002:808:808::",
    "64:ff9b::808:808",
]


@pytest.mark.parametrize("text", INSIDE)
def test_what_is_inside_is_refused(text: str) -> None:
    """No spelling of an address that is not on the internet passes."""
    assert not is_public(ip_address(text))
    with pytest.raises(NoAddress):
        choose("h", [ip_address(text)], allow_private=False)
    assert choose("h", [ip_address(text)], allow_private=True) == ip_address(text)


@pytest.mark.parametrize("text", OUTSIDE)
def test_what_is_outside_passes(text: str) -> None:
    """Addresses of the internet are taken, also behind one that is not."""
    found = [ip_address("10.0.0.1"), ip_address(text)]
    assert choose("h", found, allow_private=False) == ip_address(text)


async def test_names_are_resolved() -> None:
    """The system's resolver is asked; a name that is none says so."""
    assert ip_address("127.0.0.1") in await resolve("localhost", 80)
    with pytest.raises(NoAddress, match="cannot be resolved"):
        await resolve("no-such-host.invalid", 80)
