"""Retry tokens: how a server that is flooded learns that a client has the address it says."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from aqueduct.transport.address import Address

LIFETIME = 30.0
"""Seconds a token is good for: many round trips, and too short to collect them for an attack."""

_NONCE = 12
_HEAD = struct.Struct("!dB")


class RetryTokens:
    """Makes tokens and knows them again; they are of use to the client's address alone."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._cipher = AESGCM(AESGCM.generate_key(128))
        self._clock = clock

    def make(self, address: Address, original: bytes, retried: bytes) -> bytes:
        """A token for a client that sent to the id ``original`` and is to send to ``retried``."""
        nonce = os.urandom(_NONCE)
        inside = _HEAD.pack(self._clock(), len(original)) + original + retried
        return nonce + self._cipher.encrypt(nonce, inside, _name(address))

    def open(self, address: Address, token: bytes) -> tuple[bytes, bytes]:
        """The two ids in a token; `ValueError` if it is old, another's, or no token of ours."""
        try:
            inside = self._cipher.decrypt(token[:_NONCE], token[_NONCE:], _name(address))
        except (InvalidTag, ValueError):
            raise ValueError("not a token of this server for this address") from None
        made, length = _HEAD.unpack_from(inside)
        if self._clock() - made > LIFETIME:
            raise ValueError("the token is too old")
        ids = inside[_HEAD.size :]
        return ids[:length], ids[length:]


def _name(address: Address) -> bytes:
    return f"{address[0]} {address[1]}".encode()
