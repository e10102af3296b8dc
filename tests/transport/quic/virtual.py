"""Real QUIC in virtual time: two bridges connected in memory by a seeded lossy network.

``RealQuic`` replaces the simulator's `FakeQuic`, so the same applications, cores, recorder and
checkers run over it. The fate of a packet depends on its index, because encrypted bytes differ from
run to run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import cast
from unittest.mock import patch

from aqueduct.errors import CloseCode
from aqueduct.observe import NullObserver
from aqueduct.observe.base import Observer
from aqueduct.protocol.actions import Action, ResetStream, Room, SendDatagram, WriteStream
from aqueduct.protocol.config import Config
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.protocol.outgoing import Outgoing
from aqueduct.security import ServerTLS, Trust, make_authority, make_certificate
from aqueduct.testing.clock import VirtualClock
from aqueduct.testing.faults import Faults
from aqueduct.testing.quic import Core, VirtualQuic, sizes_of, stream_id
from aqueduct.testing.record import Record
from aqueduct.testing.recorder import RecordObserver
from aqueduct.testing.simulation import RunOutcome, Simulation
from aqueduct.transport.address import Address
from aqueduct.transport.quic.bridge import Bridge
from aqueduct.transport.quic.configuration import (
    client_settings,
    server_settings,
    settings_for_path,
)
from aqueduct.transport.quic.endpoint import destination_id
from aqueduct.transport.quic.engine import Engine
from aqueduct.transport.quic.tls import EngineConfiguration
from aqueduct.transport.settings import QuicSettings
from aqueduct.transport.udp import Packet
from aqueduct.wire.chanid import Side

NAME = "parity.test"
ADDRESSES = (("127.0.0.1", 1111), ("127.0.0.1", 2222))
FAR = 600.0
"""Seconds. A timer further away is QUIC's idle timeout, which a run does not wait for."""
IDLE = 5.0
OPTIONS = QuicSettings(idle_timeout=3_600.0, keep_alive=None)
PACKET_SIZES = (1_200, 1_452, 16_000)
LEAST_DELAY = 0.000_05
"""Seconds: an answer never arrives at the instant of its cause, which checkers cannot separate."""
HANDSHAKE_TIMEOUT = 10.0
"""Virtual seconds, the default of a client."""


@cache
def certificates() -> tuple[ServerTLS, Trust]:
    """Return the certificate of a server, and the trust in it."""
    authority = make_authority("parity")
    return make_certificate([NAME], authority), Trust(authorities=authority.certificate)


class NoHandshake(Exception):
    """The handshake did not finish."""


class TappedCore:
    """A core as its bridge sees it; reports all inputs and outputs to the recorder."""

    def __init__(self, core: ConnectionCore, side: Side, network: RealQuic) -> None:
        self._core = core
        self._side = side
        self._network = network

    @property
    def side(self) -> Side:
        return self._core.side

    @property
    def config(self) -> Config:
        return self._core.config

    @property
    def is_ready(self) -> bool:
        return self._core.is_ready

    @property
    def has_ended(self) -> bool:
        return self._core.has_ended

    def handle_excess(self, rule: str, reason: str, now: float) -> None:
        raise AssertionError(f"a core exceeded a limit: {rule}, {reason}")

    @property
    def output(self) -> Outgoing:
        return self._core.output

    def poll_actions(self, room: Room | None = None) -> list[Action]:
        actions = self._core.poll_actions(room)
        self._network.saw_poll(self._side, actions)
        for action in actions:
            self._network.saw_action(self._side, action)
        return actions

    def handle_stream_data(self, stream: int, data: bytes, fin: bool, now: float) -> None:
        self._network.saw_stream(self._side, stream, data, fin)
        self._core.handle_stream_data(stream, data, fin, now)

    def handle_stream_reset(self, stream: int, code: int, now: float) -> None:
        self._network.saw_reset(self._side, stream, code)
        self._core.handle_stream_reset(stream, code, now)

    def handle_datagram(self, data: bytes, now: float) -> None:
        self._network.saw_datagram(self._side, data)
        self._core.handle_datagram(data, now)

    def handle_connection_lost(self, code: int, reason: str, by_peer: bool, now: float) -> None:
        self._network.saw_end(self._side, code, reason, by_peer)
        self._core.handle_connection_lost(code, reason, by_peer, now)

    def handle_rtt(self, rtt: float) -> None:
        self._network.saw_rtt(self._side, rtt)
        self._core.handle_rtt(rtt)

    def handle_bidirectional_stream(self, now: float) -> None:
        raise AssertionError("a bidirectional stream was opened")

    def handle_datagram_limit(self, size: int) -> None:
        self._core.handle_datagram_limit(size)

    def handle_timer(self, now: float) -> None:
        self._core.handle_timer(now)

    def next_timer(self) -> float | None:
        return self._core.next_timer()

    def close_connection(self, code: CloseCode, reason: str, now: float) -> None:
        self._core.close_connection(code, reason, now)


