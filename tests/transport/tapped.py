"""Networks in virtual time below real transports, which tell the recorder what their cores see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import cast
from unittest.mock import patch

from aqueduct.errors import CloseCode
from aqueduct.observe.base import Observer
from aqueduct.protocol.actions import Action, ResetStream, Room, SendDatagram, WriteStream
from aqueduct.protocol.config import Config
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.protocol.outgoing import Outgoing
from aqueduct.testing.clock import VirtualClock
from aqueduct.testing.faults import Faults
from aqueduct.testing.quic import Core, VirtualQuic, sizes_of, stream_id
from aqueduct.testing.record import Record
from aqueduct.testing.recorder import RecordObserver
from aqueduct.testing.simulation import RunOutcome, Simulation
from aqueduct.wire.chanid import Side

IDLE = 5.0
"""Seconds after which a side whose peer is gone notices it."""
DRAIN = 300.0
"""Seconds until everything has ended; meanwhile frames wait for the network."""


class TappedCore:
    """A core as its transport sees it; reports all inputs and outputs to the recorder."""

    def __init__(self, core: ConnectionCore, side: Side, network: TappedNetwork) -> None:
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

    def handle_rtt(self, rtt: float, least: float | None = None) -> None:
        self._network.saw_rtt(self._side, rtt)
        self._core.handle_rtt(rtt, least)

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


class TappedNetwork(VirtualQuic):
    """Two transports, whose cores are tapped, and the network between them."""

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
        assert not any(observers), "only the recorders are supported"
        super().__init__(clock, random, faults, recorders, after_input)
        self._closed = [False, False]
        self._numbers: tuple[dict[int, int], dict[int, int]] = ({}, {})
        """The number of the core for each stream of the transport, by the side that opened it."""
        self._rtts = [0.0, 0.0]
        self._taps = [
            cast(ConnectionCore, TappedCore(cast(ConnectionCore, core), side, self))
            for side, core in zip(Side, cores, strict=True)
        ]

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


class TappedRun(Simulation):
    """A run of the simulator over a tapped network."""

    def __init__(self, seed: int, network: type[TappedNetwork]) -> None:
        # A transport needs our core at both ends.
        with (
            patch("aqueduct.testing.pair.FakeQuic", network),
            patch("aqueduct.testing.plan.DRAFT_SHARE", 0.0),
        ):
            super().__init__(seed)
        made: object = self.pair.network
        assert isinstance(made, network)
        self.network = made
        self.pair.record.backlog = DRAIN

    def begin(self) -> None:
        """Prepare the network before the simulation begins."""

    def run(self) -> RunOutcome[Record]:
        """Run the simulation to its end and check it."""
        self.begin()
        with patch("aqueduct.testing.simulation.DRAIN_TIMEOUT", DRAIN):
            return super().run()
