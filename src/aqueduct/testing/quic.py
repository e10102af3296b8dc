"""A simulated QUIC between two cores: streams overtake each other, and datagrams get lost.

Each stream delivers its bytes once and in order, cut and joined at random. Streams are not ordered
among each other. A datagram arrives late, reordered or never, but not twice: QUIC drops duplicate
packets. All choices come from one seeded RNG, so a run repeats exactly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from aqueduct.observe.base import Observer
from aqueduct.protocol.actions import (
    Action,
    CloseConnection,
    ResetStream,
    Room,
    SendDatagram,
    WriteStream,
)
from aqueduct.protocol.config import SAFE_DATAGRAM
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.protocol.outgoing import Outgoing
from aqueduct.testing.clock import StuckTimer, VirtualClock
from aqueduct.testing.faults import Faults
from aqueduct.testing.recorder import RecordObserver
from aqueduct.wire.chanid import Side

RTT_PROBABILITY = 0.05
DATAGRAM_LIMITS = (700, 1_170, 1_422, 15_970)
"""Bytes of the largest datagram, as the path changes."""
LIMIT_PROBABILITY = 0.05
TURNS_AT_ONE_INSTANT = 1000
PACE = 0.001
"""Seconds after which a transport with limited room takes more."""


class Core(Protocol):
    """The methods of a core that a transport calls."""

    def handle_stream_data(self, stream: int, data: bytes, fin: bool, now: float) -> None: ...
    def handle_stream_reset(self, stream: int, code: int, now: float) -> None: ...
    def handle_datagram(self, data: bytes, now: float) -> None: ...
    def handle_timer(self, now: float) -> None: ...
    def handle_rtt(self, rtt: float, least: float | None = None) -> None: ...
    def handle_connection_lost(self, code: int, reason: str, by_peer: bool, now: float) -> None: ...
    def poll_actions(self, room: Room | None = None) -> list[Action]: ...
    @property
    def output(self) -> Outgoing: ...
    @property
    def has_ended(self) -> bool: ...
    def next_timer(self) -> float | None: ...


class _StreamInFlight:
    """One stream: what was written and has not arrived yet."""

    __slots__ = ("code", "id", "number", "pieces", "scheduled", "side", "stop")

    def __init__(self, side: Side, number: int) -> None:
        self.side = side
        self.number = number
        self.id = stream_id(number, side)
        # (when it arrives, data, fin)
        self.pieces: deque[tuple[float, bytes, bool]] = deque()
        self.scheduled = False
        # Set by a reset: when it arrives, behind the remaining pieces.
        self.stop: float | None = None
        self.code = 0


def stream_id(number: int, side: Side) -> int:
    """Return QUIC's id of the stream that a core counts as its ``number``-th."""
    return number * 4 + 2 + side


def sizes_of(actions: Sequence[Action]) -> tuple[tuple[int, int], ...]:
    """Return the stream and the size of each write, and of each datagram with stream -1."""
    return tuple(
        (action.stream if isinstance(action, WriteStream) else -1, len(action.data))
        for action in actions
        if isinstance(action, WriteStream | SendDatagram)
    )


