"""Connections, counted in all and by address."""

from __future__ import annotations

from ipaddress import ip_network

from gateway.http.limits import Connections, HttpLimits, Place


def take(connections: Connections, *addresses: str) -> list[Place | None]:
    return [connections.take(address) for address in addresses]


def fits(places: list[Place | None]) -> list[bool]:
    return [place is not None for place in places]


def test_an_address_has_its_share_of_connections() -> None:
    """One address at its bound keeps nobody else out, and gets room back as it closes."""
    connections = Connections(HttpLimits(max_connections_per_address=2))
    held = take(connections, *["10.0.0.1"] * 3)
    assert fits(held) == [True, True, False]
    assert fits(take(connections, "10.0.0.2")) == [True]
    assert held[0] is not None
    held[0].leave()
    assert fits(take(connections, "10.0.0.1", "10.0.0.1")) == [True, False]


def test_all_together_are_bounded() -> None:
    """Beyond the bound of all nobody gets in, from wherever."""
    connections = Connections(HttpLimits(max_connections=3))
    held = take(connections, *(f"10.0.0.{n}" for n in range(4)))
    assert fits(held) == [True, True, True, False]
    assert held[2] is not None
    held[2].leave()
    assert fits(take(connections, "10.0.0.9", "10.0.0.9")) == [True, False]


def test_a_trusted_proxy_is_many_clients() -> None:
    """Its connections count in all, but not against one address, in whichever notation."""
    connections = Connections(
        HttpLimits(max_connections=4, max_connections_per_address=1), [ip_network("10.0.0.0/24")]
    )
    addresses = ["10.0.0.1", "10.0.0.1", "::ffff:10.0.0.1", "10.0.0.1", "10.0.0.1"]
    assert fits(take(connections, *addresses)) == [True, True, True, True, False]


def test_an_ipv6_client_is_its_network() -> None:
    """Whoever has a /64 has one client's share of connections, not 2^64 of them."""
    connections = Connections(HttpLimits(max_connections_per_address=2))
    addresses = ["2001:db8::1", "2001:db8::ffff:2", "2001:db8::3", "2001:db8:0:1::1"]
    assert fits(take(connections, *addresses)) == [True, True, False, True]


def test_a_place_is_left_once() -> None:
    """Two who both end a connection make room for one."""
    connections = Connections(HttpLimits(max_connections=2))
    first, second = take(connections, "10.0.0.1", "10.0.0.1")
    assert first is not None
    assert second is not None
    first.leave()
    first.leave()
    assert connections.num_open == 1


def test_nothing_is_left_of_who_has_gone() -> None:
    """Leaving forgets an address, and so does a refusal: memory does not grow with strangers."""
    connections = Connections(HttpLimits(max_connections=100))
    for place in take(connections, *(f"10.0.0.{n}" for n in range(150))):
        if place is not None:
            place.leave()
    assert connections.num_open == 0
    assert not connections._by_address