class StreamNumbers(NullObserver):
    """Maps the stream ids of QUIC to the stream numbers of the core."""

    def __init__(self, bridge: Bridge, numbers: dict[int, int]) -> None:
        self._bridge = bridge
        self._numbers = numbers

    def stream_written(self, stream: int, data: bytes, fin: bool) -> None:
        if stream not in self._numbers:
            for number, of_quic in self._bridge._streams.items():
                if of_quic == stream:
                    self._numbers[stream] = number


class RealQuic(VirtualQuic):
    """Two real QUIC connections, and the network between them."""

    options = OPTIONS
    """The settings of both sides; a packet size of None is drawn."""

    def __init__(
        self,
        clock: VirtualClock,
        random: Random,
        faults: Faults,
        cores: Sequence[Core],
        recorders: Sequence[RecordObserver],
        after_input: Callable[[Side], None],
        observers: Sequence[Sequence[Observer]] = ((), ()),
    ) -> None:
        assert not any(observers), "real QUIC supports no observers besides the recorders"
        super().__init__(clock, random, faults, recorders, after_input)
        self.addresses = list(ADDRESSES)
        """The address of each side; packets to other addresses are lost."""
        self.packets = [0, 0]
        self.packets_lost = 0
        self._closed = [False, False]
        self._packet_random = (Random(random.random()), Random(random.random()))
        self._numbers: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self._rtts = [0.0, 0.0]
        size = random.choice(PACKET_SIZES)
        self._options = replace(self.options, max_packet=self.options.max_packet or size)
        self._taps = [
            cast(ConnectionCore, TappedCore(cast(ConnectionCore, core), side, self))
            for side, core in zip(Side, cores, strict=True)
        ]
        _, trust = certificates()
        settings = client_settings(trust, self._options, NAME, ADDRESSES[Side.SERVER])
        quic = self.new_client(settings)
        quic.connect(ADDRESSES[Side.SERVER], clock.now)
        self.bridges: list[Bridge | None] = [self._new_bridge(Side.CLIENT, quic), None]

    def new_client(self, settings: EngineConfiguration) -> Engine:
        """Return the QUIC connection of the client."""
        return Engine(configuration=settings)

    def new_server(self, settings: EngineConfiguration, original: bytes) -> Engine:
        """Return the QUIC connection of the server, for the id that the client chose."""
        return Engine(configuration=settings, original_destination_connection_id=original)

    def flush(self, side: Side) -> None:
        bridge = self.bridges[side]
        if bridge is None:
            return
        self.active_side = side
        had_ended = bridge.ended
        for packet in bridge.flush(self.clock.now):
            self._send(side, packet)
        self._set_timer(side)
        if bridge.ended and not had_ended:
            self._after_input(side)  # as a driver does when its bridge fails

    def shake_hands(self) -> None:
        """Advance the time until both sides are connected."""
        while not all(bridge is not None and bridge.connected for bridge in self.bridges):
            if self.clock.now > HANDSHAKE_TIMEOUT or not self.clock.step():
                raise NoHandshake(f"the handshake has not ended at {self.clock.now:.3f}")

    # Packets

    def _send(self, side: Side, packet: Packet) -> None:
        random = self._packet_random[side].random
        luck, lateness = random(), random()
        self.packets[side] += 1
        faults = self.faults
        now = self.clock.now
        due = now + LEAST_DELAY + faults.delay + faults.jitter * lateness
        dark = faults.blackout_end(now) is not None or faults.blackout_end(due) is not None
        if luck < faults.loss or dark or packet[1][:2] != self.addresses[side.other]:
            self.packets_lost += 1
            return
        self.clock.at(due, self._arrive, (side.other, packet[0], self.addresses[side]))

    def _arrive(self, arrival: tuple[Side, bytes, Address]) -> None:
        side, data, address = arrival
        if not self._alive[side] and not self._closed[side]:
            return
        bridge = self.bridges[side]
        if bridge is None:
            bridge = self.bridges[side] = self._accept(data)
        self.active_side = side
        bridge.receive(data, len(data), address, self.clock.now)
        self._settle(side)

    def _accept(self, data: bytes) -> Bridge:
        tls, _ = certificates()
        settings = server_settings(tls, self._options)
        settings = settings_for_path(settings, self._options, ADDRESSES[Side.CLIENT])
        return self._new_bridge(Side.SERVER, self.new_server(settings, destination_id(data)))

    def _new_bridge(self, side: Side, quic: Engine) -> Bridge:
        bridge = Bridge(self._taps[side], quic, self.options.keep_alive)
        bridge.observer = StreamNumbers(bridge, self._numbers[side])
        return bridge

    # Time

    def _next_timer(self, side: Side) -> float | None:
        bridge = self.bridges[side]
        if bridge is None or not (self._alive[side] or self._closed[side]) or bridge.ended:
            return None
        due = bridge.next_timer()
        return None if due is None or due > self.clock.now + FAR else due

    def _handle_timer(self, side: Side) -> None:
        bridge = self.bridges[side]
        if bridge is None:
            return
        now = self.clock.now
        self.active_side = side
        self._count_turns(side, now)
        bridge.handle_timer(now)
        self._settle(side)

    def _lose(self, news: tuple[Side, int, str, bool]) -> None:
        side, code, reason, by_peer = news
        if self._alive[side]:
            self.active_side = side
            self._taps[side].handle_connection_lost(code, reason, by_peer, self.clock.now)
            self.bridges[side] = None
            self._after_input(side)

    # What passed

    def saw_poll(self, side: Side, actions: list[Action]) -> None:
        """Record what a bridge takes."""
        if actions:
            self._recorders[side].polled(sizes_of(actions))

    def saw_action(self, side: Side, action: Action) -> None:
        """Record an action of a core."""
        recorder = self._recorders[side]
        if isinstance(action, WriteStream):
            recorder.stream_written(stream_id(action.stream, side), action.data, action.fin)
        elif isinstance(action, SendDatagram):
            recorder.datagram_written(action.data)
        elif isinstance(action, ResetStream):
            recorder.reset_written(stream_id(action.stream, side), action.code)
        else:
            recorder.connection_closed(action.code, action.reason)
            self._alive[side] = False
            self._closed[side] = True
            self._give_up_later(side.other)

    def _stream_of_core(self, side: Side, stream: int) -> int:
        """Return the id that the stream would have if QUIC numbered streams as the core does."""
        return stream_id(self._numbers[side.other][stream], side.other)

    def saw_stream(self, side: Side, stream: int, data: bytes, fin: bool) -> None:
        """Record that a core gets bytes of a stream."""
        if self._alive[side]:
            self._recorders[side].stream_read(self._stream_of_core(side, stream), data, fin)

    def saw_reset(self, side: Side, stream: int, code: int) -> None:
        """Record that a core gets a reset."""
        if self._alive[side]:
            self._recorders[side].reset_read(self._stream_of_core(side, stream), code)

    def saw_datagram(self, side: Side, data: bytes) -> None:
        """Record that a core gets a datagram."""
        if self._alive[side]:
            self._recorders[side].datagram_read(data)

    def saw_rtt(self, side: Side, rtt: float) -> None:
        """Record that a core gets a round-trip time."""
        if rtt != self._rtts[side] and self._alive[side]:
            self._rtts[side] = rtt
            self._recorders[side].rtt_measured(rtt)

    def saw_end(self, side: Side, code: int, reason: str, by_peer: bool) -> None:
        """Record that a core gets the end of the connection."""
        if self._alive[side]:
            self._alive[side] = False
            self._recorders[side].connection_lost(code, reason, by_peer)
            self._give_up_later(side.other)

    def _give_up_later(self, side: Side) -> None:
        """End the connection of a side by idle timeout, unless the close arrives first."""
        if self._alive[side]:
            self.clock.after(IDLE, self._lose, (side, CloseCode.IDLE, "idle timeout", False))


