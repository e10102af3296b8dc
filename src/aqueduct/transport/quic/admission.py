"""What QUIC adds to the admission of clients: Retry, and bounds on what QUIC does not report.

A flood from spoofed addresses does not get to displace half-open connections: past a number of
them, in total or from one address, a new client must validate its address first (Retry).

QUIC holds state for half-open connections that it does not report; each connection bounds it
(AQ-COST-2, AQ-COST-3). `Hidden` bounds the sum of the estimates, per address and over all: the
server closes the connection with the largest estimate, and an honest client needs little.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Generic, TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from aqueduct.protocol.config import Config
from aqueduct.transport.address import Address

T = TypeVar("T")

RETRY_LIFETIME = 30.0
"""Seconds for which a token is valid: many round trips, but too short a time to collect tokens."""

_NONCE = 12
_HEAD = struct.Struct("!dB")


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
