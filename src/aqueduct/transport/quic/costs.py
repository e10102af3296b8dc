"""Bounds what a peer can make QUIC hold that QUIC itself neither bounds nor reports."""

from __future__ import annotations

from collections.abc import Callable

from aqueduct.protocol.connection import ConnectionCore
from aqueduct.transport.quic.engine import Engine
from aqueduct.wire.chanid import Side

COUNT_AFTER = 1_024
"""Packets and frames after which the unacknowledged ones are counted, in linear time."""
_RECOUNT_EVERY = 0.1
"""Seconds between two counts while this side waits for acknowledgements."""

_PACKET_OVERHEAD = 26
"""Bytes of a packet besides its frames, at least: flags, connection id, packet number and tag. The
least, because a client chooses the size of its packets, and bytes that do not count are free."""
RESET_OVERHEAD = 2
"""Bytes of a frame that resets a stream besides its type and the number of the stream, at least."""
_COST_OF_UNSEEN = 220
_COST_OF_HANDSHAKE = 14
"""Bytes that QUIC holds for each byte that raises no event, after and before the handshake."""
_COST_OF_UNACKNOWLEDGED = 200
"""Bytes that QUIC holds for a packet or frame until it is acknowledged."""


class Unacknowledged:
    """The packets and frames that QUIC holds until the peer acknowledges them (AQ-COST-2).

    Most of them carry data that this side sends within the congestion window. But a peer can
    provoke packets that ignore the congestion window, acknowledge none of them, and so make QUIC
    hold many times what the peer sent. This side therefore stops sending new data at half of the
    limit, and closes a peer that provokes more than the other half. At a quarter of the limit it
    sends a ping: a peer that gets only acks need not acknowledge them.
    """

    __slots__ = (
        "_core",
        "_has_pinged",
        "_quic",
        "_recount_below",
        "changes",
        "held",
        "is_full",
        "recount_at",
    )

    def __init__(self, core: ConnectionCore, quic: Engine) -> None:
        self._core = core
        self._quic = quic
        self.changes = 0
        """Packets and frames since the last count."""
        self.held = 0
        """Packets and frames that were held at the last count."""
        self.is_full = False
        """Whether this side must not send new data, as of the last count."""
        self.recount_at = 0.0
        """When to count again at the latest, if so."""
        self._recount_below = 0
        """Bytes in flight below which an earlier count is worth its time."""
        self._has_pinged = False

    def add_packets(self, packets: int, now: float) -> bool:
        """Count after ``packets`` were built; return whether there is something new to send."""
        self.changes += packets
        if self.changes < COUNT_AFTER:
            return False
        held = self._count(now)
        if self._core.has_ended:
            return True
        if held < self._limit() // 4:
            self._has_pinged = False
        elif not self._has_pinged:
            self._has_pinged = True
            self._quic.send_ping(0)
            return True
        return False

    def recount(self, now: float) -> None:
        """Count again if this side must not send new data, to see whether it may now."""
        if now >= self.recount_at or self._quic.bytes_in_flight < self._recount_below:
            self._count(now)

    def _count(self, now: float) -> int:
        """Count what QUIC holds, and close the connection of a peer over the limit."""
        self.changes = 0
        held = self.held = self._quic.unacknowledged()
        limit = self._limit()
        self.is_full = held >= limit // 2
        self.recount_at = now + _RECOUNT_EVERY
        in_flight = self._quic.bytes_in_flight
        self._recount_below = in_flight - in_flight // 8
        if held > limit:
            self._core.handle_excess("AQ-COST-2", "too much that was not acknowledged", now)
        return held

    def _limit(self) -> int:
        config = self._core.config
        ready = self._core.is_ready or self._core.side is Side.CLIENT
        return config.max_unacknowledged if ready else config.max_early_unacknowledged


class Unseen:
    """The input of a client before acceptance that raises no event (AQ-COST-3).

    QUIC holds state for frames that raise no event: a stream without data takes five bytes on the
    wire and more than a kilobyte of memory.
    """

    __slots__ = ("_core", "_quic", "_unseen", "on_estimate", "seen")

    def __init__(self, core: ConnectionCore, quic: Engine) -> None:
        self._core = core
        self._quic = quic
        self.seen = 0
        """Bytes received since the last check that raised an event."""
        self._unseen = 0
        """Bytes received that raised none."""
        self.on_estimate: Callable[[int], None] | None = None
        """Called with an estimate of the bytes that QUIC holds and does not report."""

    def add_input(
        self, size: int, segment: int, is_connected: bool, unacknowledged: int, now: float
    ) -> None:
        """Count packets that a server received, and close a client over the limit."""
        core = self._core
        if core.side is not Side.SERVER:
            return
        packets = 1 if size <= segment else -(-size // segment)
        self._unseen += size - packets * _PACKET_OVERHEAD
        if self._quic.has_news:
            return  # the bytes may have raised these events
        self._unseen = max(0, self._unseen - self.seen)
        self.seen = 0
        config = core.config
        is_early = self._quic.is_early
        if is_early:
            allowed = config.max_early_unseen
        else:
            allowed = config.max_unseen if is_connected else config.max_handshake
        if self._unseen > allowed:
            core.handle_excess("AQ-COST-3", "too many bytes without an event before headers", now)
        elif self.on_estimate is not None:
            each = _COST_OF_UNSEEN if is_connected or is_early else _COST_OF_HANDSHAKE
            self.on_estimate(each * self._unseen + _COST_OF_UNACKNOWLEDGED * unacknowledged)

    def reset(self) -> None:
        """Forget what was counted so far."""
        self.seen = self._unseen = 0


def least_head(stream: int) -> int:
    """Return the least bytes of a frame of a stream besides its data: its type and the number."""
    return 2 if stream < 1 << 6 else 3 if stream < 1 << 14 else 5 if stream < 1 << 30 else 9