class ScarceStreams(RealQuic):
    """Both sides allow fewer concurrent streams than many runs open."""

    max_streams = 12

    def new_client(self, settings: EngineConfiguration) -> Engine:
        """Return the QUIC connection of the client."""
        return super().new_client(replace(settings, max_streams=self.max_streams))

    def new_server(self, settings: EngineConfiguration, original: bytes) -> Engine:
        """Return the QUIC connection of the server, for the id that the client chose."""
        return super().new_server(replace(settings, max_streams=self.max_streams), original)


DRAIN = 300.0
"""Seconds until everything has ended; meanwhile frames wait for the congestion window."""


class Parity(Simulation):
    """A run of the simulator over real QUIC; as in the API, it starts after the handshake."""

    network: RealQuic

    def __init__(self, seed: int, quic: type[RealQuic] = RealQuic) -> None:
        # A bridge needs our core at both ends.
        with (
            patch("aqueduct.testing.pair.FakeQuic", quic),
            patch("aqueduct.testing.plan.DRAFT_SHARE", 0.0),
        ):
            super().__init__(seed)
        network: object = self.pair.network
        assert isinstance(network, RealQuic)
        self.network = network
        self.pair.record.backlog = DRAIN

    def run(self) -> RunOutcome[Record]:
        """Complete the handshake, then run the simulation to its end and check it."""
        faults = self.network.faults
        self.pair.calm()
        self.network.shake_hands()
        self.network.faults = faults
        with patch("aqueduct.testing.simulation.DRAIN_TIMEOUT", DRAIN):
            return super().run()
