"""The server side of QUIC: one socket that accepts connections.

An Initial packet of an unknown connection is answered with version negotiation, with a Retry when
the server is under load, or with a new connection. `admission` decides which clients are admitted.
Other packets of unknown connections are answered with a stateless reset.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from functools import partial
from time import monotonic

from qh3._hazmat import pull_quic_header
from qh3.quic.packet import (
    QuicPacketType,
    encode_quic_retry,
    encode_quic_version_negotiation,
)

from aqueduct.protocol.config import Config
from aqueduct.security import ServerTLS
from aqueduct.transport.address import Address, format_address
from aqueduct.transport.admission import Admission, Droppable, neighbourhood
from aqueduct.transport.base import MakeCore, OnTransport
from aqueduct.transport.quic.admission import Hidden, RetryTokens
from aqueduct.transport.quic.bridge import Bridge
from aqueduct.transport.quic.configuration import server_settings, settings_for_path
from aqueduct.transport.quic.endpoint import (
    ID_LENGTH,
    QuicEndpoint,
    destination_id,
    has_short_header,
)
from aqueduct.transport.quic.engine import Engine
from aqueduct.transport.quic.resets import StatelessResets
from aqueduct.transport.quic.tickets import ServerTickets
from aqueduct.transport.quic.transport import QuicTransport
from aqueduct.transport.settings import SMALLEST_INITIAL, QuicSettings

_SHORTEST_ID = 8
"""Shortest destination connection id of a client's first packet (RFC 9000, 7.2): shorter ids can be
guessed, and collide."""
_GREEDY = 4
"""An address with a quarter of `handshakes_before_retry` half-open connections gets a Retry."""
_MAX_CLOSING = 4
"""Connections closed for what QUIC holds that keep it while they may have to repeat the close."""


class QuicListener(QuicEndpoint):
    """A `Listener` on a UDP socket."""

    def __init__(
        self,
        sock: socket.socket,
        options: QuicSettings,
        tls: ServerTLS,
        make_core: MakeCore,
        on_transport: OnTransport,
        tickets: ServerTickets | None = None,
        config: Config | None = None,
        admission: Admission[Droppable] | None = None,
    ) -> None:
        """``admission`` may count the connections of another listener, too."""
        self._settings = server_settings(tls, options)
        super().__init__(sock, options)
        self._make_core = make_core
        self._on_transport = on_transport
        self._tickets = tickets
        self._tokens = RetryTokens(monotonic)
        self._handshakes: dict[QuicTransport, asyncio.TimerHandle] = {}
        self._admission = admission or Admission(options, config or Config())
        self._hidden: Hidden[QuicTransport] = Hidden(config or Config())
        self._closing: deque[QuicTransport] = deque()
        """The last connections that were closed for their hidden state."""
        self.address = format_address(self.local_address)
        """The address of the socket, as clients write it; known also after the end."""
        self._resets = StatelessResets(
            tls.key, socket.gethostname(), self.address, options.max_resets, monotonic
        )
        self._is_accepting = True

    @property
    def unclaimed(self) -> int:
        """Ended connections that the server still holds for the application."""
        return self._admission.unclaimed

    @unclaimed.setter
    def unclaimed(self, number: int) -> None:
        self._admission.unclaimed = number

    @property
    def handshake_timeout(self) -> float:
        """Seconds that a client has for the handshake and its headers."""
        return self.options.handshake_timeout

    def stop_accepting(self) -> None:
        """Ignore new clients."""
        self._is_accepting = False

    def forget(self, transport: QuicTransport) -> None:
        """Remove a connection that has ended."""
        self._end_handshake(transport)
        address = self._admission.leave(transport)
        if address is not None:
            self._hidden.remove(transport, address)
        super().forget(transport)

    def handle_unknown(self, data: bytes, address: Address) -> QuicTransport | None:
        """Answer an Initial packet: version negotiation, a retry, or a new connection.

        A packet of an established connection gets a stateless reset: the connection is unknown.
        """
        if has_short_header(data):
            self._send_reset(data, address)
            return None
        try:
            header = pull_quic_header(data, 0, ID_LENGTH)
        except ValueError:
            return None
        version, kind, _, destination, source, token = header[:6]
        if len(data) < SMALLEST_INITIAL or version is None:
            return None
        if version not in self._settings.supported_versions:
            if version != 0:
                answer = encode_quic_version_negotiation(
                    source_cid=destination,
                    destination_cid=source,
                    supported_versions=self._settings.supported_versions,
                )
                self.send([(answer, address)])
            return None
        if kind != int(QuicPacketType.INITIAL) or not self._is_accepting:
            return None
        if len(destination) < _SHORTEST_ID:
            return None
        original, retried = destination, None
        name = neighbourhood(address[0])
        if token:
            try:
                original, retried = self._tokens.open(address, token)
            except ValueError:
                return None
        elif self._is_pressed(name):
            self._send_retry(version, destination, source, address)
            return None
        if not self._admission.make_room(name, self.clock()):
            return None
        return self._new(original, retried, destination, address, name)

    def _is_pressed(self, name: str) -> bool:
        """Return whether a new client must validate its address."""
        limit, half_open = self.options.handshakes_before_retry, self._admission.half_open
        return len(half_open) >= limit or half_open.count(name) * _GREEDY >= limit

    def _new(
        self,
        original: bytes,
        retried: bytes | None,
        destination: bytes,
        address: Address,
        name: str,
    ) -> QuicTransport:
        settings = settings_for_path(self._settings, self.options, address)
        core = self._make_core(self._admission.account(name))
        settings.max_streams = max(settings.max_streams, core.config.max_streams)
        quic = Engine(
            configuration=settings,
            original_destination_connection_id=original,
            retry_source_connection_id=retried,
            tickets=self._tickets,
        )
        quic.reset_token = self._resets.token(quic.host_cid)
        bridge = Bridge(core, quic, self.options.keep_alive)
        transport = self.add(bridge, address, destination, quic.host_cid)
        bridge.when_connected = partial(self._end_handshake, transport)
        bridge.when_ready = partial(self._accepted, transport, name)
        bridge.unseen.on_estimate = partial(self._hold_hidden, transport, name)
        self._admission.enter(transport, name, self.clock())
        timeout = self.options.handshake_timeout
        self._handshakes[transport] = self.loop.call_later(timeout, self._give_up, transport)
        self._on_transport(transport)
        return transport

    def _accepted(self, transport: QuicTransport, name: str) -> None:
        self._admission.accepted(transport)
        self._hidden.remove(transport, name)

    def _hold_hidden(self, transport: QuicTransport, name: str, size: int) -> None:
        """Account for what QUIC holds; close the half-open connection with the most if need be."""
        if transport not in self.transports:
            return
        greediest = self._hidden.hold(transport, name, size)
        if greediest is not None:
            self._hidden.remove(greediest, self._admission.address_of(greediest))
            reason = "too many bytes without an event from all clients before headers"
            greediest.core.handle_excess("AQ-COST-3", reason, greediest.now())
            greediest.schedule_flush()
            self._closing.append(greediest)
            if len(self._closing) > _MAX_CLOSING:
                self._drop(self._closing.popleft())

    def _drop(self, transport: QuicTransport) -> None:
        """Free the memory of a connection that was closed, before its closing period is over."""
        if transport in self.transports:
            transport.bridge.ended = True
            self.forget(transport)

    def _end_handshake(self, transport: QuicTransport) -> None:
        timer = self._handshakes.pop(transport, None)
        if timer is not None:
            timer.cancel()

    def _give_up(self, transport: QuicTransport) -> None:
        transport.abandon("the handshake took too long")
        self.forget(transport)

    def _send_reset(self, data: bytes, address: Address) -> None:
        """Tell the sender of a packet that its connection is not known here (AQ-IDLE-3)."""
        answer = self._resets.answer(destination_id(data), len(data))
        if answer is not None:
            self.send([(answer, address)])

    def _send_retry(
        self, version: int, destination: bytes, source: bytes, address: Address
    ) -> None:
        fresh = os.urandom(ID_LENGTH)
        token = self._tokens.make(address, destination, fresh)
        packet = encode_quic_retry(
            version=version,
            source_cid=fresh,
            destination_cid=source,
            original_destination_cid=destination,
            retry_token=token,
        )
        self.send([(packet, address)])
