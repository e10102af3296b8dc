"""Every limit and delay of a connection, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aqueduct.settings import KIB, MIB, check_type, declare, seconds, whole
from aqueduct.wire.primitives import MAX_VARINT

_RESERVE = 16 * KIB
_SMALL_WINDOW = 1 * MIB


@dataclass(frozen=True)
class Limits:
    """What one side is willing to receive; stated to the peer in its connection headers."""

    channel_window: int = field(
        default=8 * MIB,
        metadata=whole(
            "bytes",
            "Bytes in flight on one channel: enough for 320 Mbit/s at 200 ms. Senders begin with "
            "1 MiB, and use more where the round-trip time needs it and the receiver keeps up.",
            least=1,
            most=MAX_VARINT,
        ),
    )
    connection_window: int = field(
        default=16 * MIB,
        metadata=whole(
            "bytes",
            "Bytes in flight over all channels, beyond the reserve of each. A peer can make this "
            "side hold twice this and twice `reserve_window` in queues, as much in partial frames, "
            "and once this in queues of finished channels: 112 MiB by default.",
            least=1,
            most=MAX_VARINT,
        ),
    )
    max_message: int = field(
        default=16 * MIB,
        metadata=whole(
            "bytes",
            "The largest message. Send larger content as a stream of messages on a channel.",
            least=1,
            most=MAX_VARINT,
        ),
    )
    max_channels: int = field(
        default=65_536,
        metadata=whole(
            "channels",
            "Live channels that the peer created; each takes about 512 bytes.",
            most=MAX_VARINT,
        ),
    )
    max_attachments: int = field(
        default=256,
        metadata=whole(
            "channels",
            "Channels attached to one message; use a channel of channels for more.",
            most=MAX_VARINT,
        ),
    )
    max_headers: int = field(
        default=64 * KIB,
        metadata=whole("bytes", "One block of header data.", most=MAX_VARINT),
    )
    channel_reserve: int = field(
        default=0,
        metadata=whole(
            "bytes",
            "Bytes on each channel that do not count against `connection_window`, so that unread "
            "channels do not block other channels.",
            most=MAX_VARINT,
            zero="16 KiB, or no reserve if `connection_window` is 1 MiB or less",
        ),
    )
    reserve_window: int = field(
        default=0,
        metadata=whole(
            "bytes",
            "Bytes that the reserves of all channels hold together; beyond that they count against "
            "`connection_window`. The default is enough for 512 full reserves; a reserve for all "
            "65,536 channels would take 1 GiB.",
            most=MAX_VARINT,
            zero="half of `connection_window`",
        ),
    )


def _derive_reserves(values: dict[str, Any]) -> None:
    window: int = values["connection_window"]
    if values["channel_reserve"] == 0 and window > _SMALL_WINDOW:
        values["channel_reserve"] = _RESERVE
    if values["reserve_window"] == 0 and values["channel_reserve"] != 0:
        values["reserve_window"] = window // 2


declare(Limits, _derive_reserves)


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


SAFE_DATAGRAM = 1_150
"""Bytes of a datagram that fits a QUIC packet of 1,200 bytes, until the transport tells more."""

ROUTE_DELAY = 0.010
"""Seconds within which a ROUTE_TO is answered (AQ-ROUTE-2)."""

_ACK_DELAY = seconds(
    "How long a receiver collects acknowledgements before it sends them. Longer saves packets; the "
    "sender's receipts and its credit come later.",
    most=1,
)
_RECEIPT_DEADLINE_MIN = seconds(
    "The shortest time for a datagram to arrive after its announcement, which may overtake it.",
    most=60,
)
_RECEIPT_DEADLINE_MAX = seconds(
    "The longest such time. In between, it is twice the round-trip time. Later datagrams count as "
    "lost.",
    least="receipt_deadline_min",
    most=60,
)
_MAX_DATAGRAM = whole(
    "bytes",
    "The largest datagram, if the packets of the path take it. Longer unreliable messages go on "
    "streams; several short ones of a channel share a datagram, and its fate.",
    least=1,
    most=65_527,
)


@dataclass(frozen=True)
class Delivery:
    """How this side sends and acknowledges messages. The peer may have other values."""

    ack_delay: float = field(default=0.010, metadata=_ACK_DELAY)
    receipt_deadline_min: float = field(default=0.050, metadata=_RECEIPT_DEADLINE_MIN)
    receipt_deadline_max: float = field(default=1.0, metadata=_RECEIPT_DEADLINE_MAX)
    max_datagram: int = field(default=65_527, metadata=_MAX_DATAGRAM)


declare(Delivery)

_DELIVERY = Delivery()


@dataclass(frozen=True)
class Config:
    """How one side of a connection behaves. Applications set only the limits and the delivery."""

    limits: Limits = field(default_factory=Limits)

    initial_limits: Limits = INITIAL_LIMITS
    """What both sides assume until the limits are stated; only tests set others."""

    ack_delay: float = field(default=_DELIVERY.ack_delay, metadata=_ACK_DELAY)
    ack_every: int = field(
        default=64,
        metadata=whole(
            "messages",
            "Unacknowledged messages after which a receiver acknowledges at once, so that a fast "
            "sender does not wait for a timer.",
            least=1,
        ),
    )
    announce_delay: float = field(
        default=0.025,
        metadata=seconds(
            "How long a sender of datagrams waits before it announces how many it sent."
        ),
    )
    receipt_deadline_min: float = field(
        default=_DELIVERY.receipt_deadline_min, metadata=_RECEIPT_DEADLINE_MIN
    )
    receipt_deadline_max: float = field(
        default=_DELIVERY.receipt_deadline_max, metadata=_RECEIPT_DEADLINE_MAX
    )
    deadline_grain: float = field(
        default=0.005,
        metadata=seconds("Announcements this close share a deadline, which bounds their number."),
    )
    forget_interval: float = field(
        default=1.0,
        metadata=seconds("FORGET_CHANNEL is not repeated for one channel within this time."),
    )
    forget_patience: float = field(
        default=5.0,
        metadata=seconds(
            "When frames for an ended channel keep coming, FORGET_CHANNEL answers them after this "
            "time instead of waiting for `forget_interval` without any (AQ-ROUTE-5)."
        ),
    )
    forgotten_timeout: float = field(
        default=10.0,
        metadata=seconds(
            "How long a sender whose receiver was forgotten waits for the last acknowledgements "
            "(AQ-FORGET-5): they may have to be retransmitted several times."
        ),
    )
    cancelled_timeout: float = field(
        default=1.0,
        metadata=seconds(
            "How long a receiver waits after a cancel for the announcement of datagrams that "
            "arrived (AQ-CLOSE-3): a peer may never announce what it cancelled."
        ),
    )
    closing_timeout: float = field(
        default=10.0,
        metadata=seconds(
            "The same after the application has closed the receiver: the peer must still announce, "
            "but the announcement may have to be retransmitted several times."
        ),
    )
    starvation_timeout: float = field(
        default=0.25,
        metadata=seconds(
            "How long smaller messages overtake a message that does not fit the connection window, "
            "and how long they then wait for it: a few round trips."
        ),
    )
    quantum: int = field(
        default=16 * KIB,
        metadata=whole(
            "bytes",
            "What one sender sends before it is another's turn, where several wait: small enough "
            "that sixteen take a millisecond at 250 MB/s.",
            least=1,
        ),
    )
    max_datagram: int = field(default=_DELIVERY.max_datagram, metadata=_MAX_DATAGRAM)
    max_early_bytes: int = field(
        default=24 * MIB,
        metadata=whole(
            "bytes",
            "Data held until the headers were exchanged, plus 256 bytes per sequence: 65,536 "
            "streams at a client. A server holds fewer streams (`max_early_streams`).",
        ),
    )
    early_allowance: int = field(
        default=64 * KIB,
        metadata=whole("bytes", "What a server always holds for a client it has not accepted."),
    )
    max_early_total: int = field(
        default=128 * MIB,
        metadata=whole(
            "bytes",
            "What a server holds beyond those allowances, for all clients it has not accepted.",
        ),
    )
    max_early_streams: int = field(
        default=4_096,
        metadata=whole(
            "streams",
            "Streams that a server holds until the headers were exchanged: four times what a "
            "client may open by then (AQ-COST-1). QUIC takes 1.2 KB for each.",
        ),
    )
    early_share: int = field(
        default=4,
        metadata=whole(
            "shares",
            "One address gets `max_early_total` divided by this at most, so that it cannot use up "
            "the budget of other addresses.",
            least=1,
        ),
    )
    max_address_bytes: int = field(
        default=0,
        metadata=whole(
            "bytes",
            "Streams and channels of all connections of one address, beyond `address_allowance` "
            "for each (AQ-COST-4).",
            zero="twice what the limits allow one connection",
        ),
    )
    address_allowance: int = field(
        default=256 * KIB,
        metadata=whole(
            "bytes", "What each connection may always hold in addition: about 170 streams."
        ),
    )
    max_unacknowledged: int = field(
        default=131_072,
        metadata=whole(
            "packets and frames",
            "What QUIC holds until the peer acknowledges it (AQ-COST-2), 200 bytes each. A peer "
            "that acknowledges stays far below; this side stops sending new data at half of it.",
        ),
    )
    max_early_unacknowledged: int = field(
        default=4_096,
        metadata=whole(
            "packets and frames", "The same before acceptance, when a server sends little."
        ),
    )
    max_unseen: int = field(
        default=64 * KIB,
        metadata=whole(
            "bytes",
            "What a server reads from a client before acceptance without any event from QUIC, "
            "packet overhead excluded (AQ-COST-3): five such bytes make QUIC hold a stream. Leaves "
            "room for the retransmissions of a client that waits for a busy server.",
        ),
    )
    max_handshake: int = field(
        default=64 * KIB,
        metadata=whole(
            "bytes",
            "The same until the handshake is done: about three packets, each of which may be lost "
            "ten times. QUIC holds 14 bytes for each byte that arrives out of order.",
        ),
    )
    max_early_unseen: int = field(
        default=256 * KIB,
        metadata=whole(
            "bytes", "The same for a client with early data, which it may have to retransmit."
        ),
    )
    max_address_hidden: int = field(
        default=64 * MIB,
        metadata=whole(
            "bytes",
            "What QUIC holds, by estimate, for all clients of one address that were not accepted, "
            "in state that it does not report (AQ-COST-3): 220 for each unseen byte. Over all "
            "addresses, `early_share` times that. An honest client's path MTU probes count for "
            "0.6 MB.",
        ),
    )
    max_streams: int = field(
        default=0,
        metadata=whole(
            "streams",
            "Incoming streams open at once: one or two per channel, and one per message in "
            "unordered mode.",
            zero="131,072, or two per channel if more channels are allowed",
        ),
    )
    max_ranges: int = field(
        default=65_536,
        metadata=whole("ranges", "Gaps in the message numbers of one channel, for each direction."),
    )
    max_unpacked: int = field(
        default=8_192,
        metadata=whole(
            "messages",
            "Messages and headers kept as objects over all queues; further ones stay bytes.",
        ),
    )
    max_remembered: int = field(
        default=65_536,
        metadata=whole(
            "ranges",
            "Ranges of ended channels; above that, only those of the last second (AQ-FORGET-4).",
        ),
    )
    max_forgets: int = field(
        default=65_536,
        metadata=whole(
            "frames",
            "FORGET_CHANNEL frames that a peer can cause within a forget interval, and those that "
            "wait for their channel to be quiet.",
        ),
    )


def _derive_totals(values: dict[str, Any]) -> None:
    limits = values["limits"]
    channels: int = limits.max_channels if isinstance(limits, Limits) else Limits().max_channels
    if values["max_streams"] == 0:
        values["max_streams"] = max(_STREAMS, 2 * channels)
    if values["max_address_bytes"] == 0:
        one = COST_OF_STREAM * values["max_streams"] + COST_OF_CHANNEL * channels
        values["max_address_bytes"] = 2 * one


declare(Config, _derive_totals)


def config_of(limits: Limits | None, delivery: Delivery | None) -> Config:
    """Return the configuration with what an application sets; raise `TypeError` for other types."""
    check_type("limits", limits, Limits, "aqueduct.Limits(…)")
    check_type("delivery", delivery, Delivery, "aqueduct.Delivery(…)")
    chosen = delivery or _DELIVERY
    return Config(
        limits=limits or Limits(),
        ack_delay=chosen.ack_delay,
        receipt_deadline_min=chosen.receipt_deadline_min,
        receipt_deadline_max=chosen.receipt_deadline_max,
        max_datagram=chosen.max_datagram,
    )
