"""What the transport must do for the core. Streams are unidirectional; the core numbers them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_UNLIMITED: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class WriteStream:
    """Append data to our stream ``stream``. The first write opens it, ``fin`` finishes it."""

    stream: int
    data: bytes
    fin: bool
    is_message: bool = False
    """Whether the stream carries messages, which a cancel may take back."""


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


class Room:
    """What a transport takes in one poll; the core counts it down. Without limits by default."""

    __slots__ = ("bytes", "message_streams", "quantum", "streams", "urgent", "writes")

    def __init__(self) -> None:
        self.bytes = _UNLIMITED
        self.urgent = 0
        """Bytes beyond that, for datagrams and for frames that carry no message."""
        self.streams = _UNLIMITED
        """Streams that may be opened (AQ-STREAM-9)."""
        self.message_streams = _UNLIMITED
        """Those of them for messages; the others are a reserve for frames that end channels."""
        self.writes = _UNLIMITED
        """Writes and datagrams."""
        self.quantum = 0
        """Bytes of a sender's turn that suit the transport, if that is more than usual."""


Action = WriteStream | ResetStream | SendDatagram | CloseConnection
