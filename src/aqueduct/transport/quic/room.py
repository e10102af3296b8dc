"""How much of what waits QUIC takes now: bytes, and streams that it may open."""

from __future__ import annotations

from typing import Final

from aqueduct.protocol.actions import Room
from aqueduct.transport.quic.engine import Engine
from aqueduct.transport.stream_credit import StreamCredit

PIECES: Final = 256
"""Most writes handed to QUIC before it is polled for packets: when it probes after a loss, it goes
through all it has not sent, once for each packet."""

IN_FLIGHT: Final = 1024 * 1024
"""Bytes in flight that the peer need not have acknowledged, at the least."""
IN_FLIGHT_RATE: Final = 1024 * 1024 * 1024
"""Bytes per second that may be in flight for a round trip: more than one process can send."""
URGENT: Final = 64 * 1024
"""Bytes in flight beyond that for datagrams and frames that carry no message."""
MAX_QUANTUM: Final = 32 * 1024
"""Most bytes of a sender's turn; shorter turns make packets of many sizes, and cost throughput."""
_QUIET: Final = 32 * 1024
"""Bytes in flight with which this side does not delay its own packets."""
_SAMPLES: Final = 32
"""Round trips without more than that, after which the smoothed time has forgotten the delay."""


class RoomMeter:
    """Measures what one connection takes.

    Where packets are not lost, on loopback or in a good local network, the congestion window grows
    without limit, and everything in it waits at the receiver, where nothing can overtake it. So
    the bytes in flight are also limited by the round-trip time, as it is without that queue.
    """

    __slots__ = ("_latest", "_quic", "_recent", "_round_trip", "_samples", "credit", "least")

    def __init__(self, quic: Engine) -> None:
        self._quic = quic
        self.credit = StreamCredit()
        self._round_trip = 0.0
        """The round-trip time while few bytes are in flight, or the shortest since."""
        self._latest = 0.0
        """The last one that was measured."""
        self.least = 0.0
        """The shortest one of the last `_SAMPLES` with few bytes in flight, or a shorter one since:
        that of the path without queues."""
        self._recent = 0.0
        """The shortest one since `least` was set, with few bytes in flight; 0 before the first."""
        self._samples = 0
        """How many were measured since more bytes were in flight."""

    def add_round_trip(self, smoothed: float, latest: float) -> None:
        """Learn the smoothed round-trip time, and the last one that was measured.

        When all is acknowledged after bulk, the smoothed time is still that of the bulk. If it
        counted, more would be in flight the next time, which would delay each packet even more.
        """
        is_new = latest != self._latest
        if is_new:
            self._latest = latest
            self._samples += 1
        if self._quic.bytes_in_flight >= _QUIET:
            self._samples = 0
            self._recent = 0.0
        elif latest < self._recent or not self._recent:
            self._recent = latest
        if smoothed < self._round_trip or not self._round_trip or self._samples >= _SAMPLES:
            self._round_trip = smoothed
        if latest < self.least or not self.least:
            self.least = latest
        elif is_new and self._samples and self._samples % _SAMPLES == 0:
            self.least, self._recent = self._recent, 0.0

    def add_sent(self, size: int) -> None:
        """Learn how many bytes QUIC was handed at once."""
        if size >= _QUIET:
            self._samples = 0

    def measure(self, room: Room, *, is_early: bool) -> None:
        """Set what there is room for."""
        native = self._quic.core
        assert native is not None
        in_flight: int = native.bytes_in_flight
        window: int = native.congestion_window - in_flight - self._quic.spare_room()
        limit = max(IN_FLIGHT, int(self._round_trip * IN_FLIGHT_RATE))
        left = limit - in_flight
        if left < window:
            room.bytes = left if left > 0 else 0
            beyond = window - room.bytes
            urgent = left + URGENT - room.bytes
            room.urgent = max(0, beyond if beyond < urgent else urgent)
        else:
            room.bytes = window
        turn = min(limit, native.congestion_window) // 16
        room.quantum = turn if turn < MAX_QUANTUM else MAX_QUANTUM
        room.writes = PIECES
        if self.credit.left_for_messages < PIECES:
            self.credit.set_limit(native.stream_limits[1])
        self.credit.measure(room, is_early=is_early)
