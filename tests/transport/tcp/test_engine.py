"""One connection in QMux, in virtual time."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from aqueduct.errors import CloseCode, WouldBlock
from aqueduct.observe import NullObserver
from aqueduct.protocol.config import Config
from aqueduct.protocol.connection import Attach, ConnectionCore, Give, Mode
from aqueduct.protocol.events import (
    ConnectionEnded,
    Delivered,
    Event,
    PeerHeaders,
    Undelivered,
)
from aqueduct.transport.base import MAX_REASON
from aqueduct.transport.tcp.engine import FRAMES, MAX_DATAGRAM, URGENT, WINDOW, QmuxEngine
from aqueduct.transport.tcp.records import (
    MAX_INTEGER,
    MAX_RECORD,
    Close,
    Datagram,
    Frame,
    Parameters,
    Ping,
    RecordReader,
    StreamData,
    StreamLimit,
    StreamReset,
    decode_frame,
    encode_frame,
    encode_integer,
)
from aqueduct.wire.chanid import ENTRYPOINT, Side
from aqueduct.wire.frames import Version

VERSION = Version().encode()
USUAL = Parameters(15_000, MAX_INTEGER, MAX_INTEGER, 100_000, 65_535, MAX_RECORD)


def parse(data: bytes) -> list[Frame]:
    reader = RecordReader()
    reader.feed(data)
    frames = []
    while (record := reader.next()) is not None:
        contents, at, end = record
        while at < end:
            frame, at = decode_frame(contents, at, end)
            frames.append(frame)
    assert reader.held == 0
    return frames


def record(*frames: Frame) -> bytes:
    contents = b"".join(map(encode_frame, frames))
    return encode_integer(len(contents)) + contents


@dataclass
class End(NullObserver):
    """One side: an engine, and what came of it."""

    side: Side
    config: Config = field(default_factory=Config)
    idle_timeout: float = 15.0
    keep_alive: float | None = 5.0
    now: float = 0.0
    events: list[Event] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    """What it has sent."""
    rescued: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.core = ConnectionCore(self.side, self.config)
        peer = ("192.0.2.1", 4433)
        self.engine = QmuxEngine(self.core, peer, self.idle_timeout, self.keep_alive)
        self.engine.before_end = lambda: self.rescued.append(len(self.events))

    def receive(self, *frames: Frame) -> list[Frame]:
        """Process frames of the peer in a record; return the answer."""
        self.take(record(*frames))
        return self.flush()

    def take(self, data: bytes) -> None:
        """Process bytes of the peer, in as many turns as it takes."""
        self.engine.receive(data, self.now)
        while self.engine.is_behind:
            self.engine.resume(self.now)

    def flush(self, backlog: int = 0) -> list[Frame]:
        self.events += self.core.poll_events()
        for event in self.events:
            if isinstance(event, PeerHeaders) and self.side is Side.SERVER:
                if not self.core.is_ready and not self.core.has_ended:
                    self.core.accept((), self.now)
        sent = parse(b"".join(self.engine.flush(self.now, backlog)))
        self.events += self.core.poll_events()
        self.frames += sent
        return sent

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def ending(self) -> ConnectionEnded:
        (ended,) = self.of(ConnectionEnded)
        assert isinstance(ended, ConnectionEnded)
        return ended


def started(side: Side = Side.SERVER, **options: object) -> End:
    """Return a side that has the parameters of its peer."""
    end = End(side, **options)  # type: ignore[arg-type]
    end.engine.start(0.0)
    end.receive(USUAL)
    return end


def joined(delay: float = 0.0) -> tuple[End, End]:
    """Return two sides that have each other's headers."""
    ends = End(Side.CLIENT), End(Side.SERVER)
    for end in ends:
        end.engine.start(0.0)
    for _ in range(4):
        exchange(*ends, delay)
    assert all(end.core.is_ready for end in ends)
    return ends


def exchange(client: End, server: End, delay: float = 0.0) -> None:
    """Let each side send once, and time pass."""
    for one, other in ((client, server), (server, client)):
        frames = one.flush()
        for end in (client, server):
            end.now += delay
        if frames:
            other.engine.receive(record(*frames), other.now)


def unreliable(client: End, server: End) -> int:
    """Return an unreliable channel from the client to the server."""
    attach = Attach(Give.RECEIVER, mode=Mode.UNRELIABLE)
    sent = client.core.send_message(ENTRYPOINT, b"", client.now, attach=[attach])
    exchange(client, server)
    server.core.take(ENTRYPOINT, 10, server.now)
    exchange(client, server)
    return sent.channels[0]


