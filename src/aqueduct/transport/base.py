"""What a connection needs of a transport, as Protocols that every transport implements.

A transport carries the actions of one protocol core to the core of the peer, feeds the core what
the peer sends, and calls the core's timers. It owns sockets, packets, encryption and congestion
control; it knows nothing of channels, messages or handles.

================ ==========================================================================
`Transport`      one connection: schedules flushes, reports statistics, ends
`TransportOwner` the connection above it, which the transport calls back
`Connector`      opens client transports to one server
`Listener`       accepts server transports on one address
================ ==========================================================================

``tests/transport/contract.py`` holds what an implementation must do besides having the methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from aqueduct.errors import AqueductError, CloseCode
from aqueduct.observe.base import Observer
from aqueduct.protocol.budget import AddressAccount
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.protocol.events import Event
from aqueduct.transport.address import Address, Route

IMMEDIATE_CLOSE_CODES = frozenset(CloseCode) - {CloseCode.NO_ERROR, CloseCode.GOING_AWAY}
"""Close codes for which a transport drops unsent data instead of sending it before the close."""


MAX_REASON = 512
"""Most bytes of the reason of a close."""


class TransportOwner(Protocol):
    """The connection that owns a transport; the transport calls it on the event loop."""

    def handle_events(self, events: list[Event]) -> None:
        """Handle events of the core, in order."""

    def handle_flushed(self, busy: int) -> None:
        """Handle the end of a flush; ``busy`` other connections wait for theirs.

        Connections that share an event loop divide among them what one flush may carry.
        """

    def handle_ending(self) -> None:
        """Take what has arrived out of the core, which ends next."""

    def handle_failure(self, error: AqueductError) -> None:
        """Fail the connection with this error, unless it is ready."""


class Transport(Protocol):
    """One connection's transport, from before the handshake until its resources are free.

    It flushes once per turn of the event loop, however often `schedule_flush` is called. All
    methods are called on the event loop `loop`.
    """

    @property
    def core(self) -> ConnectionCore:
        """The protocol core that this transport drives."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that this transport runs on."""

    @property
    def peer(self) -> Address:
        """The peer's address when the connection began."""

    @property
    def trace_id(self) -> bytes:
        """A name of this connection that both sides know, to match their traces."""

    @property
    def client_certificate(self) -> bytes | None:
        """The verified certificate of the client in DER, at a server that asks for one."""

    @property
    def is_established(self) -> bool:
        """Whether the transport's handshake is complete."""

    @property
    def may_send_early(self) -> bool:
        """Whether messages can leave before the handshake is complete (0-RTT)."""

    @property
    def early_data_accepted(self) -> bool:
        """Whether the server accepted such messages; a client learns it with the handshake."""

    @property
    def is_closed(self) -> bool:
        """Whether the close was sent, behind all data it waits for, or the connection is lost."""

    def attach(self, owner: TransportOwner) -> None:
        """Set the owner; events are kept in the core until then."""

    def detach(self) -> None:
        """Drop the owner: no callback follows."""

    def observe(self, observer: Observer) -> None:
        """Call the observer for streams, datagrams and resets; set before anything is sent."""

    def start(self) -> None:
        """Begin the handshake; only a client calls this, once."""

    def now(self) -> float:
        """Return the monotonic time in seconds that the core's timers refer to."""

    def schedule_flush(self) -> int:
        """Send what the core has to send at the end of this turn of the event loop.

        Return how many other connections wait for their flush.
        """

    def flush(self) -> None:
        """Send what the core has to send now, for a caller that will not wait for a turn."""

    def is_drained(self) -> bool:
        """Return whether the peer's transport has everything that the core has written."""

    def is_trust_failure(self, code: int) -> bool:
        """Return whether a close code says that one side does not trust the other's certificate."""

    def is_foreign(self, code: int) -> bool:
        """Return whether a close code says that the server does not speak our protocol at all."""

    def abandon(self, reason: str) -> None:
        """End the core without notifying the peer."""

    def close(self) -> None:
        """Free all resources and deliver the last events; idempotent.

        This does not notify the peer: closing the core does. Otherwise the peer notices by its idle
        timeout.
        """

    def statistics(self) -> dict[str, float]:
        """Return counters of this connection; times are seconds, and 0 stands for unknown.

        The keys are ``rtt``, ``bytes_sent``, ``bytes_received``, ``packets_sent``,
        ``packets_received``, ``lost_packets``, ``congestion_window``, ``bytes_in_flight``,
        ``streams`` and ``send_buffer``.
        """


class Connector(Protocol):
    """Opens client transports to one server."""

    @property
    def host(self) -> str:
        """The server's host as the caller wrote it, for error texts."""

    @property
    def protocol(self) -> str:
        """What a firewall has to let pass, for error texts: UDP, TCP or nothing."""

    async def resolve(self) -> list[Route]:
        """Return the routes to the server, the preferred one first; raise `ConnectError`."""

    def open(self, route: Route, core: ConnectionCore) -> Transport:
        """Return a transport that sends nothing before `start`; raise `HostUnreachable`."""


class Listener(Protocol):
    """Accepts connections on one address and hands each new transport to a callback."""

    unclaimed: int
    """Ended connections that the server still holds for the application; they count as open."""

    @property
    def address(self) -> str:
        """The address that clients connect to."""

    @property
    def handshake_timeout(self) -> float:
        """Seconds that a client has for the handshake and its headers."""

    def stop_accepting(self) -> None:
        """Ignore new clients; open connections continue."""

    def close(self) -> None:
        """Abandon all connections and free the address; idempotent."""


MakeCore = Callable[[AddressAccount | None], ConnectionCore]
"""Makes the core of an accepted connection; the account is that of its address, if it has one."""

OnTransport = Callable[[Transport], None]
"""Called with the transport of each new client, before anything of it was read."""


def shortened(reason: str) -> str:
    """Return as much of a reason as fits a packet that closes a connection, as valid UTF-8.

    A file name in a reason may hold a surrogate, which UTF-8 cannot encode.
    """
    encoded = reason.encode(errors="replace")
    if len(encoded) <= MAX_REASON:
        return encoded.decode()
    return encoded[: MAX_REASON - 3].decode(errors="ignore") + "…"
