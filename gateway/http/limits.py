"""How much a client may send, how slowly, and how many connections it may hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Bound one connection, and all of an address.

    `header_bytes` counts the request line too. `header_timeout_s` runs from the first byte, or
    from the connection's start, to the last header; `body_idle_s` between two parts of a body and
    `body_timeout_s` over all of it. A client that takes nothing for `write_stall_s`, with
    `write_buffer_bytes` waiting for it, is cut off.
    """

    header_bytes: int = 32 << 10
    num_headers: int = 100
    header_timeout_s: float = 10.0
    body_idle_s: float = 10.0
    body_timeout_s: float = 60.0
    write_stall_s: float = 25.0
    write_buffer_bytes: int = 64 << 10
    max_connections: int = 4096
    max_connections_per_address: int = 256


class Connections:
    """Count open connections, in all and by address; those of `unlimited` networks in all alone."""

    def __init__(self, limits: HttpLimits, unlimited: Sequence[Network] = ()) -> None:
        self._limits = limits
        self._unlimited = unlimited
        self._by_address: Counter[str] = Counter()
        self.num_open = 0

    def open(self, address: str | None) -> bool:
        """Count a connection; returns whether there was room for it. Close it in either case."""
        self.num_open += 1
        if address is None:
            return self.num_open <= self._limits.max_connections
        self._by_address[address] += 1
        if self.num_open > self._limits.max_connections:
            return False
        if self._by_address[address] <= self._limits.max_connections_per_address:
            return True
        return any(ip_address(address) in network for network in self._unlimited)

    def close(self, address: str | None) -> None:
        """Forget a connection that `open` has counted."""
        self.num_open -= 1
        if address is None:
            return
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
