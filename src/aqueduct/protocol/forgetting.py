"""FORGET_CHANNEL: how often it is sent, and when it answers a ROUTE_TO for a channel of ours.

Theory of operation. A peer that remembers ended channels only for a second, as the reference
draft allows, makes a new half of one when a late datagram arrives: a *ghost*. It tells us with a
ROUTE_TO, and destroys the ghost when we answer with FORGET_CHANNEL. The same ROUTE_TO may be an
ordinary late frame of a sender to which our last acks are still on their way, and an answer at once
could overtake them. So the answer waits until the channel was quiet for a second; a peer that does
not become quiet is answered after five.
"""

from __future__ import annotations

from collections import OrderedDict

from aqueduct.errors import CloseCode, RemoteProtocolError
from aqueduct.protocol.config import Config
from aqueduct.protocol.outgoing import Outgoing
from aqueduct.protocol.timers import NEVER, Timers
from aqueduct.wire.frames import ForgetChannel


class Forgetting:
    """The FORGET_CHANNEL frames of one side: the recent ones, and the answers that wait."""

    __slots__ = ("_config", "_out", "_provoked", "_sent", "_timers", "_waiting", "wake_at")

    def __init__(self, config: Config, out: Outgoing, timers: Timers) -> None:
        self._config = config
        self._out = out
        self._timers = timers
        self._sent: OrderedDict[int, float] = OrderedDict()
        """Channels forgotten within the interval."""
        self._provoked: OrderedDict[int, float] = OrderedDict()
        """Those of them that a peer's ROUTE_TO caused."""
        self._waiting: OrderedDict[int, tuple[float, float]] = OrderedDict()
        """Channels to be forgotten once quiet: when the first and the last ROUTE_TO came, in the
        order of the last."""
        self.wake_at = NEVER

    def send(self, channel: int, now: float) -> bool:
        """Send FORGET_CHANNEL, unless it was just sent (AQ-FORGET-2); return whether it was."""
        expire(self._sent, now - self._config.forget_interval)
        if channel in self._sent:
            return False
        self._send(channel, now)
        return True

    def answer(self, channel: int, now: float, *, ended: bool) -> None:
        """Answer a ROUTE_TO for a channel of ours that is lost, unknown or has ``ended`` in order.

        At once, or once the channel is quiet (AQ-ROUTE-3, AQ-ROUTE-5, AQ-ROUTE-6).
        """
        if not ended and self.send(channel, now):
            self._count(channel, now)
            return
        waiting = self._waiting
        first = now
        if channel in waiting:
            first = waiting[channel][0]
            if now - first >= self._config.forget_patience:
                self._send(channel, now)
                return
        elif len(waiting) >= self._config.max_forgets:
            return  # AQ-LIMIT-7: the next ROUTE_TO for it may be answered
        waiting[channel] = (first, now)
        waiting.move_to_end(channel)
        self._wake()

    def handle_timer(self, now: float) -> None:
        """Forget the channels that have been quiet for long enough."""
        while self._waiting:
            channel = next(iter(self._waiting))
            if self._waiting[channel][1] + self._config.forget_interval > now:
                break
            self._send(channel, now)
        self._wake()

    def clear(self) -> None:
        """Drop all that waits, at the end of the connection."""
        self._waiting.clear()
        self.wake_at = NEVER

    def _send(self, channel: int, now: float) -> None:
        # FORGET_CHANNEL answers every ROUTE_TO that came before it.
        self._waiting.pop(channel, None)
        self._sent[channel] = now
        self._sent.move_to_end(channel)
        stream = self._out.open(channel)  # AQ-STREAM-8
        self._out.write(stream, ForgetChannel().encode())
        self._out.finish(stream)

    def _count(self, channel: int, now: float) -> None:
        """Bound the answers within the interval (AQ-LIMIT-7)."""
        expire(self._provoked, now - self._config.forget_interval)
        self._provoked[channel] = now
        if len(self._provoked) > self._config.max_forgets:
            raise RemoteProtocolError(
                "AQ-LIMIT-7", "too many frames for channels that ended", CloseCode.LIMIT_EXCEEDED
            )

    def _wake(self) -> None:
        if self._waiting:
            first = self._waiting[next(iter(self._waiting))]
            self._timers.wake(self, first[1] + self._config.forget_interval)


def expire(times: OrderedDict[int, float], before: float) -> None:
    """Delete the entries, oldest first, that are as old as ``before``.

    An OrderedDict, because a plain dict finds its first entry by scanning past all deleted ones.
    """
    while times:
        channel = next(iter(times))
        if times[channel] > before:
            break
        del times[channel]
