"""Connections, counted in all and by address."""

from __future__ import annotations

from ipaddress import ip_network

from gateway.http.limits import Connections, HttpLimits


def test_an_address_has_its_share_of_connections() -> None:
    """One address at its bound keeps nobody else out, and gets room back as it closes."""
    connections = Connections(HttpLimits(max_connections_per_address=2))
    assert [connections.open("10.0.0.1") for _ in range(3)] == [True, True, False]
    assert connections.open("10.0.0.2")
    connections.close("10.0.0.1")
    connections.close("10.0.0.1")
    assert connections.open("10.0.0.1")


def test_all_together_are_bounded() -> None:
    """Beyond the bound of all nobody gets in, from wherever."""
    connections = Connections(HttpLimits(max_connections=3))
    assert [connections.open(f"10.0.0.{n}") for n in range(4)] == [True, True, True, False]
    connections.close("10.0.0.3")
    connections.close("10.0.0.2")
    assert connections.open("10.0.0.9")


def test_a_trusted_proxy_is_many_clients() -> None:
    """Its connections count in all, but not against one address."""
    connections = Connections(
        HttpLimits(max_connections=4, max_connections_per_address=1), [ip_network("10.0.0.0/24")]
    )
    assert [connections.open("10.0.0.1") for _ in range(5)] == [True, True, True, True, False]


def test_nothing_is_left_of_who_has_gone() -> None:
    """Closing forgets an address, so that memory does not grow with strangers."""
    connections = Connections(HttpLimits())
    for n in range(100):
        connections.open(f"10.0.0.{n}")
    for n in range(100):
        connections.close(f"10.0.0.{n}")
    assert connections.num_open == 0
    assert not connections._by_address
