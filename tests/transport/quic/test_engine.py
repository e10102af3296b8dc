"""qh3 with higher limits: thousands of streams, one bidirectional stream, datagrams."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from qh3.quic.connection import QuicConnectionError
from qh3.quic.events import (
    DatagramFrameReceived,
    HandshakeCompleted,
    QuicEvent,
    StreamDataReceived,
)

from aqueduct.protocol.config import Config
from aqueduct.transport.quic.configuration import (
    client_settings,
    server_settings,
    settings_for_path,
)
from aqueduct.transport.quic.engine import ALPN, Engine
from aqueduct.transport.quic.tls import MAX_DATAGRAM_FRAME
from aqueduct.transport.settings import QuicSettings
from tests.transport.quic.virtual import ADDRESSES, NAME, certificates

MANY = 5_000


class Wire:
    """Two engines on a perfect network without delay."""

    def __init__(self, packet: int = 16_000) -> None:
        tls, trust = certificates()
        options = QuicSettings(max_packet=packet)
        self.client = Engine(configuration=client_settings(trust, options, NAME, ADDRESSES[1]))
        self.client.connect(ADDRESSES[1], 0.0)
        settings = settings_for_path(server_settings(tls, options), options, ADDRESSES[0])
        self.server = Engine(
            configuration=settings,
            original_destination_connection_id=self.client.original_destination_connection_id,
        )
        self.now = 0.0
        self.events: tuple[list[QuicEvent], list[QuicEvent]] = ([], [])

    def run(self, done: Callable[[], bool], rounds: int = 2_000) -> None:
        """Exchange packets and advance the time until a condition holds."""
        for _ in range(rounds):
            self.turn()
            if done():
                return
        raise AssertionError("the condition did not become true")

    def turn(self) -> None:
        """Exchange all packets, and advance the time by a millisecond."""
        self.now += 0.001
        pairs = ((self.client, self.server, 0), (self.server, self.client, 1))
        for sender, receiver, side in pairs:
            for data, _ in sender.datagrams_to_send(self.now):
                receiver.receive_datagram(data, ADDRESSES[side], self.now)
        for side, engine in enumerate((self.client, self.server)):
            timer = engine.get_timer()
            if timer is not None and timer <= self.now:
                engine.handle_timer(self.now)
            while (event := engine.next_event()) is not None:
                self.events[side].append(event)

    def shake_hands(self) -> Wire:
        """Complete the handshake."""
        self.run(
            lambda: all(
                any(isinstance(event, HandshakeCompleted) for event in events)
                for events in self.events
            )
        )
        return self

    def streams(self, side: int) -> dict[int, bytes]:
        """Return the complete streams that arrived at a side."""
        whole: dict[int, bytes] = {}
        parts: dict[int, bytes] = {}
        for event in self.events[side]:
            if isinstance(event, StreamDataReceived):
                parts[event.stream_id] = parts.get(event.stream_id, b"") + event.data
                if event.end_stream:
                    whole[event.stream_id] = parts[event.stream_id]
        return whole


@pytest.mark.parametrize("packet", [1_200, 1_452, 16_000])
def test_thousands_of_streams_are_open_concurrently_in_both_directions(packet: int) -> None:
    wire = Wire(packet).shake_hands()
    for number in range(MANY):
        wire.client.send_stream_data(4 * number + 2, b"up", False)
        wire.server.send_stream_data(4 * number + 3, b"down", False)
    for _ in range(50):
        wire.turn()
    for number in range(MANY):
        wire.client.send_stream_data(4 * number + 2, b"!", True)
        wire.server.send_stream_data(4 * number + 3, b"!", True)
    wire.run(lambda: len(wire.streams(0)) == len(wire.streams(1)) == MANY)
    assert set(wire.streams(1).values()) == {b"up!"}
    assert set(wire.streams(0).values()) == {b"down!"}


def test_ended_streams_make_room_for_more() -> None:
    wire = Wire().shake_hands()
    for turn in range(20):
        for number in range(1_000):
            wire.client.send_stream_data(4 * (1_000 * turn + number) + 2, b"x", True)
        wire.run(lambda turn=turn: len(wire.streams(1)) == 1_000 * (turn + 1))  # type: ignore[misc]


def test_the_alpn_is_negotiated() -> None:
    wire = Wire().shake_hands()
    for events in wire.events:
        (done,) = [event for event in events if isinstance(event, HandshakeCompleted)]
        assert done.alpn_protocol == ALPN


def test_both_sides_accept_datagrams() -> None:
    wire = Wire(1_200).shake_hands()
    assert wire.client.peer_takes_datagrams
    assert wire.server.peer_takes_datagrams
    wire.client.send_datagram_frame(b"x" * 1_150)
    wire.server.send_datagram_frame(b"y" * 1_150)
    wire.run(
        lambda: all(
            any(isinstance(event, DatagramFrameReceived) for event in events)
            for events in wire.events
        )
    )
    assert MAX_DATAGRAM_FRAME > 1_150


def test_the_largest_datagram_of_the_core_fits_the_smallest_packet() -> None:
    wire = Wire(1_200).shake_hands()
    for number in range(200):
        wire.client.send_datagram_frame(bytes([number]) * 1_150)
        wire.client.send_stream_data(2, b"x" * 3_000, False)
    wire.run(
        lambda: sum(isinstance(event, DatagramFrameReceived) for event in wire.events[1]) == 200
    )


def test_the_reason_of_a_close_is_known_at_once() -> None:
    wire = Wire().shake_hands()
    wire.server.close(error_code=7, reason_phrase="enough")
    wire.turn()
    wire.turn()
    closed = wire.client.closed_with
    assert closed is not None
    assert (closed.error_code, closed.reason_phrase) == (7, "enough")


def test_an_engine_that_sends_endlessly_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Wire().client

    class Endless:
        def poll_transmit(self, now: float) -> tuple[bytes, object]:
            return b"again", ADDRESSES[1]

    monkeypatch.setattr(engine, "_core", Endless())
    with pytest.raises(QuicConnectionError, match="without end"):
        engine.datagrams_to_send(0.0)


def test_a_client_without_answers_during_the_handshake_sends_few_probes() -> None:
    """qh3 doubles the data with each probe; a server bounds that (AQ-COST-3)."""
    wire = Wire()
    client = wire.client
    while not client._handshake_complete:
        wire.turn()
    client.datagrams_to_send(wire.now)  # the server does not get it, nor anything else
    sent = 0
    for _ in range(10_000):
        wire.now += 0.001
        timer = client.get_timer()
        if timer is not None and timer <= wire.now:
            client.handle_timer(wire.now)
        sent += sum(len(data) for data, _ in client.datagrams_to_send(wire.now))
    assert 100 < sent < Config().max_unseen // 2
