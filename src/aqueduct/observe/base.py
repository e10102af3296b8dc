"""The `Observer` protocol, by which traces, metrics and the simulator observe one connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from aqueduct.protocol.events import Event
from aqueduct.wire.frames import MessageFrame, MessageRun


class PortCounters(Protocol):
    """The counters of one half of a channel, as an observer reads them."""

    def statistics(self) -> dict[str, int]:
        """Return the counters; a sender's ``sent`` counts the messages it was given."""


class Observer(Protocol):
    """Observes what one side of one connection writes, reads and reports to its application.

    The transport calls ``stream_*``, ``datagram_*`` and ``reset_*``; the runtime calls the rest.
    All calls come from the thread of the connection, and their order is part of the interface:

    1. A write is reported when the transport accepts it, a read just before the core handles it.
       Each stream is reported in order and without gaps, in pieces that may be cut anywhere in a
       frame. ``fin`` or a reset ends it.
    2. ``channels_created`` comes before the write of the message that carries the channels. At the
       peer, ``messages_taken`` with that message creates the other halves.
    3. ``messages_taken`` comes after the read that completed the messages.
    4. ``events_raised`` passes the events of the core in the order in which the core raised them.
       An event follows the read that caused it. The ``…Ended`` event of a half is its last one.
    5. `ConnectionEnded` is the last event. What may follow are writes that the core queued before,
       reads that the core ignores, and ``messages_taken`` for messages that were rescued.

    Streams have QUIC's ids, which are the same at both sides: bit 0 is set if the server opened
    the stream, and bit 1 always. An observer must not block, because the connection waits for it,
    and must not keep ``data``, which includes payloads and the values of headers. An observer that
    raises is detached; the connection and its other observers continue.
    """

    def stream_written(self, stream: int, data: bytes, fin: bool) -> None:
        """The core wrote ``data`` to a stream, and ended the stream if ``fin`` is set."""

    def stream_read(self, stream: int, data: bytes, fin: bool) -> None:
        """``data`` of a stream arrived, and the end of the stream if ``fin`` is set."""

    def datagram_written(self, data: bytes) -> None:
        """The core sent a datagram."""

    def datagram_read(self, data: bytes) -> None:
        """A datagram arrived."""

    def reset_written(self, stream: int, code: int) -> None:
        """The core reset a stream that it writes."""

    def reset_read(self, stream: int, code: int) -> None:
        """The peer reset a stream that it writes."""

    def channels_created(
        self,
        carrier: int,
        number: int,
        reliable: bool,
        channels: Sequence[int],
        modes: Sequence[str],
    ) -> None:
        """This side made ``channels`` for message ``number`` of the channel ``carrier``.

        ``reliable`` names the number space of the message. A mode is meaningful where this side
        sends on the channel.
        """

    def messages_taken(self, channel: int, batch: Sequence[MessageFrame | MessageRun]) -> None:
        """The application, or its port, took messages from the receive queue of the core."""

    def messages_rescued(self, channel: int, batch: Sequence[MessageFrame | MessageRun]) -> None:
        """The connection is ending, and a port keeps what the application has not received.

        ``messages_taken`` follows for each entry of the batch that the application receives.
        """

    def receiver_closed(self, channel: int) -> None:
        """The application closed a receiver; no event follows for this half."""

    def events_raised(self, events: Sequence[Event], ports: Mapping[int, PortCounters]) -> None:
        """The core raised events; ``ports`` has the open halves by channel."""


@dataclass(frozen=True, slots=True)
class ObservedConnection:
    """The connection to observe, as passed to an `ObserverFactory` when it begins."""

    id: str
    """The same at both sides."""
    side: str
    """``client`` or ``server``: the side that is observed."""
    peer: tuple[str, int]
    """The address of the other side."""


ObserverFactory = Callable[[ObservedConnection], Observer | None]
"""Makes the observer of one connection, or returns None to leave the connection unobserved."""


class NullObserver:
    """An observer that ignores everything: a base class for those that need a few calls."""

    def stream_written(self, stream: int, data: bytes, fin: bool) -> None:
        """Ignore it."""

    def stream_read(self, stream: int, data: bytes, fin: bool) -> None:
        """Ignore it."""

    def datagram_written(self, data: bytes) -> None:
        """Ignore it."""

    def datagram_read(self, data: bytes) -> None:
        """Ignore it."""

    def reset_written(self, stream: int, code: int) -> None:
        """Ignore it."""

    def reset_read(self, stream: int, code: int) -> None:
        """Ignore it."""

    def channels_created(
        self,
        carrier: int,
        number: int,
        reliable: bool,
        channels: Sequence[int],
        modes: Sequence[str],
    ) -> None:
        """Ignore it."""

    def messages_taken(self, channel: int, batch: Sequence[MessageFrame | MessageRun]) -> None:
        """Ignore it."""

    def messages_rescued(self, channel: int, batch: Sequence[MessageFrame | MessageRun]) -> None:
        """Ignore it."""

    def receiver_closed(self, channel: int) -> None:
        """Ignore it."""

    def events_raised(self, events: Sequence[Event], ports: Mapping[int, PortCounters]) -> None:
        """Ignore it."""
