"""Receive ports over simulated cores, which prefetch messages as those of real connections do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from aqueduct.runtime.connection_driver import ConnectionDriver
from aqueduct.runtime.receive_port import NetworkReceivePort
from aqueduct.testing.endpoint import SimulatedEndpoint
from aqueduct.wire.frames import Attachment, MessageFrame, MessageRun


class PrefetchedHalves:
    """The attachments of a message, in place of the handles of their halves."""

    def __init__(self, attachments: tuple[Attachment, ...]) -> None:
        self._attachments = attachments

    def halves(self) -> tuple[Any, ...]:
        """Return the attachments."""
        return self._attachments


class PortDriver:
    """What a receive port uses of the driver of its connection, over a simulated endpoint.

    It is the observer of its ports, too. A half in a message that a port has taken belongs to the
    application once the port hands out the message; a port that discards the message ends it.
    """

    def __init__(
        self,
        endpoint: SimulatedEndpoint,
        *,
        on_taken: Callable[[Sequence[Attachment]], None],
        on_discarded: Callable[[Attachment], None],
    ) -> None:
        """Both are called with what is attached to the messages that a port takes or discards."""
        self.core = endpoint.core
        self.observer = self
        self.ended = None
        self._endpoint = endpoint
        self._on_taken = on_taken
        self._on_discarded = on_discarded

    @property
    def time(self) -> float:
        """The virtual time."""
        return self._endpoint.now

    def open(self, channel: int) -> NetworkReceivePort:
        """Return a port for a receiver of bytes."""
        self._endpoint.record_prefetch(channel)
        return NetworkReceivePort(cast(ConnectionDriver, self), channel, bytes)

    # -- for the ports ----------------------------------------------------------------------------

    def messages_taken(self, channel: int, batch: Sequence[MessageFrame | MessageRun]) -> None:
        """Record what a port takes from the core."""
        self._endpoint.record_taken(channel, batch)

    def open_ports(self, message: MessageFrame) -> None:
        """Tell the application of the halves in a message."""
        self._on_taken(message.attachments)

    def attached(self, message: MessageFrame) -> PrefetchedHalves:
        """Return the attachments of a message that is handed out."""
        return PrefetchedHalves(message.attachments)

    def abandon(self, message: MessageFrame) -> None:
        """End the halves in a message that is discarded (AQ-CLOSE-4)."""
        for attachment in message.attachments:
            self._endpoint.abandon(attachment.channel)
            self._on_discarded(attachment)

    def receiver_closed(self, channel: int) -> None:
        """No-op: the endpoint records the close."""

    def forget_port(self, port: NetworkReceivePort) -> None:
        """No-op: the application forgets the port."""

    def check_loop(self) -> None:
        """No-op: there is no event loop."""

    def touch(self) -> None:
        """No-op: the simulation flushes after each turn."""
