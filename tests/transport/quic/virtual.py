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

from aqueduct.observe import NullObserver
from aqueduct.observe.base import Observer
from aqueduct.security import ServerTLS, Trust, make_authority, make_certificate
from aqueduct.testing.clock import VirtualClock
from aqueduct.testing.faults import Faults
from aqueduct.testing.quic import Core
from aqueduct.testing.recorder import RecordObserver
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
from tests.transport.tapped import TappedNetwork, TappedRun

NAME = "parity.test"
ADDRESSES = (("127.0.0.1", 1111), ("127.0.0.1", 2222))
FAR = 600.0
"""Seconds. A timer further away is QUIC's idle timeout, which a run does not wait for."""
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


class RealQuic(TappedNetwork):
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
        super().__init__(clock, random, faults, cores, recorders, after_input, observers)
        self.addresses = list(ADDRESSES)
        """The address of each side; packets to other addresses are lost."""
        self.packets = [0, 0]
        self.packets_lost = 0
        self._packet_random = (Random(random.random()), Random(random.random()))
        size = random.choice(PACKET_SIZES)
        self._options = replace(self.options, max_packet=self.options.max_packet or size)
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


class ScarceStreams(RealQuic):
    """Both sides allow fewer concurrent streams than many runs open."""

    max_streams = 12

    def new_client(self, settings: EngineConfiguration) -> Engine:
        """Return the QUIC connection of the client."""
        return super().new_client(replace(settings, max_streams=self.max_streams))

    def new_server(self, settings: EngineConfiguration, original: bytes) -> Engine:
        """Return the QUIC connection of the server, for the id that the client chose."""
        return super().new_server(replace(settings, max_streams=self.max_streams), original)


class Parity(TappedRun):
    """A run of the simulator over real QUIC; as in the API, it starts after the handshake."""

    network: RealQuic

    def __init__(self, seed: int, quic: type[RealQuic] = RealQuic) -> None:
        super().__init__(seed, quic)

    def begin(self) -> None:
        """Complete the handshake, without faults."""
        faults = self.network.faults
        self.pair.calm()
        self.network.shake_hands()
        self.network.faults = faults