# The start


def test_the_first_frame_states_the_parameters_and_a_ping_follows() -> None:
    """AQ-TCP-4."""
    end = End(Side.CLIENT, Config(max_streams=5_000))
    assert end.flush() == []
    end.engine.start(0.0)
    first, second, *others = end.flush()
    assert first == Parameters(15_000, MAX_INTEGER, MAX_INTEGER, 5_000, 65_535, MAX_RECORD)
    assert isinstance(second, StreamData), "the headers leave without the peer's parameters"
    assert others == [Ping(1, is_answer=False)]


@pytest.mark.parametrize(
    ("frames", "rule"),
    [
        ([Ping(1, False)], "AQ-TCP-4"),
        ([StreamData(2, 0, b"x", False), USUAL], "AQ-TCP-4"),
        ([USUAL, USUAL], "AQ-TCP-4"),
        ([Parameters(0, 10, MAX_INTEGER, 9, 9)], "AQ-TCP-4"),
        ([Parameters(0, MAX_INTEGER, 10, 9, 9)], "AQ-TCP-4"),
        ([Parameters(0, MAX_INTEGER, MAX_INTEGER, 9, 9, 100)], "AQ-TCP-3"),
        ([Parameters(0, MAX_INTEGER, MAX_INTEGER, 9, 0)], "AQ-CONN-8"),
        ([USUAL, StreamData(4, 0, b"x", False)], "AQ-STREAM-6"),
        ([USUAL, StreamData(6, 0, b"x", False)], "AQ-TCP-7"),
        ([USUAL, StreamData(3, 0, b"x", False)], "AQ-TCP-7"),
        ([USUAL, StreamData(2, 1, b"x", False)], "AQ-TCP-7"),
        ([USUAL, StreamData(2, 0, VERSION, False), StreamData(2, 0, b"x", False)], "AQ-TCP-7"),
        ([USUAL, StreamReset(2, 16, 0), StreamReset(2, 16, 0)], "AQ-TCP-7"),
        ([USUAL, Ping(2, True)], "AQ-TCP-9"),
    ],
)
def test_a_violation_closes_the_connection_with_its_rule(frames: list[Frame], rule: str) -> None:
    """AQ-CODE-3: and nothing after it is processed."""
    end = End(Side.SERVER)
    end.engine.start(0.0)
    sent = end.receive(*frames, Close(CloseCode.NO_ERROR, "not read"))
    close = sent[-1]
    assert isinstance(close, Close)
    assert (close.code, close.reason[: len(rule)]) == (CloseCode.PROTOCOL_VIOLATION, rule)
    assert end.engine.has_closed
    assert not end.engine.has_ended
    end.engine.receive(record(Close(CloseCode.NO_ERROR, "ignored")), 0.0)
    assert end.ending.code == CloseCode.PROTOCOL_VIOLATION


# Streams


def test_streams_are_counted_and_the_limit_is_raised_as_they_end() -> None:
    """AQ-TCP-8."""
    end = started(config=Config(max_streams=8))
    for number in range(20):
        stream = number << 2 | 2
        end.receive(StreamData(stream, 0, b"", False), StreamReset(stream, 16, 0))
    limits = [frame.streams for frame in end.frames if isinstance(frame, StreamLimit)]
    assert limits == [10, 12, 14, 16, 18, 20, 22, 24, 26, 28]


def test_more_streams_at_once_than_allowed_are_over_the_limit() -> None:
    """AQ-TCP-8."""
    end = started(config=Config(max_streams=8))
    many = [StreamData(number << 2 | 2, 0, b"", False) for number in range(9)]
    close = end.receive(*many)[-1]
    assert isinstance(close, Close)
    assert (close.code, close.reason[:8]) == (CloseCode.LIMIT_EXCEEDED, "AQ-TCP-8")


def test_a_limit_of_streams_and_an_answer_wait_while_the_peer_reads_nothing() -> None:
    """AQ-TCP-8 and AQ-TCP-9: else a peer could pile them up in this side's memory."""
    end = started(config=Config(max_streams=8))
    full = WINDOW + URGENT
    for number in range(1_000):
        stream = number << 2 | 2
        opened = StreamData(stream, 0, b"", False)
        end.engine.receive(record(Ping(number, False), opened, StreamReset(stream, 16, 0)), 0.0)
        assert end.flush(backlog=full) == []
    assert end.flush() == [StreamLimit(1_008), Ping(999, is_answer=True)]


