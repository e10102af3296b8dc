"""What the transport must do for the core. Streams are unidirectional; the core numbers them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WriteStream:
    """Append data to our stream ``stream``. The first write opens it, ``fin`` finishes it."""

    stream: int
    data: bytes
    fin: bool
    is_message: bool = False
    """Whether the stream carries messages; such streams leave a reserve of stream credit to the
    others (AQ-STREAM-9)."""


@dataclass(frozen=True, slots=True)
class ResetStream:
    """Reset our stream ``stream``, and drop the data that has not left."""

    stream: int
    code: int


@dataclass(frozen=True, slots=True)
class SendDatagram:
    """Send one unreliable datagram."""

    data: bytes


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close the transport connection at once with an application error code."""

    code: int
    reason: str


Action = WriteStream | ResetStream | SendDatagram | CloseConnection
