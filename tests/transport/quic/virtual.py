"""Real QUIC in virtual time: two bridges joined in memory by a seeded network that loses packets.

``RealQuic`` replaces the simulator's fake QUIC and has the same interface, so that applications,
cores, the recorder and the checkers stay the same. Faults are chosen by the index of a packet,
because encrypted packets differ from run to run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import cast
from unittest.mock import patch

from aqueduct.errors import CloseCode
from aqueduct.observe.base import Observer
from aqueduct.protocol.actions import Action, ResetStream, SendDatagram, WriteStream
from aqueduct.protocol.config import Config
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.security import ServerTLS, Trust, make_authority, make_certificate
from aqueduct.testing.clock import StuckTimer, VirtualClock
from aqueduct.testing.faults import Faults
from aqueduct.testing.quic import Core, stream_id
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
from aqueduct.transport.quic.endpoint import QuicSettings, destination_id
from aqueduct.transport.quic.engine import Engine
from aqueduct.transport.quic.tls import EngineConfiguration
from aqueduct.transport.udp import Packet
from aqueduct.wire.chanid import Side
from tests.observe.silent import SilentObserver

NAME = "parity.test"
ADDRESSES = (("127.0.0.1", 1111), ("127.0.0.1", 2222))
FAR = 600.0
"""A timer further away than this is QUIC's idle timeout."""
IDLE = 5.0
OPTIONS = QuicSettings(idle_timeout=3_600.0, keep_alive=None)
PACKET_SIZES = (1_200, 1_452, 16_000)
TURNS_AT_ONE_INSTANT = 1_000
LEAST_DELAY = 0.000_05
"""Delays an answer, because checkers cannot order it and its cause at the same instant."""
TIMEOUT = 10.0
"""Virtual seconds for a handshake, as in `connect`."""


@cache
def certificates() -> tuple[ServerTLS, Trust]:
    """Return a server's certificate, and the trust in it."""
    authority = make_authority("parity")
    return make_certificate([NAME], authority), Trust(authorities=authority.certificate)


class NoHandshake(Exception):
    """The handshake failed."""


class TappedCore:
    """A core that reports all its inputs and actions to the recorder."""

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
        raise AssertionError(f"no side exceeds a limit here: {rule}, {reason}")

    def poll_actions(self) -> list[Action]:
        actions = self._core.poll_actions()
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
        raise AssertionError("no side opens a bidirectional stream")

    def handle_timer(self, now: float) -> None:
        self._core.handle_timer(now)

    def next_timer(self) -> float | None:
        return self._core.next_timer()

    def close_connection(self, code: CloseCode, reason: str, now: float) -> None:
        self._core.close_connection(code, reason, now)


class StreamNumbers(SilentObserver):
    """Maps QUIC's stream numbers to those of the core."""

    def __init__(self, bridge: Bridge, numbers: dict[int, int]) -> None:
        self._bridge = bridge
        self._numbers = numbers

    def stream_written(self, stream: int, data: bytes, fin: bool) -> None:
        if stream not in self._numbers:
            for number, of_quic in self._bridge._streams.items():
                if of_quic == stream:
                    self._numbers[stream] = number