class VirtualQuic(ABC):
    """Two connected sides in virtual time: whether each is alive, and when its timer runs."""

    def __init__(
        self,
        clock: VirtualClock,
        random: Random,
        faults: Faults,
        recorders: Sequence[RecordObserver],
        after_input: Callable[[Side], None],
    ) -> None:
        self.clock = clock
        self.random = random
        self.faults = faults
        self.active_side = Side.CLIENT
        """The side whose core got the last input: the one that raised, if a core raised."""
        self.before_end: Callable[[Side], None] | None = None
        """Called before a core is told that the connection is lost, as `TransportOwner` is."""
        self._recorders = tuple(recorders)
        self._after_input = after_input
        self._alive = [True, True]
        self._timers: list[float | None] = [None, None]
        self._instant = [(-1.0, 0), (-1.0, 0)]

    def is_alive(self, side: Side) -> bool:
        """Return whether this side still has a connection."""
        return self._alive[side]

    @abstractmethod
    def flush(self, side: Side) -> None:
        """Send what the core of ``side`` queued, and set its timer."""

    def kill(self, code: int, reason: str, gap: float) -> None:
        """End the connection: one side learns it now, the other ``gap`` seconds later."""
        first = Side(self.random.randrange(2))
        self._lose((first, code, reason, False))
        self.clock.after(gap, self._lose, (first.other, code, reason, False))

    @abstractmethod
    def _lose(self, news: tuple[Side, int, str, bool]) -> None:
        """Tell a core that the connection ended: side, code, reason, and whether by the peer."""

    @abstractmethod
    def _next_timer(self, side: Side) -> float | None:
        """Return when to call `_handle_timer`, if at all."""

    @abstractmethod
    def _handle_timer(self, side: Side) -> None:
        """Run the timer of a side."""

    def _set_timer(self, side: Side) -> None:
        due = self._next_timer(side)
        waiting = self._timers[side]
        if due is None or (waiting is not None and waiting <= due):
            return
        self._timers[side] = due
        faults = self.faults
        at = due
        if faults.late_timer and self.random.random() < faults.late_timer:
            at += faults.lateness * self.random.random()
        self.clock.at(at, self._timer_due, (side, due))

    def _timer_due(self, timer: tuple[Side, float]) -> None:
        side, wanted = timer
        if self._timers[side] == wanted:
            self._timers[side] = None
            self._handle_timer(side)

    def _count_turns(self, side: Side, now: float) -> None:
        instant, turns = self._instant[side]
        turns = turns + 1 if instant == now else 1
        self._instant[side] = (now, turns)
        if turns > TURNS_AT_ONE_INSTANT:
            raise StuckTimer(f"the {side.name.lower()}'s timer stays at {now:.6f}")

    def _settle(self, side: Side) -> None:
        self._after_input(side)
        self.flush(side)


