"""Clients' addresses: what is one client, where clients are counted."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

Network = IPv4Network | IPv6Network

# The least that a network gives a household: whoever has one IPv6 address has all of its /64.
_IPV6_PREFIX: Final = 64
_TEXT_MAX: Final = 64


def counted_as(address: str) -> str:
    """Name the client that an address belongs to: an IPv4 address, or the /64 of an IPv6 one.

    What is no address, as a proxy may report, is a client of its own.
    """
    address = address[:_TEXT_MAX]
    return _counted_as(address) if ":" in address else address


def plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Take an IPv4 client of a listener that speaks both for what it is."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def is_loopback(address: str) -> bool:
    """Tell whether only this machine reaches an address; what is no address may be anywhere."""
    try:
        return plain(ip_address(address)).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=1024)
def _counted_as(address: str) -> str:
    try:
        client = plain(ip_address(address))
    except ValueError:
        return address
    if isinstance(client, IPv4Address):
        return str(client)
    network = int(client) >> _IPV6_PREFIX << _IPV6_PREFIX
    return f"{IPv6Address(network)}/{_IPV6_PREFIX}"
