"""Admission of new connections, with budgets per address so that no address locks out the others.

Theory of operation. A connection is half open until it is accepted. Half-open connections are
bounded: when there are too many, the server drops the oldest one of the address with the most in
favour of a new one, so that a flood from one address displaces its own connections. A flood from
spoofed addresses does not get that far: past a number of half-open connections, in total or from
one address, a new client must validate its address first (Retry).

QUIC holds state for half-open connections that it does not report; each connection bounds it
(AQ-COST-2, AQ-COST-3). `Hidden` bounds the sum of the estimates, per address and over all: the
server closes the connection with the largest estimate, and an honest client needs little.
"""

from __future__ import annotations

import ipaddress
import os
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from aqueduct.protocol.budget import AddressAccount, Budget
from aqueduct.protocol.config import Config
from aqueduct.transport.address import Address

T = TypeVar("T")

_IPV6_NETWORK = 64
"""Prefix length of an IPv6 network, which one party usually controls as a whole."""

RETRY_LIFETIME = 30.0
"""Seconds for which a token is valid: many round trips, but too short a time to collect tokens."""

_NONCE = 12
_HEAD = struct.Struct("!dB")


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


class Hidden(Generic[T]):
    """Estimates of what QUIC holds for each half-open connection, in bytes (AQ-COST-3)."""

    def __init__(self, config: Config) -> None:
        self._most_of_one = config.max_address_hidden
        self._most = config.max_address_hidden * config.early_share
        self._by_address: dict[str, dict[T, int]] = {}
        self._totals: dict[str, int] = {}
        self.total = 0

    def hold(self, connection: T, address: str, size: int) -> T | None:
        """Set the estimate of a connection; return the connection to close, or None."""
        sizes = self._by_address.setdefault(address, {})
        more = size - sizes.get(connection, 0)
        sizes[connection] = size
        total = self._totals[address] = self._totals.get(address, 0) + more
        self.total += more
        if more > 0 and (total > self._most_of_one or self.total > self._most):
            if total <= self._most_of_one:
                sizes = self._by_address[max(self._totals, key=self._totals.__getitem__)]
            return max(sizes, key=sizes.__getitem__)
        return None

    def remove(self, connection: T, address: str) -> None:
        """Remove a connection that was accepted or has ended."""
        sizes = self._by_address.get(address)
        if sizes is None or connection not in sizes:
            return
        size = sizes.pop(connection)
        self.total -= size
        self._totals[address] -= size
        if not sizes:
            del self._by_address[address], self._totals[address]


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


class RetryTokens:
    """Makes and checks Retry tokens, each valid for one client address."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._cipher = AESGCM(AESGCM.generate_key(128))
        self._clock = clock

    def make(self, address: Address, original: bytes, retried: bytes) -> bytes:
        """Return a token for a client that sent to ``original`` and is to send to ``retried``."""
        nonce = os.urandom(_NONCE)
        inside = _HEAD.pack(self._clock(), len(original)) + original + retried
        return nonce + self._cipher.encrypt(nonce, inside, _token_scope(address))

    def open(self, address: Address, token: bytes) -> tuple[bytes, bytes]:
        """Return the two ids in a token; raise `ValueError` if it is invalid or too old."""
        try:
            inside = self._cipher.decrypt(token[:_NONCE], token[_NONCE:], _token_scope(address))
        except (InvalidTag, ValueError):
            raise ValueError("not a token of this server for this address") from None
        made, length = _HEAD.unpack_from(inside)
        if self._clock() - made > RETRY_LIFETIME:
            raise ValueError("the token is too old")
        ids = inside[_HEAD.size :]
        return ids[:length], ids[length:]


def _token_scope(address: Address) -> bytes:
    return f"{address[0]} {address[1]}".encode()
