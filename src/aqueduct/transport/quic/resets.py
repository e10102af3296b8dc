"""Stateless resets: how a server tells clients of an earlier run that it does not know them.

A client whose server was killed keeps sending with a connection id of that server. The server that
has taken its place cannot read such a packet. It answers with 16 bytes that only the earlier server
could have stated to the client when they shook hands (RFC 9000, 10.3), because both derive them
from the same secret: the private key of the server's certificate.

Whoever sees a connection id must not get its token from another server with the same certificate,
so the host's name and the address of the socket are part of the token, too (RFC 9000, 21.11).
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable
from secrets import randbelow

TOKEN_SIZE = 16
LEAST_SIZE = 21
"""Bytes of the smallest reset: five that are random, and the token."""
_USUAL_SIZE = 43
"""Bytes below which a packet with a short header is unusual, and so might be told from others."""
_VARIATION = 16
_SHORT_HEADER = 0x40
"""The first two bits of a packet with a short header are 01, all others random."""
_RANDOM_BITS = 0x3F
_LABEL = b"aqueduct stateless reset\0"


class StatelessResets:
    """Makes the tokens of one server, and its answers to packets of unknown connections.

    A second's answers are bounded, and each is smaller than the packet that it answers: neither a
    flood nor two servers that answer each other can make them many (RFC 9000, 10.3.3).
    """

    def __init__(
        self, key: bytes, host: str, address: str, per_second: int, clock: Callable[[], float]
    ) -> None:
        """``key`` survives a restart of the server, and ``address`` is what its socket is bound to.

        ``clock`` returns the monotonic time.
        """
        secret = hmac.digest(key, _LABEL, hashlib.sha256)
        place = f"{host}\0{address}\0".encode(errors="surrogateescape")
        self._key = hmac.digest(secret, place, hashlib.sha256)
        self._per_second = per_second
        self._clock = clock
        self._second = -1
        self._answered = 0

    def token(self, connection_id: bytes) -> bytes:
        """Return the token of a connection id."""
        return hmac.digest(self._key, connection_id, hashlib.sha256)[:TOKEN_SIZE]

    def answer(self, connection_id: bytes, size: int) -> bytes | None:
        """Return the answer to a packet of this size with an unknown id, or None for no answer."""
        largest = size - 1
        if largest < LEAST_SIZE or not self._may_answer():
            return None
        if largest >= _USUAL_SIZE:
            largest = min(largest, _USUAL_SIZE + randbelow(_VARIATION))
        head = bytearray(os.urandom(largest - TOKEN_SIZE))
        head[0] = _SHORT_HEADER | (head[0] & _RANDOM_BITS)
        return bytes(head) + self.token(connection_id)

    def _may_answer(self) -> bool:
        second = int(self._clock())
        if second != self._second:
            self._second, self._answered = second, 0
        self._answered += 1
        return self._answered <= self._per_second