@pytest.mark.parametrize(
    "tiny",
    [
        StreamLimit(0),
        StreamData(6, 0, b"", False),
        Ping(7, is_answer=False),
    ],
)
def test_tiny_frames_wait_for_the_next_turns(tiny: Frame) -> None:
    end = started()
    end.receive(StreamData(2, 0, b"", False))
    close = Close(CloseCode.GOING_AWAY, "behind them")
    frames = record(*[tiny] * (2 * FRAMES)) + record(*[tiny] * FRAMES) + record(close)
    end.engine.receive(frames, 0.0)
    turns = 0
    while end.engine.is_behind:
        assert not end.engine.has_ended
        end.engine.resume(0.0)
        turns += 1
    assert turns == 3
    end.flush()
    assert end.ending.reason == "behind them"


def test_a_record_of_padding_takes_one_step() -> None:
    end = started()
    padding = encode_integer(MAX_RECORD) + bytes(MAX_RECORD)
    end.engine.receive(padding * (FRAMES - 1), 0.0)
    assert not end.engine.is_behind


@pytest.mark.parametrize(
    "frame",
    [
        StreamLimit(0),
        Ping(7, is_answer=False),
        StreamData(2, 0, b"", False),
    ],
)
def test_an_unaccepted_client_sends_little_that_carries_no_data(frame: Frame) -> None:
    """AQ-COST-3."""
    end = started(config=Config(max_unseen=10_000))
    size = len(encode_frame(frame))
    many = record(*[frame] * 500)
    while not end.of(ConnectionEnded):
        end.take(many)
        end.flush()
        size += 500 * len(encode_frame(frame))
        assert size < 15_000 + 500 * len(encode_frame(frame))
    assert size > 10_000
    assert end.ending.code == CloseCode.LIMIT_EXCEEDED
    assert end.ending.reason.startswith("AQ-COST-3")


def test_an_accepted_client_may_send_much_that_carries_no_data() -> None:
    """AQ-COST-3."""
    _, server = joined()
    for _ in range(100):
        server.receive(*[StreamLimit(0)] * 1_000)
    assert not server.core.has_ended


def test_messages_wait_for_the_peers_stream_limit() -> None:
    """AQ-STREAM-9 and AQ-TCP-8."""
    client, server = joined()
    attach = Attach(Give.RECEIVER, mode=Mode.UNORDERED)
    sent = client.core.send_message(ENTRYPOINT, b"", 0.0, attach=[attach])
    exchange(client, server)
    client.engine._credit.set_limit(client.engine._credit.opened + 100)
    for _ in range(200):
        client.core.send(sent.channels[0], b"x", 0.0)
    opened = {frame.stream for frame in client.flush() if isinstance(frame, StreamData)}
    assert 10 < len(opened) < 100
    more = client.receive(StreamLimit(1_000))
    assert len({frame.stream for frame in more if isinstance(frame, StreamData)}) > 100


def test_a_large_message_is_cut_into_frames_that_fit_a_record() -> None:
    client, server = joined()
    client.core.send(ENTRYPOINT, bytes(150_000), 0.0)
    sizes = [len(frame.data) for frame in client.flush() if isinstance(frame, StreamData)]
    assert sum(sizes) > 150_000
    assert max(sizes) < MAX_RECORD
    server.engine.receive(b"".join(map(record, client.frames[-len(sizes) :])), 0.0)
    (message,) = server.core.take(ENTRYPOINT, 10, 0.0)
    assert message.size == 150_000


def test_the_records_of_a_large_flush_are_full() -> None:
    client, _ = joined()
    for _ in range(15):
        client.core.send(ENTRYPOINT, bytes(64_000), 0.0)
    sizes = [len(each) for each in client.engine.flush(0.0, 0)]
    assert len(sizes) == WINDOW // MAX_RECORD
    assert min(sizes) > MAX_RECORD - 100
    assert max(sizes) <= MAX_RECORD + 4


