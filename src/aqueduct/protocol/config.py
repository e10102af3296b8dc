"""Every limit and delay of a connection, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field

from aqueduct.wire.primitives import MAX_VARINT

KIB = 1024
MIB = 1024 * KIB


_RESERVE = 16 * KIB
_SMALL_WINDOW = 1 * MIB


@dataclass(frozen=True)
class Limits:
    """What one side is willing to receive; stated to the peer in its connection headers."""

    channel_window: int = 1 * MIB
    """Bytes in flight on one channel: enough for 800 Mbit/s at 10 ms, small enough to forget."""

    connection_window: int = 16 * MIB
    """The same over all channels, beyond the reserve of each. A peer can make this side hold twice
    this and twice `reserve_window` in queues, as much in frames that have arrived in part, and
    once this in queues of finished channels: 112 MiB by default."""

    max_message: int = 16 * MIB
    """A larger thing is a stream of messages, and a channel is how to send one."""

    max_channels: int = 65_536
    """Channels of the peer's creation alive at once; each costs this side about half a KiB."""

    max_attachments: int = 256
    """Channels in one message: a message that carries more wants a channel of channels."""

    max_headers: int = 64 * KIB
    """Bytes in one block of header data; headers describe a message, they are not the message."""

    channel_reserve: int = 0
    """Bytes on each channel that do not count against `connection_window`, so that unread channels
    cannot block a message on another channel. 0 selects 16 KiB, enough for one message of moderate
    size; or no reserve if `connection_window` is 1 MiB or less, where 16 KiB would be a large part
    of the window."""

    reserve_window: int = 0
    """Bytes that the reserves of all channels may hold together; beyond that they count against
    `connection_window`. 0 selects half of that window: 512 channels with a full reserve by default.
    A reserve for all 65,536 channels would take 1 GiB per connection."""

    def __post_init__(self) -> None:
        """Refuse what cannot be stated to a peer, or what would let it send nothing."""
        if self.channel_reserve == 0 and type(self.connection_window) is int:
            reserve = _RESERVE if self.connection_window > _SMALL_WINDOW else 0
            object.__setattr__(self, "channel_reserve", reserve)
        if self.reserve_window == 0 and self.channel_reserve != 0:
            object.__setattr__(self, "reserve_window", self.connection_window // 2)
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
    "channel_reserve": 0,
    "reserve_window": 0,
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

COST_OF_STREAM = 1_536
"""Bytes of memory per open incoming stream: 1,140 in QUIC, the rest here."""

COST_OF_CHANNEL = 1_024
"""Bytes of memory per half of a channel."""


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

    starvation_timeout: float = 0.25
    """How long smaller messages pass one that does not fit the connection window, and how long they
    then wait for it: a few round trips, so that it gets its turn where the window turns over."""

    max_datagram: int = 1_150
    """What fits one QUIC packet of 1,200 bytes after the headers of every layer below."""

    max_early_bytes: int = 24 * MIB
    """Bytes held until the headers were exchanged, including 256 per sequence: 65,536 streams at a
    client. A server holds fewer streams (``max_early_streams``)."""

    early_allowance: int = 64 * KIB
    """Of that, what a server always holds for a client it has not accepted."""

    max_early_total: int = 128 * MIB
    """What a server holds past that allowance, over all the clients it has not accepted."""

    max_early_streams: int = 4_096
    """Streams that a server holds until the headers were exchanged: four times what a client may
    open by then (AQ-COST-1). QUIC alone takes 1.2 KB for each, whatever it carries."""

    early_share: int = 4
    """One address gets at most ``max_early_total`` divided by this, so that it cannot use up the
    budget of all other addresses."""

    max_address_bytes: int = 0
    """Bytes of streams and channels that the connections of one address may hold, beyond
    ``address_allowance`` for each (AQ-COST-4). 0 selects twice what the limits allow one
    connection: a connection at its limits leaves as much to the others of its address."""

    address_allowance: int = 256 * KIB
    """Bytes that each connection may always hold in addition: about 170 streams."""

    max_unacknowledged: int = 131_072
    """Packets, and frames in them, that QUIC holds until the peer acknowledges them (AQ-COST-2),
    200 bytes each. A peer that acknowledges stays far below. This side stops sending new data at
    half of it."""

    max_early_unacknowledged: int = 4_096
    """The same before acceptance, when a server has little to send."""

    max_unseen: int = 64 * KIB
    """Bytes that a server reads from a client before acceptance without any event from QUIC, packet
    overhead excluded (AQ-COST-3): five such bytes make QUIC hold a stream. The bound leaves room
    for the retransmissions of a client that waits for a busy server."""

    max_handshake: int = 64 * KIB
    """The same until the handshake is done: it takes about three packets, each of which may be lost
    ten times. QUIC holds 14 bytes for each byte that arrives out of order."""

    max_early_unseen: int = 256 * KIB
    """The same for a client with early data, which it may have to retransmit."""

    max_address_hidden: int = 64 * MIB
    """Bytes that QUIC holds, by estimate, for all clients of one address that were not accepted, in
    state that it does not report (AQ-COST-3): 220 for each unseen byte. Over all addresses,
    ``early_share`` times that. The probes of an honest client's path MTU count for 0.6 MB."""

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
        """Derive ``max_streams`` and ``max_address_bytes`` from the limits where they are 0."""
        if self.max_streams == 0:
            streams = max(_STREAMS, 2 * self.limits.max_channels)
            object.__setattr__(self, "max_streams", streams)
        if self.max_address_bytes == 0:
            one = COST_OF_STREAM * self.max_streams + COST_OF_CHANNEL * self.limits.max_channels
            object.__setattr__(self, "max_address_bytes", 2 * one)
