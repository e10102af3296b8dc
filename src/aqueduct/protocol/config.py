"""Every limit and delay of a connection, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field

from aqueduct.wire.primitives import MAX_VARINT

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True)
class Limits:
    """What one side is willing to receive; stated to the peer in its connection headers."""

    channel_window: int = 1 * MIB
    """Bytes in flight on one channel: enough for 800 Mbit/s at 10 ms, small enough to forget."""

    connection_window: int = 16 * MIB
    """The same over all channels. A peer can make this side hold twice that in queues, once more in
    queues of finished channels, and as much in frames that have arrived in part."""

    max_message: int = 16 * MIB
    """A larger thing is a stream of messages, and a channel is how to send one."""

    max_channels: int = 65_536
    """Channels of the peer's creation alive at once; each costs this side about half a KiB."""

    max_attachments: int = 256
    """Channels in one message: a message that carries more wants a channel of channels."""

    max_headers: int = 64 * KIB
    """Bytes in one block of header data; headers describe a message, they are not the message."""

    def __post_init__(self) -> None:
        """Refuse what cannot be stated to a peer, or what would let it send nothing."""
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= MAX_VARINT:
                raise ValueError(
                    f"Limits({name}={value!r}): give a whole number from {least} to 2**64 - 1, "
                    "or leave it out"
                )


_LEAST = {
    "channel_window": 1,
    "connection_window": 1,
    "max_message": 1,
    "max_channels": 0,
    "max_attachments": 0,
    "max_headers": 0,
}
"""The least that makes sense: a side may want no channels, but without windows nothing moves."""


INITIAL_LIMITS = Limits(
    channel_window=64 * KIB,
    connection_window=1 * MIB,
    max_message=64 * KIB,
    max_channels=128,
    max_attachments=16,
    max_headers=8 * KIB,
)
"""What a side may send before the peer stated its limits, or if it never does (AQ-LIMIT-2)."""


_STREAMS = 131_072


@dataclass(frozen=True)
class Config:
    """How one side of a connection behaves; times are seconds."""

    limits: Limits = field(default_factory=Limits)

    initial_limits: Limits = INITIAL_LIMITS
    """What both sides go by before they know better; other values than these are for tests."""

    ack_delay: float = 0.010
    """How long a receiver may collect acks: short beside a human, long beside a loop turn."""

    ack_every: int = 64
    """Messages after which acks go out at once, so that a fast sender never waits for a timer."""

    announce_delay: float = 0.025
    """How long a sender may collect datagrams before it says how many it sent."""

    receipt_deadline_min: float = 0.050
    """The least time a datagram gets to arrive after it was announced."""

    receipt_deadline_max: float = 1.0
    """The most: past a second nobody wants the datagram any more."""

    deadline_grain: float = 0.005
    """Announcements this close share one deadline, which bounds how many are remembered."""

    forget_interval: float = 1.0
    """FORGET_CHANNEL is not repeated for one channel within this time."""

    patience: float = 0.25
    """How long smaller messages pass one that does not fit the connection window, and how long they
    then wait for it: a few round trips, so that it gets its turn where the window turns over."""

    max_datagram: int = 1_150
    """What fits one QUIC packet of 1,200 bytes after the headers of every layer below."""

    max_early_bytes: int = 24 * MIB
    """Bytes held until the headers were exchanged, 256 a sequence included: 65,536 streams."""

    early_allowance: int = 64 * KIB
    """Of that, what a server always holds for a client it has not accepted."""

    max_early_total: int = 128 * MIB
    """What a server holds past that allowance, over all the clients it has not accepted."""

    max_streams: int = 0
    """Incoming streams open at once: one or two a channel, and one a message in unordered mode.
    0 for 131,072, or two a channel if more channels are allowed."""

    max_ranges: int = 65_536
    """Gaps tolerated in the message numbers of one channel, of either direction."""

    max_unpacked: int = 8_192
    """Messages and headers kept as objects, over all queues; past it they are kept as bytes."""

    max_remembered: int = 65_536
    """Ranges of ended channels kept; past it only the last second's are (AQ-FORGET-4)."""

    max_forgets: int = 65_536
    """FORGET_CHANNEL frames a peer can provoke within one forget_interval."""

    def __post_init__(self) -> None:
        """Let the streams follow the channels."""
        if self.max_streams == 0:
            streams = max(_STREAMS, 2 * self.limits.max_channels)
            object.__setattr__(self, "max_streams", streams)
