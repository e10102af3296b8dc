from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from aqueduct.observe.base import ObservedConnection
from aqueduct.observe.fanout import FanOut
from aqueduct.observe.trace import Trace
from aqueduct.observe.trace.observer import Receiving, TraceObserver
from aqueduct.protocol.events import (
    ConnectionEnded,
    Delivered,
    End,
    Event,
    ReceiverEnded,
    SenderEnded,
    Undelivered,
)
from aqueduct.wire.chanid import Side
from aqueduct.wire.frames import (
    Attachment,
    CloseReceiver,
    ConnectionHeaders,
    FinishSender,
    MessageFrame,
    MessageRun,
    RouteTo,
    message_head,
)


def observed(side: Side) -> ObservedConnection:
    return ObservedConnection("c0ffee", side.name.lower(), ("127.0.0.1", 4433))


class Bench:
    """An observer and what it wrote."""

    def __init__(self, directory: Path, side: Side = Side.CLIENT) -> None:
        self.directory = directory
        self.trace = Trace(directory)
        self.observer = TraceObserver(self.trace, observed(side))

    def saw(self, *events: Event, sent: int = 0) -> None:
        class Port:
            def statistics(self) -> dict[str, int]:
                return {"sent": sent}

        self.observer.events_raised(events, {0: Port(), 8: Port()})

    def rows(self, *kinds: str) -> list[dict[str, Any]]:
        self.trace.close()
        found = pq.read_table(self.directory).to_pylist()
        return [row for row in found if not kinds or row["kind"] in kinds]

    def fates(self) -> list[tuple[str, bool, int]]:
        kinds = "message_delivered", "message_undelivered", "message_lost", "message_open"
        return sorted((r["kind"], r["reliable"], r["message"]) for r in self.rows(*kinds))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def plain(first: int, count: int, size: int = 10) -> bytes:
    return b"".join(message_head(first + at, size) + bytes(size) for at in range(count))


def test_a_connection_begins_with_its_entrypoint(bench: Bench) -> None:
    opened, created = bench.rows()
    assert (opened["kind"], opened["connection"], opened["side"]) == (
        "connection_opened",
        "c0ffee",
        "client",
    )
    assert (created["kind"], created["channel_name"]) == ("channel_created", "entrypoint")


def test_frames_are_recorded_with_their_stream_and_its_end(bench: Bench) -> None:
    bench.observer.stream_written(2, RouteTo(0).encode() + plain(0, 3), False)
    bench.observer.stream_written(2, plain(3, 1) + FinishSender(4).encode(), True)
    rows = bench.rows("frame_sent")
    assert [row["frame"] for row in rows] == ["ROUTE_TO", *["MESSAGE"] * 4, "FINISH_SENDER"]
    assert {row["stream"] for row in rows} == {2}
    assert [row["fin"] for row in rows] == [*[None] * 5, True]
    assert rows[-1]["value"] == 4


def test_the_end_of_a_stream_is_recorded_with_its_last_message(bench: Bench) -> None:
    bench.observer.stream_written(2, RouteTo(0).encode() + plain(0, 3), True)
    assert [row["fin"] for row in bench.rows("frame_sent")] == [None, None, None, True]


def test_an_end_without_a_frame_has_its_own_row(bench: Bench) -> None:
    bench.observer.stream_read(3, RouteTo(0).encode() + CloseReceiver().encode(), False)
    bench.observer.stream_read(3, b"", True)
    (row,) = bench.rows("stream_finish_received")
    assert (row["stream"], row["channel"]) == (3, 0)


def test_a_datagram_has_no_stream_and_the_unreliable_number_space(bench: Bench) -> None:
    bench.observer.datagram_written(RouteTo(8).encode() + plain(0, 2))
    rows = bench.rows("frame_sent")
    assert [row["stream"] for row in rows] == [None] * 3
    assert [row["reliable"] for row in rows] == [None, False, False]


def test_neither_payloads_nor_header_values_are_recorded(bench: Bench) -> None:
    secret = b"hush"
    message = MessageFrame(0, ((b"name", secret),), (Attachment(8, ((b"a", secret),)),), secret)
    headers = ConnectionHeaders(((b"token", secret),))
    bench.observer.stream_written(2, headers.encode(), True)
    bench.observer.stream_written(6, RouteTo(0).encode() + message.encode(), False)
    rows = bench.rows()
    assert "hush" not in repr(rows)
    assert rows[-1]["header_names"] == ["name"]
    assert rows[-1]["attachments"] == [8]
    assert (rows[-1]["size"], rows[-1]["payload_size"]) == (message.size, 4)
    for path in bench.directory.iterdir():
        assert secret not in path.read_bytes()


def test_long_and_many_header_names_are_truncated(bench: Bench) -> None:
    pairs = tuple((b"n" * 1_000, b"") for _ in range(100))
    message = MessageFrame(0, pairs, (), b"")
    bench.observer.stream_written(6, RouteTo(0).encode() + message.encode(), False)
    names = bench.rows("frame_sent")[-1]["header_names"]
    assert (len(names), len(names[0])) == (32, 64)


def test_unreadable_bytes_are_recorded_and_the_stream_is_not_followed(bench: Bench) -> None:
    bench.observer.stream_read(3, b"\x0d", False)
    bench.observer.stream_read(7, RouteTo(0).encode() + CloseReceiver().encode(), True)
    (row,) = bench.rows("unreadable")
    assert (row["stream"], row["rule"]) == (3, "AQ-FRAME-2")
    assert len(bench.rows("frame_received")) == 2