def test_a_flush_leaves_what_the_socket_has_no_room_for() -> None:
    client, _ = joined()
    for _ in range(15):
        client.core.send(ENTRYPOINT, bytes(64_000), 0.0)
    assert client.flush(backlog=WINDOW) == []
    sent = client.flush(backlog=WINDOW // 2)
    size = sum(len(frame.data) for frame in sent if isinstance(frame, StreamData))
    assert 0 < size <= WINDOW // 2 + 1_000
    assert client.engine.has_more
    client.core.close_connection(CloseCode.REFUSED, "now", 0.0)
    assert [type(frame) for frame in client.flush(backlog=WINDOW + URGENT)] == [Close]


# Time


def test_pings_measure_the_round_trip_and_prove_what_has_arrived() -> None:
    """AQ-TCP-9."""
    client, server = joined(delay=0.01)
    assert client.engine.statistics()["rtt"] == pytest.approx(0.02, abs=0.011)
    client.core.send(ENTRYPOINT, b"x", client.now)
    assert not client.engine.is_drained(), "it waits"
    while not client.engine.is_drained():
        assert client.now < 1.0
        exchange(client, server, 0.01)
    server.core.take(ENTRYPOINT, 10, server.now)


def test_a_side_answers_the_last_of_many_pings() -> None:
    """AQ-TCP-9."""
    end = started()
    answers = end.receive(*(Ping(number, False) for number in range(1_000)))
    assert [frame for frame in answers if isinstance(frame, Ping) and frame.is_answer] == [
        Ping(999, is_answer=True)
    ]


def test_a_side_has_one_ping_without_an_answer() -> None:
    """AQ-TCP-9."""
    client, _ = joined()
    client.frames.clear()
    for number in range(100):
        client.now += 0.1
        client.core.send(ENTRYPOINT, b"%d" % number, client.now)
        client.flush()
    assert sum(isinstance(frame, Ping) for frame in client.frames) == 1


def test_datagrams_are_dropped_while_what_was_sent_before_is_late_and_nacked() -> None:
    """AQ-TCP-10."""
    client, server = joined(delay=0.005)
    channel = unreliable(client, server)
    stalled: list[Frame] = []
    for number in range(10):
        client.core.send(channel, b"%d" % number, client.now)
        stalled += client.flush()
        client.now += 0.02
        server.now = client.now
    sent = sum(isinstance(frame, Datagram) for frame in stalled)
    assert 2 <= sent <= 5, "those of the first 70 ms"
    server.engine.receive(record(*stalled), server.now)  # the path carries again
    for _ in range(60):
        exchange(client, server, 0.005)
        for end in (client, server):
            if (due := end.engine.next_timer()) is not None and due <= end.now:
                end.engine.handle_timer(end.now)

    def fates(kind: type[Delivered | Undelivered]) -> int:
        found = client.of(kind)
        return sum(
            stop - start
            for event in found
            if isinstance(event, Delivered | Undelivered) and event.channel == channel
            for start, stop in event.ranges
        )

    assert (fates(Delivered), fates(Undelivered)) == (sent, 10 - sent)
    client.core.send(channel, b"in time", client.now)
    assert any(isinstance(frame, Datagram) for frame in client.flush())


def test_datagrams_have_the_size_that_both_sides_take() -> None:
    end = started(Side.CLIENT)
    assert end.core.output.max_datagram == MAX_DATAGRAM
    other = End(Side.CLIENT)
    other.engine.start(0.0)
    other.receive(Parameters(0, MAX_INTEGER, MAX_INTEGER, 9, 1_003))
    assert other.core.output.max_datagram == 1_000


def test_a_silent_peer_is_pinged_and_then_taken_for_dead() -> None:
    """AQ-IDLE-1 and AQ-IDLE-2."""
    client, _ = joined()
    client.frames.clear()
    while not client.engine.has_ended:
        due = client.engine.next_timer()
        assert due is not None
        client.now = max(due, client.now + 0.001)
        client.engine.handle_timer(client.now)
        client.flush()
    assert client.now == pytest.approx(15.0, abs=0.1)
    assert (client.ending.code, client.ending.by_peer) == (CloseCode.IDLE, False)
    assert client.ending.reason.startswith("nothing came from 192.0.2.1:4433 for 15.")
    assert [type(frame) for frame in client.frames] == [Ping, Close]


def test_input_that_waits_for_its_turn_keeps_a_connection_alive() -> None:
    """AQ-IDLE-1: the socket is not read meanwhile."""
    end = started(idle_timeout=1.0, keep_alive=None)
    end.engine.receive(record(*[StreamLimit(0)] * (20 * FRAMES)), 0.0)
    while end.engine.is_behind:
        end.now += 0.3
        end.engine.handle_timer(end.now)
        end.engine.resume(end.now)
    assert end.now > 5
    assert not end.engine.has_ended


def test_an_answer_that_waits_in_the_input_does_not_make_datagrams_late() -> None:
    """AQ-TCP-10: the path is not slow, but this side is."""
    client, server = joined(delay=0.005)
    channel = unreliable(client, server)
    rtt = client.engine.round_trip
    client.now += 1
    client.core.send(channel, b"pings", client.now)
    pings = [frame for frame in client.flush() if isinstance(frame, Ping)]
    answers = [Ping(ping.number, is_answer=True) for ping in pings]
    assert answers
    client.engine.receive(record(*[StreamLimit(0)] * (2 * FRAMES), *answers), client.now)
    assert client.engine.is_behind
    client.now += 0.5
    client.core.send(channel, b"in time", client.now)
    assert any(isinstance(frame, Datagram) for frame in client.flush())
    for _ in range(3):
        client.engine.resume(client.now)
    assert client.engine.round_trip == rtt


def test_the_smaller_idle_timeout_counts() -> None:
    """AQ-IDLE-1."""
    end = End(Side.CLIENT, keep_alive=None)
    end.engine.start(0.0)
    end.receive(Parameters(2_000, MAX_INTEGER, MAX_INTEGER, 9, 9))
    end.now = 2.1
    end.engine.handle_timer(end.now)
    assert end.engine.has_ended


# The end


def test_a_close_of_the_peer_has_its_code_and_reason() -> None:
    """AQ-TCP-11."""
    end = started()
    assert end.receive(Close(CloseCode.GOING_AWAY, "see you")) == []
    assert end.ending == ConnectionEnded(CloseCode.GOING_AWAY, "see you", True)
    assert end.rescued == [0], "the owner takes what has arrived before"


def test_a_close_of_the_peers_transport_is_a_failure_of_the_transport() -> None:
    """AQ-CODE-4."""
    end = started()
    end.receive(Close(7, "FRAME_ENCODING_ERROR", by_application=False))
    assert end.ending == ConnectionEnded(CloseCode.TRANSPORT, "FRAME_ENCODING_ERROR", True)


@pytest.mark.parametrize("cause", ["", "Connection reset by peer"])
def test_input_that_ends_without_a_close_is_a_lost_peer(cause: str) -> None:
    """AQ-TCP-11."""
    end = started()
    end.engine.handle_end_of_input(cause, 1.0)
    end.flush()
    assert (end.ending.code, end.ending.by_peer) == (CloseCode.IDLE, False)
    assert "192.0.2.1:4433 disconnected without a close" in end.ending.reason
    assert cause in end.ending.reason
    end.engine.handle_end_of_input("again", 2.0)
    assert len(end.of(ConnectionEnded)) == 1


def test_a_close_leaves_behind_what_was_sent_with_a_short_reason() -> None:
    """AQ-TCP-11."""
    client, _ = joined()
    client.core.send(ENTRYPOINT, bytes(100_000), 0.0)
    client.core.close_connection(CloseCode.NO_ERROR, "x" * 10_000, 0.0)
    *data, close = [frame for frame in client.flush() if not isinstance(frame, Ping)]
    assert sum(len(frame.data) for frame in data if isinstance(frame, StreamData)) > 100_000
    assert isinstance(close, Close)
    assert len(close.reason.encode()) <= MAX_REASON
    assert client.engine.has_closed


def test_an_error_drops_what_has_not_left() -> None:
    client, _ = joined()
    client.core.send(ENTRYPOINT, bytes(100_000), 0.0)
    client.core.close_connection(CloseCode.INTERNAL, "broken", 0.0)
    assert [type(frame) for frame in client.flush()] == [Close]


def test_a_core_that_ends_before_the_handshake_has_nothing_to_send() -> None:
    end = End(Side.CLIENT)
    end.core.close_connection(CloseCode.NO_ERROR, "", 0.0)
    assert end.flush() == []
    assert end.engine.has_closed


def test_a_receiver_without_credit_blocks_its_sender() -> None:
    """The core's windows bound what a side holds; records are always read (AQ-TCP-4)."""
    client, server = joined()
    with suppress(WouldBlock):
        for _ in range(100):
            client.core.send(ENTRYPOINT, bytes(64_000), 0.0)
            exchange(client, server)
        raise AssertionError("the window is unlimited")
    assert server.core.held_bytes <= 1024 * 1024 + 64_000
