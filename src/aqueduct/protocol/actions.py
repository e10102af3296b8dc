"""What the core asks of the transport; streams are unidirectional and named by our own counter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WriteStream:
    """Append data to our stream ``stream``; the first write opens it, ``fin`` finishes it."""

    stream: int
    data: bytes
    fin: bool
    is_message: bool = False
    """Whether the stream carries messages; such streams leave a reserve of stream credit to the
    others (AQ-STREAM-9)."""


@dataclass(frozen=True, slots=True)
class ResetStream:
    """Reset our stream ``stream``; what has not left yet need not."""

    stream: int
    code: int


@dataclass(frozen=True, slots=True)
class SendDatagram:
    """Send one unreliable datagram."""

    data: bytes


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close the QUIC connection at once with an application error code."""

    code: int
    reason: str


Action = WriteStream | ResetStream | SendDatagram | CloseConnection
