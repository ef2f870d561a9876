"""How much a client may send, how slowly, and how many connections it may hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from gateway.domain.address import Network, counted_as, plain


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Bound one connection, and all of an address.

    `handshake_s` is all the time that TLS gets before there is HTTP. `header_bytes` counts the
    request line too. `header_timeout_s` runs from the first byte, or from the connection's start,
    to the last header; `body_idle_s` between two parts of a body and `body_timeout_s` over all of
    it, which a long one has a second more of for each `body_bytes_per_s`, up to `body_longest_s`.
    A client that takes nothing for `write_stall_s`, with `write_buffer_bytes` waiting for it,
    is cut off.
    """

    handshake_s: float = 5.0
    header_bytes: int = 32 << 10
    num_headers: int = 100
    header_timeout_s: float = 10.0
    body_idle_s: float = 10.0
    body_timeout_s: float = 60.0
    body_bytes_per_s: int = 128 << 10
    body_longest_s: float = 4000.0
    write_stall_s: float = 25.0
    write_buffer_bytes: int = 64 << 10
    max_connections: int = 4096
    max_connections_per_address: int = 256


class Connections:
    """Count open connections, in all and by address; those of `unlimited` networks in all alone.

    An address is counted as `gateway.domain.address` says: an IPv6 client by its /64.
    """

    def __init__(self, limits: HttpLimits, unlimited: Sequence[Network] = ()) -> None:
        self._limits = limits
        self._unlimited = unlimited
        self._by_address: Counter[str] = Counter()
        self.num_open = 0

    def take(self, address: str) -> Place | None:
        """Count a connection until its place is left; None where there is no room for it."""
        if self.num_open >= self._limits.max_connections:
            return None
        counted = counted_as(address)
        is_at_bound = self._by_address[counted] >= self._limits.max_connections_per_address
        if is_at_bound and not self._is_unlimited(address):
            return None
        self.num_open += 1
        self._by_address[counted] += 1
        return Place(self, counted)

    def give_back(self, counted: str) -> None:
        """Forget a connection; for `Place` alone."""
        self.num_open -= 1
        self._by_address[counted] -= 1
        if not self._by_address[counted]:
            del self._by_address[counted]

    def _is_unlimited(self, address: str) -> bool:
        client = plain(ip_address(address))
        return any(client in network for network in self._unlimited)


class Place:
    """One connection that is counted; whoever ends it leaves, and once counts."""

    __slots__ = ("_connections", "_is_left", "address")

    def __init__(self, connections: Connections, counted: str) -> None:
        self._connections = connections
        # As it is counted.
        self.address = counted
        self._is_left = False

    def leave(self) -> None:
        """Make room for another."""
        if not self._is_left:
            self._is_left = True
            self._connections.give_back(self.address)
