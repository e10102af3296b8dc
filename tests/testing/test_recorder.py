"""Tests of the recorder: which frames it records, and when it counts them as arrived."""

from aqueduct.testing.clock import VirtualClock
from aqueduct.testing.record import CoreFault, FrameArrived, FrameSent, RecordEntry, StreamEnded
from aqueduct.testing.recorder import observe_pair
from aqueduct.wire.frames import ConnectionHeaders, Frame, MessageFrame, RouteTo, Version


class Listener:
    """The observers of both sides, and their entries."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.entries: list[RecordEntry] = []
        self.client, self.server = observe_pair(self.clock, self.entries)

    def sent(self) -> list[Frame]:
        return [entry.frame for entry in self.entries if isinstance(entry, FrameSent)]

    def arrived(self) -> list[Frame]:
        return [entry.sent.frame for entry in self.entries if isinstance(entry, FrameArrived)]


MESSAGES = [MessageFrame(number, (), (), b"x" * number) for number in range(3)]
STREAM = RouteTo(0).encode() + b"".join(message.encode() for message in MESSAGES)


def test_frames_are_recorded_when_they_are_complete() -> None:
    listener = Listener()
    listener.client.stream_written(6, STREAM[:5], False)
    assert listener.sent() == [RouteTo(0)]
    listener.client.stream_written(6, STREAM[5:], True)
    assert listener.sent() == [RouteTo(0), *MESSAGES]
    assert isinstance(listener.entries[-1], StreamEnded)


def test_each_frame_arrives_with_its_last_byte() -> None:
    listener = Listener()
    listener.server.release_held()
    listener.client.stream_written(6, STREAM, True)
    for position in range(len(STREAM)):
        whole = [
            frame
            for frame, end in zip(listener.sent(), (2, 7, 13, 20), strict=True)
            if end <= position
        ]
        assert listener.arrived() == whole
        chunk = STREAM[position : position + 1]
        listener.server.stream_read(6, chunk, position == len(STREAM) - 1)
    assert listener.arrived() == [RouteTo(0), *MESSAGES]


def test_frames_of_channels_wait_until_the_server_accepts() -> None:
    listener = Listener()
    listener.client.stream_written(6, Version().encode() + STREAM, True)
    size = len(Version().encode() + STREAM)
    listener.server.stream_read(6, b"." * size, True)
    assert listener.arrived() == [Version()]
    listener.server.release_held()
    assert listener.arrived() == [Version(), RouteTo(0), *MESSAGES]


def test_frames_of_channels_wait_until_the_client_has_the_headers() -> None:
    listener = Listener()
    listener.server.stream_written(7, STREAM, True)
    listener.client.stream_read(7, STREAM, True)
    assert listener.arrived() == []
    headers = ConnectionHeaders(()).encode()
    listener.server.stream_written(3, headers, True)
    listener.client.stream_read(3, headers, True)
    assert listener.arrived() == [ConnectionHeaders(()), RouteTo(0), *MESSAGES]


def test_held_frames_of_a_reset_stream_never_arrive() -> None:
    listener = Listener()
    listener.client.stream_written(6, STREAM, False)
    listener.server.stream_read(6, STREAM, False)
    listener.client.reset_written(6, 16)
    listener.server.reset_read(6, 16)
    listener.server.release_held()
    assert listener.arrived() == []


def test_all_frames_of_a_datagram_arrive_together() -> None:
    listener = Listener()
    listener.server.release_held()
    listener.client.datagram_written(STREAM)
    assert all(entry.in_datagram for entry in listener.entries if isinstance(entry, FrameSent))
    listener.server.datagram_read(STREAM)
    assert listener.arrived() == [RouteTo(0), *MESSAGES]


def test_unreadable_bytes_are_recorded_as_a_fault() -> None:
    listener = Listener()
    listener.client.stream_written(6, b"\x77", True)
    (fault, _) = listener.entries
    assert isinstance(fault, CoreFault)