class RealQuic:
    """Two real QUIC connections, and a network between them."""

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
        self.clock = clock
        self.random = random
        self.faults = faults
        self.active_side = Side.CLIENT
        self.addresses = list(ADDRESSES)
        """The address of each side; packets to other addresses are lost."""
        self.packets = [0, 0]
        self.packets_lost = 0
        self._recorders = tuple(recorders)
        assert not any(observers), "only the recorders observe real QUIC"
        self._after_input = after_input
        self._alive = [True, True]
        self._closed = [False, False]
        self._timers: list[float | None] = [None, None]
        self._instant = [(-1.0, 0), (-1.0, 0)]
        self._packet_random = (Random(random.random()), Random(random.random()))
        self._numbers: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self._rtts = [0.0, 0.0]
        size = random.choice(PACKET_SIZES)
        self._options = QuicSettings(
            idle_timeout=OPTIONS.idle_timeout, keep_alive=None, max_packet=size
        )
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
        """Return the client's QUIC connection."""
        return Engine(configuration=settings)

    def new_server(self, settings: EngineConfiguration, original: bytes) -> Engine:
        """Return the server's QUIC connection, for a client that chose this id."""
        return Engine(configuration=settings, original_destination_connection_id=original)

    # -- for the pair -------------------------------------------------------------------------

    def is_alive(self, side: Side) -> bool:
        """Return whether the connection of this side is open."""
        return self._alive[side]

    def flush(self, side: Side) -> None:
        """Send the packets of this side, and set its timer."""
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

    def kill(self, code: int, reason: str, gap: float) -> None:
        """End the connection: one side learns it now, the other ``gap`` seconds later."""
        first = Side(self.random.randrange(2))
        self._lose((first, code, reason))
        self.clock.after(gap, self._lose, (first.other, code, reason))

    def shake_hands(self) -> None:
        """Advance the time until both sides are connected."""
        while not all(bridge is not None and bridge.connected for bridge in self.bridges):
            if self.clock.now > TIMEOUT or not self.clock.step():
                raise NoHandshake(f"the handshake has not ended at {self.clock.now:.3f}")

    # -- packets ------------------------------------------------------------------------------

    def _send(self, side: Side, packet: Packet) -> None:
        random = self._packet_random[side].random
        chance, lateness = random(), random()
        self.packets[side] += 1
        faults = self.faults
        now = self.clock.now
        due = now + LEAST_DELAY + faults.delay + faults.jitter * lateness
        dark = faults.blackout_end(now) is not None or faults.blackout_end(due) is not None
        if chance < faults.loss or dark or packet[1][:2] != self.addresses[side.other]:
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
        bridge = Bridge(self._taps[side], quic)
        bridge.observer = StreamNumbers(bridge, self._numbers[side])
        return bridge

    # -- time ---------------------------------------------------------------------------------

    def _set_timer(self, side: Side) -> None:
        bridge = self.bridges[side]
        if bridge is None or not (self._alive[side] or self._closed[side]) or bridge.ended:
            return
        due = bridge.next_timer()
        if due is None or due > self.clock.now + FAR:
            return
        waiting = self._timers[side]
        if waiting is not None and waiting <= due:
            return
        self._timers[side] = due
        faults = self.faults
        at = due
        if faults.late_timer and self.random.random() < faults.late_timer:
            at += faults.lateness * self.random.random()
        self.clock.at(at, self._timer_due, (side, due))

    def _timer_due(self, timer: tuple[Side, float]) -> None:
        side, wanted = timer
        bridge = self.bridges[side]
        if bridge is None or self._timers[side] != wanted:
            return
        self._timers[side] = None
        now = self.clock.now
        self.active_side = side
        self._count_turns(side, now)
        bridge.handle_timer(now)
        self._settle(side)

    def _count_turns(self, side: Side, now: float) -> None:
        instant, turns = self._instant[side]
        turns = turns + 1 if instant == now else 1
        self._instant[side] = (now, turns)
        if turns > TURNS_AT_ONE_INSTANT:
            raise StuckTimer(f"the {side.name.lower()}'s timer stays at {now:.6f}")

    def _settle(self, side: Side) -> None:
        self._after_input(side)
        self.flush(side)

    def _lose(self, news: tuple[Side, int, str]) -> None:
        side, code, reason = news
        if self._alive[side]:
            self.active_side = side
            self._taps[side].handle_connection_lost(code, reason, False, self.clock.now)
            self.bridges[side] = None
            self._after_input(side)

    # -- for the recorder ---------------------------------------------------------------------

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
        """Return the stream id by the core's numbering of the other side."""
        return stream_id(self._numbers[side.other][stream], side.other)

    def saw_stream(self, side: Side, stream: int, data: bytes, fin: bool) -> None:
        """Record stream data that a core gets."""
        if self._alive[side]:
            self._recorders[side].stream_read(self._stream_of_core(side, stream), data, fin)

    def saw_reset(self, side: Side, stream: int, code: int) -> None:
        """Record a reset that a core gets."""
        if self._alive[side]:
            self._recorders[side].reset_read(self._stream_of_core(side, stream), code)

    def saw_datagram(self, side: Side, data: bytes) -> None:
        """Record a datagram that a core gets."""
        if self._alive[side]:
            self._recorders[side].datagram_read(data)

    def saw_rtt(self, side: Side, rtt: float) -> None:
        """Record the round-trip time that a core gets."""
        if rtt != self._rtts[side] and self._alive[side]:
            self._rtts[side] = rtt
            self._recorders[side].rtt_measured(rtt)

    def saw_end(self, side: Side, code: int, reason: str, by_peer: bool) -> None:
        """Record the end of the connection."""
        if self._alive[side]:
            self._alive[side] = False
            self._recorders[side].connection_lost(code, reason, by_peer)
            self._give_up_later(side.other)

    def _give_up_later(self, side: Side) -> None:
        """End a side that does not learn that the connection has ended."""
        if self._alive[side]:
            self.clock.after(IDLE, self._lose, (side, CloseCode.IDLE, "nothing heard"))


class ScarceStreams(RealQuic):
    """Both sides allow fewer concurrent streams than many runs need."""

    max_streams = 8

    def new_client(self, settings: EngineConfiguration) -> Engine:
        """Return the client's QUIC connection."""
        return super().new_client(replace(settings, max_streams=self.max_streams))

    def new_server(self, settings: EngineConfiguration, original: bytes) -> Engine:
        """Return the server's QUIC connection, for a client that chose this id."""
        return super().new_server(replace(settings, max_streams=self.max_streams), original)


class Parity(Simulation):
    """A run of the simulator over real QUIC; the applications start after the handshake.

    The API does the same: `connect` waits for the handshake.
    """

    network: RealQuic

    def __init__(self, seed: int, quic: type[RealQuic] = RealQuic) -> None:
        with patch("aqueduct.testing.pair.FakeQuic", quic):
            super().__init__(seed)
        network: object = self.pair.network
        assert isinstance(network, RealQuic)
        self.network = network

    def run(self) -> RunOutcome[Record]:
        """Complete the handshake, then play the run to its end and check it."""
        faults = self.network.faults
        self.pair.calm()
        self.network.shake_hands()
        self.network.faults = faults
        with patch("aqueduct.testing.simulation.DRAIN_TIMEOUT", 300.0):
            return super().run()
