"""Admission of new connections, with budgets per address so that no address locks out the others.

Theory of operation. A connection is half open until it is accepted. Half-open connections are
bounded: when there are too many, the server drops the oldest one of the address with the most in
favour of a new one, so that a flood from one address displaces its own connections.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import Generic, Protocol, TypeVar

from aqueduct.protocol.budget import AddressAccount, Budget
from aqueduct.protocol.config import Config
from aqueduct.transport.settings import QuicSettings

T = TypeVar("T")

_IPV6_NETWORK = 64
"""Prefix length of an IPv6 network, which one party usually controls as a whole."""
_RESERVED = 10
"""One in ten connections is reserved for addresses that have fewer, so that one address cannot use
up `max_connections`."""
_MIN_HALF_OPEN_AGE = 1.0
"""Seconds for which a half-open connection is not displaced by its own address: handshakes take
less."""


def neighbourhood(host: str) -> str:
    """Return the unit of accounting: an IPv4 address, or the /64 prefix of an IPv6 address."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_NETWORK), strict=False))


class HalfOpen(Generic[T]):
    """The half-open connections by address, each with its start time."""

    def __init__(self) -> None:
        self._by_address: dict[str, OrderedDict[T, float]] = {}
        self._address_of: dict[T, str] = {}

    def __len__(self) -> int:
        return len(self._address_of)

    def add(self, connection: T, address: str, now: float) -> None:
        """Add a new connection."""
        self._by_address.setdefault(address, OrderedDict())[connection] = now
        self._address_of[connection] = address

    def remove(self, connection: T) -> None:
        """Remove a connection that was accepted or has ended."""
        address = self._address_of.pop(connection, None)
        if address is not None:
            connections = self._by_address[address]
            del connections[connection]
            if not connections:
                del self._by_address[address]

    def count(self, address: str) -> int:
        """Return the number of half-open connections of an address."""
        return len(self._by_address.get(address, ()))

    def connection_to_drop(self, newcomer: str, now: float, min_age: float) -> T | None:
        """Return the connection to drop in favour of a new one, or None.

        It is the oldest one of the address with the most. If that address has no more than the
        newcomer's would have, the connection must be older than ``min_age``: otherwise honest
        clients would displace each other, while a client that gets no answer retries by itself.
        """
        if not self._by_address:
            return None
        most = max(self._by_address.values(), key=_load)
        oldest, since = next(iter(most.items()))
        has_more = len(most) > self.count(newcomer) + 1
        return oldest if has_more or now - since >= min_age else None


def _load(connections: OrderedDict[T, float]) -> tuple[int, float]:
    """Return the sort key of an address: its number of connections, and the age of the oldest."""
    return len(connections), -next(iter(connections.values()))


class AddressAccounts:
    """The accounts of all addresses with connections."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._accounts: dict[str, tuple[AddressAccount, int]] = {}

    def count(self, address: str) -> int:
        """Return the number of connections of an address."""
        return self._accounts[address][1] if address in self._accounts else 0

    def enter(self, address: str) -> AddressAccount:
        """Return the account for a new connection of an address."""
        account, connections = self._accounts.get(address) or (self._new(), 0)
        self._accounts[address] = account, connections + 1
        return account

    def leave(self, address: str) -> None:
        """Drop the account of an address with its last connection."""
        account, connections = self._accounts.pop(address)
        if connections > 1:
            self._accounts[address] = account, connections - 1

    def _new(self) -> AddressAccount:
        config = self._config
        early = config.max_early_total // config.early_share
        return AddressAccount(
            Budget(early, config.early_allowance),
            Budget(config.max_address_bytes, config.address_allowance),
        )


class Droppable(Protocol):
    """A connection that can be dropped before it is accepted."""

    def abandon(self, reason: str) -> None:
        """End the core without notifying the peer."""

    def close(self) -> None:
        """Free all resources; this calls `Admission.leave`."""


D = TypeVar("D", bound=Droppable)


class Admission(Generic[D]):
    """The connections of a server, over all of its sockets: how many, and from where."""

    def __init__(self, options: QuicSettings, config: Config) -> None:
        self._options = options
        self._accounts = AddressAccounts(config)
        self.half_open: HalfOpen[D] = HalfOpen()
        self._addresses: dict[D, str] = {}
        self.unclaimed = 0
        """Ended connections that the server still holds for the application; they count as open."""

    def make_room(self, address: str, now: float) -> bool:
        """Make room for one more connection, by dropping a half-open one if necessary."""
        options = self._options
        held = len(self._addresses) + self.unclaimed
        limit = options.max_connections
        reserved = limit // _RESERVED
        if self._accounts.count(address) >= reserved:
            limit -= reserved
        if held < limit and len(self.half_open) < options.max_half_open:
            return True
        old = self.half_open.connection_to_drop(address, now, _MIN_HALF_OPEN_AGE)
        if old is None:
            return False
        old.abandon("dropped before acceptance: too many half-open connections")
        old.close()
        return True

    def account(self, address: str) -> AddressAccount:
        """Return the account for a new connection of an address, which has to `enter` then."""
        return self._accounts.enter(address)

    def enter(self, connection: D, address: str, now: float) -> None:
        """Add a new connection, which is half open."""
        self._addresses[connection] = address
        self.half_open.add(connection, address, now)

    def accepted(self, connection: D) -> None:
        """Count a connection no longer as half open."""
        self.half_open.remove(connection)

    def leave(self, connection: D) -> str | None:
        """Remove a connection that has ended; return its address, unless it was removed before."""
        self.half_open.remove(connection)
        address = self._addresses.pop(connection, None)
        if address is not None:
            self._accounts.leave(address)
        return address

    def address_of(self, connection: D) -> str:
        """Return the address of a connection."""
        return self._addresses[connection]
