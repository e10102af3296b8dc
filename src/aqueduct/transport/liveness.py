"""Detects a silent peer: pings it first, then declares it dead (AQ-IDLE-1, AQ-IDLE-2)."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from aqueduct.wire.chanid import Side

NEVER = float("inf")
PINGS = 3
"""Keep-alive intervals in an idle timeout, at least: two pings may be lost."""
CLIENT_SOONER = 0.9
"""The part of its keep-alive interval after which a client pings, so that a server with many idle
clients hears of them before it pings them, too, if a round trip takes less than the rest."""
LEAST_OF_PEER = 1.0
"""Seconds: a peer that states a shorter idle timeout must not make this side send pings all the
time."""


class Verdict(Enum):
    """What to do about the peer."""

    WAIT = 0
    PING = 1
    DEAD = 2


class Hearing(Protocol):
    """What a transport knows of its peer's packets; times are seconds."""

    heard_at: float
    """When the last authenticated bytes of the peer came; `Liveness.start` sets it first."""
    idle_timeout: float
    """The idle timeout that this side states to the peer."""

    @property
    def peer_idle_timeout(self) -> float | None:
        """What the peer has stated."""

    def probe_timeout(self) -> float:
        """Return about how long the transport waits for an answer."""


class Liveness:
    """The time since the last authenticated packet of the peer, and what follows from it.

    What this side sends does not count; QUIC's own timer (RFC 9000, 10.1) starts again when
    something is sent after a packet was received. Time in which this process did not run does not
    count either: packets of the peer may wait in the socket, and no ping was sent.
    """

    __slots__ = (
        "_delayed_since",
        "_hearing",
        "_keep_alive",
        "_pinged_at",
        "_since",
        "_sooner",
        "due_at",
    )

    def __init__(self, hearing: Hearing, keep_alive: float | None, side: Side) -> None:
        self._hearing = hearing
        self._keep_alive = keep_alive
        self._sooner = CLIENT_SOONER if side is Side.CLIENT else 1.0
        self.due_at = NEVER
        """When to call `check`; at the latest when the peer is dead if it stays silent."""
        self._since = self._pinged_at = 0.0
        self._delayed_since = -1.0
        """The silence that `check` has prolonged because it was called late."""

    def start(self, now: float) -> None:
        """Begin, when the handshake is complete."""
        self._hearing.heard_at = self._pinged_at = now
        self._plan()

    def stop(self) -> None:
        """Stop checking the peer, because the connection is closed."""
        self.due_at = NEVER

    def silence(self, now: float) -> float:
        """Return the seconds since the peer was last heard."""
        return now - self._hearing.heard_at

    def timeout(self) -> float:
        """Return the seconds of silence after which the peer is dead.

        That is the smaller one of both sides' idle timeouts, but at least three probe timeouts, so
        that a packet and its ack fit in (RFC 9000, 10.1).
        """
        timeout = self._hearing.idle_timeout
        peer = self._hearing.peer_idle_timeout
        if peer is not None:
            timeout = min(timeout, max(peer, LEAST_OF_PEER))
        return max(timeout, 3 * self._hearing.probe_timeout())

    def check(self, now: float) -> Verdict:
        """Return what is due, and update `due_at`."""
        heard, timeout = self._hearing.heard_at, self.timeout()
        is_late = now - self.due_at > timeout / PINGS
        since = max(heard, self._since)
        latest = now - timeout * (1 - 1 / PINGS)
        if is_late and since < latest and self._delayed_since != heard:
            # Once per silence, so that a busy process detects a dead peer, too.
            self._delayed_since = heard
            self._since = since = latest
        if now >= since + timeout:
            self.stop()
            return Verdict.DEAD
        verdict = Verdict.WAIT
        if now >= max(since, self._pinged_at) + self._interval(timeout):
            self._pinged_at = now
            verdict = Verdict.PING
        self._plan()
        return verdict

    def _interval(self, timeout: float) -> float:
        if self._keep_alive is None:
            return NEVER
        return self._sooner * min(self._keep_alive, timeout / PINGS)

    def _plan(self) -> None:
        timeout = self.timeout()
        since = max(self._hearing.heard_at, self._since)
        ping_at = max(since, self._pinged_at) + self._interval(timeout)
        self.due_at = min(since + timeout, ping_at)