class FakeQuic(VirtualQuic):
    """Carries the actions of two cores to each other, and runs their timers.

    ``recorders`` write the run down. ``observers`` are further ones, by side. ``after_input`` is
    called after each input of a core, before its actions leave.
    """

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
        super().__init__(clock, random, faults, recorders, after_input)
        self.datagrams_lost = 0
        self._cores = tuple(cores)
        self._observers: tuple[tuple[Observer, ...], ...] = tuple(
            (recorder, *others) for recorder, others in zip(recorders, observers, strict=True)
        )
        self._streams: tuple[dict[int, _StreamInFlight], dict[int, _StreamInFlight]] = ({}, {})
        self._path_random = Random(repr(faults))
        """Draws the sizes of datagrams, so that they do not change all other choices of a seed."""
        self._largest = [SAFE_DATAGRAM, SAFE_DATAGRAM]
        """The largest datagram that each core may send."""
        self._packed_for = [0, 0]
        """The largest datagram that may wait at each core; 0 if none does."""
        self._is_paced = [False, False]
        """Whether a side has to wait until it may send messages again."""

    def flush(self, side: Side) -> None:
        """Send what the core of ``side`` queued, and set its timer."""
        core = self._cores[side]
        # Datagrams that waited were packed for the path as it was.
        packed_for = max(self._packed_for[side], self._largest[side])
        # A core that knows only the draft has a size of its own.
        is_told = self._path_random.random() < LIMIT_PROBABILITY
        if is_told and isinstance(core, ConnectionCore):
            self._largest[side] = self._path_random.choice(DATAGRAM_LIMITS)
            core.handle_datagram_limit(self._largest[side])
        if self.faults.room and self.faults.holds_datagrams and not core.has_ended:
            self._perform(side, self._poll_control(core), packed_for)
        self._perform(side, core.poll_actions(self._room(side)), packed_for)
        self._packed_for[side] = packed_for if core.output.is_waiting else 0
        self._set_timer(side)
        if core.output.is_waiting and self._alive[side] and not self._is_paced[side]:
            self._is_paced[side] = True
            self.clock.after(PACE, self._continue, side)

    @staticmethod
    def _poll_control(core: Core) -> list[Action]:
        """Return what carries no message, which a transport without room takes as well."""
        room = Room()
        room.urgent, room.bytes = room.bytes, 0
        core.output.holds_datagrams = True
        try:
            return core.poll_actions(room)
        finally:
            core.output.holds_datagrams = False

    def _perform(self, side: Side, actions: list[Action], packed_for: int) -> None:
        """Carry out what a core wants to send; ``packed_for`` is what its datagrams fit."""
        if actions and self._alive[side]:
            self._recorders[side].polled(sizes_of(actions))
        for action in actions:
            if not self._alive[side]:
                break
            if isinstance(action, WriteStream):
                self._write(side, action.stream, action.data, action.fin)
            elif isinstance(action, SendDatagram):
                self._send_datagram(side, action.data, packed_for)
            elif isinstance(action, ResetStream):
                self._reset(side, action.stream, action.code)
            else:
                self._close(side, action)

    def _room(self, side: Side) -> Room:
        """Return what the transport takes now; a core that has ended waits for nothing."""
        room = Room()
        if self.faults.room and not self._cores[side].has_ended:
            room.urgent = 0 if self.faults.holds_datagrams else room.bytes
            room.bytes = 0 if self._is_paced[side] else self.faults.room
        return room

    def _continue(self, side: Side) -> None:
        self._is_paced[side] = False
        if self._alive[side]:
            self.flush(side)

    # Streams

    def _write(self, side: Side, number: int, data: bytes, fin: bool) -> None:
        stream = self._streams[side].get(number)
        if stream is None:
            stream = self._streams[side][number] = _StreamInFlight(side, number)
        for observer in self._observers[side]:
            observer.stream_written(stream.id, data, fin)
        assert stream.stop is None, f"stream {number} was written after it was reset"
        pieces = stream.pieces
        for piece, last in self._cut(data):
            due = self._arrival()
            if pieces:
                before = pieces[-1][0]
                if due < before or self.random.random() < self.faults.merge:
                    due = before
            pieces.append((due, piece, fin and last))
        self._schedule(stream)

    def _cut(self, data: bytes) -> list[tuple[bytes, bool]]:
        size = len(data)
        if size < 2 or self.random.random() >= self.faults.split:
            return [(data, True)]
        # Most errors between two pieces show right behind the first frames, so cut often there.
        ends = (size, min(size, 8))
        chosen = {
            self.random.randrange(1, self.random.choice(ends))
            for _ in range(self.random.randint(1, 3))
        }
        cuts = sorted(chosen)
        starts = [0, *cuts]
        stops = [*cuts, size]
        return [(data[start:stop], stop == size) for start, stop in zip(starts, stops, strict=True)]

    def _schedule(self, stream: _StreamInFlight) -> None:
        if stream.scheduled:
            return
        if stream.pieces:
            due = stream.pieces[0][0]
        elif stream.stop is not None:
            due = stream.stop
        else:
            return
        stream.scheduled = True
        self.clock.at(due, self._stream_due, stream)

    def _stream_due(self, stream: _StreamInFlight) -> None:
        stream.scheduled = False
        side = stream.side.other
        if not self._alive[side]:
            return
        now = self.clock.now
        pieces = stream.pieces
        if pieces and pieces[0][0] <= now:
            _, data, fin = pieces.popleft()
            merge = self.faults.merge
            while pieces and pieces[0][0] <= now and self.random.random() < merge:
                _, more, fin = pieces.popleft()
                data += more
            if fin:
                del self._streams[stream.side][stream.number]
                stream.stop = None
            for observer in self._observers[side]:
                observer.stream_read(stream.id, data, fin)
            self.active_side = side
            self._report_rtt(side)
            self._cores[side].handle_stream_data(stream.id, data, fin, now)
            self._settle(side)
        elif stream.stop is not None and not pieces:
            del self._streams[stream.side][stream.number]
            for observer in self._observers[side]:
                observer.reset_read(stream.id, stream.code)
            self.active_side = side
            self._cores[side].handle_stream_reset(stream.id, stream.code, now)
            self._settle(side)
            return
        self._schedule(stream)

    def _reset(self, side: Side, number: int, code: int) -> None:
        for observer in self._observers[side]:
            observer.reset_written(stream_id(number, side), code)
        stream = self._streams[side].get(number)
        if stream is None or stream.stop is not None:
            # The whole stream has arrived, or it was never opened: there is nothing to reset.
            return
        # QUIC may have sent any part of the remaining pieces before the reset.
        keep = self.random.randint(0, len(stream.pieces))
        while len(stream.pieces) > keep:
            stream.pieces.pop()
        if stream.pieces and stream.pieces[-1][2]:
            return
        stream.code = code
        stream.stop = self._arrival()
        if stream.pieces:
            stream.stop = max(stream.stop, stream.pieces[-1][0])
        self._schedule(stream)

    # Datagrams

    def _send_datagram(self, side: Side, data: bytes, packed_for: int) -> None:
        size, largest = len(data), self._largest[side]
        assert size <= max(packed_for, largest), f"AQ-SEND-8: {size} bytes in one datagram"
        for observer in self._observers[side]:
            observer.datagram_written(data)
        faults = self.faults
        now = self.clock.now
        due = now + faults.delay + faults.jitter * self.random.random()
        lost = self.random.random() < faults.loss or size > largest
        if lost or faults.blackout_end(now) is not None or faults.blackout_end(due) is not None:
            self.datagrams_lost += 1
            return
        self.clock.at(due, self._datagram_due, (side.other, data))

    def _datagram_due(self, arrival: tuple[Side, bytes]) -> None:
        side, data = arrival
        if not self._alive[side]:
            return
        for observer in self._observers[side]:
            observer.datagram_read(data)
        self.active_side = side
        self._cores[side].handle_datagram(data, self.clock.now)
        self._settle(side)

    # Time

    def _arrival(self) -> float:
        """Return when reliable data that leaves now arrives."""
        faults = self.faults
        random = self.random.random
        blackout = faults.blackout_end(self.clock.now)
        start = self.clock.now if blackout is None else blackout
        due = start + faults.delay
        if faults.jitter:
            due += faults.jitter * random()
        while faults.loss and random() < faults.loss:
            due += faults.recovery
        blackout = faults.blackout_end(due)
        return due if blackout is None else blackout + faults.delay

    def _next_timer(self, side: Side) -> float | None:
        return self._cores[side].next_timer() if self._alive[side] else None

    def _handle_timer(self, side: Side) -> None:
        if not self._alive[side]:
            return
        due = self._cores[side].next_timer()
        now = self.clock.now
        spurious = self.random.random() < self.faults.spurious_timer
        if spurious or (due is not None and due <= now):
            self.active_side = side
            self._count_turns(side, now)
            self._cores[side].handle_timer(now)
            self._settle(side)
        else:
            self._set_timer(side)

    def _report_rtt(self, side: Side) -> None:
        if self.random.random() < RTT_PROBABILITY:
            faults = self.faults
            rtt = 2 * faults.delay + faults.jitter * (0.5 + self.random.random())
            rtt = max(rtt, 0.0001)
            self._recorders[side].rtt_measured(rtt)
            self._cores[side].handle_rtt(rtt)

    # The end of the connection

    def _close(self, side: Side, action: CloseConnection) -> None:
        self._recorders[side].connection_closed(action.code, action.reason)
        self._alive[side] = False
        self.clock.at(self._arrival(), self._lose, (side.other, action.code, action.reason, True))

    def _lose(self, news: tuple[Side, int, str, bool]) -> None:
        side, code, reason, by_peer = news
        if not self._alive[side]:
            return
        self._alive[side] = False
        self.active_side = side
        if self.before_end is not None:
            self.before_end(side)
        self._recorders[side].connection_lost(code, reason, by_peer)
        self._cores[side].handle_connection_lost(code, reason, by_peer, self.clock.now)
        self._after_input(side)
