"""Streams that this side has finished, and that a cancel may still reset."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from aqueduct.transport.quic.engine import Engine

_FEW: Final = 128
"""Finished streams that are remembered however few are open."""


class FinishedStreams:
    """Message streams that QUIC has whole, which a cancel resets while QUIC still sends them.

    QUIC does not tell when a stream was acknowledged to its end, only how many streams are open.
    So of more than twice as many, this forgets the oldest. Those that are forgotten too early are
    not reset.
    """

    __slots__ = ("_limit", "_streams")

    def __init__(self) -> None:
        self._streams: OrderedDict[int, int] = OrderedDict()
        """QUIC's numbers of the streams of the core."""
        self._limit = _FEW

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: int, number: int, engine: Engine) -> None:
        """Add a stream of the core with QUIC's number for it."""
        streams = self._streams
        streams[stream] = number
        if len(streams) > self._limit:
            native = engine.core
            open_here = 0 if native is None else native.active_local_streams[1]
            self._limit = 2 * open_here + _FEW
            while len(streams) > open_here + _FEW // 2:
                streams.popitem(last=False)

    def pop(self, stream: int) -> int | None:
        """Remove a stream, and return QUIC's number for it."""
        return self._streams.pop(stream, None)

    def clear(self) -> None:
        """Forget all."""
        self._streams.clear()