def test_resets_are_recorded_with_their_channel(bench: Bench) -> None:
    bench.observer.stream_written(2, RouteTo(8).encode(), False)
    bench.observer.reset_written(2, 0x10)
    bench.observer.reset_read(3, 0x11)
    rows = bench.rows("stream_reset", "stream_reset_received")
    assert [(row["channel"], row["stream"], row["code"]) for row in rows] == [
        (8, 2, 0x10),
        (None, 3, 0x11),
    ]


def test_every_message_of_a_finished_sender_has_one_fate(bench: Bench) -> None:
    bench.observer.stream_written(2, RouteTo(0).encode() + plain(0, 5), False)
    bench.saw(Delivered(0, True, ((0, 3),)), Undelivered(0, True, ((3, 5),)))
    bench.saw(SenderEnded(0, End.RECEIVER_CLOSED), sent=5)
    assert bench.fates() == [
        *(("message_delivered", True, number) for number in (0, 1, 2)),
        *(("message_undelivered", True, number) for number in (3, 4)),
    ]


def test_messages_of_a_lost_channel_are_lost_with_their_ancestors(bench: Bench) -> None:
    bench.observer.channels_created(0, 7, True, [8], ["ordered"])
    bench.observer.stream_written(2, RouteTo(8).encode() + plain(0, 2), False)
    bench.saw(SenderEnded(8, End.LOST, (0,)), sent=2)
    rows = bench.rows("message_lost")
    assert [row["message"] for row in rows] == [0, 1]
    assert [row["lineage"] for row in rows] == [[0], [0]]
    (created,) = (row for row in bench.rows("channel_created") if row["channel"] == 8)
    carrier = (
        created["carrier"],
        created["carrier_message"],
        created["carrier_reliable"],
        created["mode"],
    )
    assert carrier == (0, 7, True, "ordered")


def test_a_message_that_never_left_has_a_fate_too(bench: Bench) -> None:
    bench.observer.channels_created(0, 0, True, [8], ["unreliable"])
    bench.observer.stream_written(2, RouteTo(0).encode() + plain(0, 1), False)
    bench.saw(SenderEnded(0, End.CONNECTION), sent=3)
    bench.saw(SenderEnded(8, End.LOST, (0,)), sent=1)
    assert bench.fates() == [
        ("message_lost", False, 0),
        *(("message_open", True, number) for number in (0, 1, 2)),
    ]


def test_both_number_spaces_are_separate(bench: Bench) -> None:
    bench.observer.datagram_written(RouteTo(0).encode() + plain(0, 3))
    bench.observer.stream_written(2, RouteTo(0).encode() + plain(0, 1), True)
    bench.saw(Delivered(0, False, ((0, 1), (2, 3))), Delivered(0, True, ((0, 1),)))
    bench.saw(SenderEnded(0, End.CONNECTION), sent=4)
    assert bench.fates() == [
        ("message_delivered", False, 0),
        ("message_delivered", False, 2),
        ("message_delivered", True, 0),
        ("message_open", False, 1),
    ]


def test_taken_messages_have_their_number_space(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Side.SERVER)
    bench.observer.datagram_read(RouteTo(0).encode() + plain(0, 2))
    bench.observer.stream_read(2, RouteTo(0).encode() + plain(0, 1), True)
    bench.observer.datagram_read(RouteTo(0).encode() + plain(2, 1))
    bench.observer.messages_taken(0, [MessageRun(0, [b"", b""], 0), MessageRun(0, [b""], 0)])
    bench.observer.messages_taken(0, [MessageRun(2, [b""], 0)])
    rows = bench.rows("message_taken")
    assert [(row["reliable"], row["message"]) for row in rows] == [
        (False, 0),
        (False, 1),
        (True, 0),
        (False, 2),
    ]


def test_halves_are_created_when_their_message_is_taken(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Side.SERVER)
    message = MessageFrame(0, (), (Attachment(8, ()), Attachment(2, ())), b"x")
    bench.observer.stream_read(2, RouteTo(0).encode() + message.encode(), False)
    bench.observer.messages_taken(0, [message])
    created = [row for row in bench.rows("channel_created") if row["carrier"] is not None]
    assert [(row["channel_name"], row["role"]) for row in created] == [
        ("client#1>", "receiver"),
        ("client#0<", "sender"),
    ]


def test_a_receiver_ends_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Side.SERVER)
    bench.observer.receiver_closed(0)
    bench.observer.receiver_closed(0)
    bench.saw(ReceiverEnded(0, End.CONNECTION))
    (row,) = bench.rows("channel_ended")
    assert row["how"] == "closed"


def test_the_reason_of_an_end_is_not_recorded_but_its_rule_is(bench: Bench) -> None:
    bench.saw(ConnectionEnded(2, "AQ-SEND-2: confidential text", False))
    (row,) = bench.rows("connection_ended")
    assert (row["code"], row["by_peer"], row["rule"]) == (2, False, "AQ-SEND-2")
    assert "hush" not in repr(row)


def test_an_error_in_the_observer_does_not_reach_the_connection(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    attached = FanOut([bench.observer])
    with caplog.at_level(logging.ERROR):
        attached.events_raised([Delivered(0, True, ((1, 2, 3),))], {})  # type: ignore[arg-type]
        attached.stream_written(2, RouteTo(0).encode(), False)
    assert bench.rows("frame_sent") == []
    assert "no longer observes its connection" in caplog.text


def test_arrivals_that_the_core_ignored_are_skipped() -> None:
    receiving = Receiving()
    receiving.arrive(True, 0, 3)
    receiving.arrive(False, 0, 2)
    receiving.arrive(True, 3, 2)
    assert receiving.take(0, 1) == [(True, 0, 1)]
    assert receiving.take(1, 4) == [(True, 1, 3), (True, 3, 5)]
    assert receiving.take(9, 1) == [(True, 9, 10)]
