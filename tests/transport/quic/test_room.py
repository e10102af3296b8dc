"""What QUIC is handed at once: as much as is in flight for the round trip of the path itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from aqueduct.protocol.actions import Room
from aqueduct.transport.quic.room import IN_FLIGHT, IN_FLIGHT_RATE, RoomMeter

MANY = 1 << 40


class Path:
    """A connection whose packets take a given time."""

    def __init__(self, seconds: float) -> None:
        self._native = SimpleNamespace(
            bytes_in_flight=0, congestion_window=MANY, stream_limits=(100, 100)
        )
        self._quic: Any = SimpleNamespace(
            core=self._native, bytes_in_flight=0, spare_room=lambda: 0
        )
        self.meter = RoomMeter(cast("Any", self._quic))
        self._measured = 0
        self.answer(seconds)

    def answer(self, seconds: float, times: int = 1, *, in_flight: int = 0) -> None:
        """Let acks come after so long."""
        self._quic.bytes_in_flight = self._native.bytes_in_flight = in_flight
        for _ in range(times):
            self._measured += 1
            self.meter.add_round_trip(seconds, seconds + self._measured * 1e-9)

    def room(self) -> int:
        """Return how many bytes of messages are taken with none in flight."""
        room = Room()
        self.meter.measure(room, is_early=False)
        return room.bytes


def test_more_is_in_flight_on_a_longer_path() -> None:
    assert Path(0.000_1).room() == IN_FLIGHT
    assert Path(0.1).room() == int(0.1 * IN_FLIGHT_RATE)


def test_bulk_that_was_just_acknowledged_does_not_make_the_path_longer() -> None:
    path = Path(0.000_1)
    path.meter.add_sent(IN_FLIGHT)
    path.answer(0.01, 100, in_flight=IN_FLIGHT)
    path.answer(0.01)
    assert path.room() == IN_FLIGHT


def test_bulk_that_is_acknowledged_at_once_does_not_make_the_path_longer() -> None:
    path = Path(0.000_1)
    for _ in range(100):
        path.meter.add_sent(IN_FLIGHT)
        path.answer(0.01)
    assert path.room() == IN_FLIGHT


def test_a_path_that_becomes_longer_is_learnt_from_small_things() -> None:
    path = Path(0.000_1)
    for _ in range(40):
        path.meter.add_sent(100)
        path.answer(0.1)
    assert path.room() == int(0.1 * IN_FLIGHT_RATE)


def test_packets_without_acks_are_no_measurements() -> None:
    path = Path(0.000_1)
    for _ in range(100):
        path.meter.add_round_trip(0.1, 0.1)
    assert path.room() == IN_FLIGHT


def test_a_shorter_round_trip_counts_at_once() -> None:
    path = Path(0.1)
    path.answer(0.02, in_flight=IN_FLIGHT)
    path.answer(0.02)
    assert path.room() == int(0.02 * IN_FLIGHT_RATE)


def test_the_path_is_as_long_as_its_shortest_round_trip() -> None:
    path = Path(0.001)
    path.answer(0.000_2, in_flight=IN_FLIGHT)
    path.answer(0.01, 100, in_flight=IN_FLIGHT)
    assert 0.000_2 <= path.meter.least < 0.000_3


def test_one_slow_answer_does_not_make_the_path_longer() -> None:
    path = Path(0.000_1)
    path.answer(0.000_1, 40)
    path.answer(0.005)
    path.answer(0.01, 100, in_flight=IN_FLIGHT)
    assert path.meter.least < 0.000_2


def test_a_path_that_becomes_longer_has_a_longer_shortest_round_trip() -> None:
    path = Path(0.000_1)
    path.answer(0.1, 70)
    assert 0.1 <= path.meter.least < 0.1001
