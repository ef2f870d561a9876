"""Which addresses a request of ours may go to: public ones, unless the operator says otherwise.

A name is resolved once and the connection goes to that very address, so that a second answer of
the name's server cannot lead it elsewhere.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

Address = IPv4Address | IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]

# Addresses of the old internet inside the new one: RFC 6052.
_NAT64: Final = IPv6Network("64:ff9b::/96")
# Taken for the internet's by the library, some of it in older releases alone: the protocols' own
# (RFC 6890; a cloud has metadata there), the former relays of 6to4 (RFC 7526), and the address at
# which every machine of Azure finds its host.
_INSIDE: Final = (
    IPv4Network("192.0.0.0/24"),
    IPv4Network("192.88.99.0/24"),
    IPv4Network("168.63.129.16/32"),
    IPv6Network("3fff::/20"),
)


class NoAddress(Exception):
    """Say that a name leads nowhere that is allowed."""


async def resolve(host: str, port: int) -> Sequence[Address]:
    """Return the addresses of a host, the preferred first. Raises: `NoAddress`."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as exc:
        raise NoAddress(f"{host} cannot be resolved: {exc}") from None
    return [ip_address(address[0]) for *_, address in found]


def choose(host: str, addresses: Sequence[Address], *, allow_private: bool) -> Address:
    """Return the first address that is allowed. Raises: `NoAddress`."""
    for address in addresses:
        if allow_private or is_public(address):
            return address
    raise NoAddress(f"{host} is not a public address")


def is_public(address: Address) -> bool:
    """Tell whether an address is on the internet.

    Not so: private, loopback, link-local (a cloud's metadata), ULA, shared (CGNAT), multicast,
    reserved, a cloud's own. Of an address that is a way to IPv4, where it leads to decides.
    """
    carried = _carried(address)
    if carried:
        return all(map(is_public, carried))
    if any(address in network for network in _INSIDE):
        return False
    is_site_local = isinstance(address, IPv6Address) and address.is_site_local
    return address.is_global and not (address.is_multicast or address.is_reserved or is_site_local)


def _carried(address: Address) -> list[IPv4Address]:
    """Return the IPv4 addresses that an IPv6 address leads to by a tunnel or a translation."""
    if isinstance(address, IPv4Address):
        return []
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address.sixtofour is not None:
        return [address.sixtofour]
    if address.teredo is not None:
        return list(address.teredo)
    if address in _NAT64:
        return [IPv4Address(int(address) & 0xFFFFFFFF)]
    return []
