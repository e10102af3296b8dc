"""The trace, the simulator's record and their callers keep the contract of observers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from aqueduct.observe.base import ObservedConnection, Observer
from aqueduct.observe.fanout import FanOut
from aqueduct.observe.trace import Trace
from aqueduct.observe.trace.observer import TraceObserver
from aqueduct.testing.quic import stream_id
from aqueduct.testing.record import (
    CommandCalled,
    EventRaised,
    FrameArrived,
    FrameSent,
    MessageSent,
    MessageTaken,
    Record,
    RecordEntry,
    StreamEnded,
)
from aqueduct.wire.chanid import Side
from tests.observe.contract import (
    KINDS,
    CallLog,
    Fact,
    assert_observes_everything,
    assert_order,
    event_facts,
    frame_fact,
    play,
    taken_facts,
)
from tests.observe.trace.recorded import Conversation


def observed(side: Side) -> ObservedConnection:
    return ObservedConnection("c0de", side.name.lower(), ("127.0.0.1", 4433))


class TraceCandidate:
    """The trace: its facts are the rows of its files."""

    kinds = KINDS

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._trace = Trace(directory)

    def observers(self) -> tuple[Sequence[Observer], Sequence[Observer]]:
        client, server = (TraceObserver(self._trace, observed(side)) for side in Side)
        return (client,), (server,)

    def facts(self, side: Side, record: Record) -> list[Fact]:
        self._trace.close()
        rows = pq.read_table(self._directory).sort_by("sequence").to_pylist()
        mine = [row for row in rows if row["side"] == side.name.lower()]
        return [fact for row in mine for fact in self._row_facts(row)]

    @staticmethod
    def _row_facts(row: dict[str, Any]) -> Iterator[Fact]:
        kind, stream, channel = row["kind"], row["stream"], row["channel"]
        if row["frame"] is not None:
            name = row["frame"]
            if name in ("VERSION", "ACK_VERSION", "CONNECTION_HEADERS"):
                channel = None
            yield kind, stream, channel, name, row["message"]
            if row["fin"]:
                sent = kind == "frame_sent"
                yield "stream_finished" if sent else "stream_finish_received", stream
        elif kind in ("stream_finished", "stream_finish_received"):
            yield kind, stream
        elif kind in ("stream_reset", "stream_reset_received"):
            yield kind, stream, row["code"]
        elif kind == "channel_created" and row["carrier"] is not None:
            yield kind, channel, row["carrier"], row["carrier_message"]
        elif kind == "channel_ended":
            yield kind, channel, row["how"]
        elif kind == "message_taken":
            yield kind, channel, row["message"]
        elif kind in ("message_delivered", "message_undelivered") and row["how"] is None:
            yield kind, channel, row["reliable"], row["message"]
        elif kind == "connection_ended":
            yield kind, row["code"], row["by_peer"]


class RecordCandidate:
    """The simulator's own observers: their facts are the entries of its record."""

    kinds = KINDS - {"stream_finish_received", "stream_reset_received"}

    def observers(self) -> tuple[Sequence[Observer], Sequence[Observer]]:
        return (), ()

    def facts(self, side: Side, record: Record) -> list[Fact]:
        mine = [entry for entry in record.entries if entry.side == side]
        return [fact for entry in mine for fact in self._entry_facts(entry)]

    @staticmethod
    def _entry_facts(entry: RecordEntry) -> Iterator[Fact]:
        if isinstance(entry, FrameSent | FrameArrived):
            sent = entry if isinstance(entry, FrameSent) else entry.sent
            kind = "frame_sent" if sent is entry else "frame_received"
            stream = None if sent.in_datagram else stream_id(sent.stream, sent.side)
            yield frame_fact(kind, stream, sent.channel, sent.frame)
        elif isinstance(entry, StreamEnded):
            stream = stream_id(entry.stream, entry.side)
            if entry.reset is None:
                yield "stream_finished", stream
            else:
                yield "stream_reset", stream, entry.reset
        elif isinstance(entry, MessageSent):
            for attached in entry.attached:
                yield "channel_created", attached.channel, entry.channel, entry.number
        elif isinstance(entry, MessageTaken):
            yield from taken_facts(entry.channel, [entry.message])
        elif isinstance(entry, EventRaised):
            yield from event_facts(entry.event)
        elif isinstance(entry, CommandCalled) and entry.verb == "close":
            yield "channel_ended", entry.channel, "closed"


def test_the_trace_records_everything_in_order(tmp_path: Path) -> None:
    assert_observes_everything(TraceCandidate(tmp_path))


def test_a_fan_out_passes_everything_on_in_order(tmp_path: Path) -> None:
    class Candidate(TraceCandidate):
        def observers(self) -> tuple[Sequence[Observer], Sequence[Observer]]:
            client, server = super().observers()
            return (FanOut([CallLog(), *client]),), (FanOut([CallLog(), *server]),)

    assert_observes_everything(Candidate(tmp_path))


def test_the_record_of_the_simulator_has_everything_in_order() -> None:
    assert_observes_everything(RecordCandidate())


def test_an_observer_that_misses_a_call_fails_the_contract(tmp_path: Path) -> None:
    class Forgetful(TraceObserver):
        def reset_read(self, stream: int, code: int) -> None:
            """Not recorded."""

    class Candidate(TraceCandidate):
        def observers(self) -> tuple[Sequence[Observer], Sequence[Observer]]:
            client, server = (Forgetful(self._trace, observed(side)) for side in Side)
            return (client,), (server,)

    with pytest.raises(AssertionError):
        assert_observes_everything(Candidate(tmp_path))


def test_the_simulator_calls_observers_in_the_documented_order() -> None:
    client, server = CallLog(), CallLog()
    play([client], [server])
    assert_order(client, server)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "memory://"])
def test_a_connection_calls_observers_in_the_documented_order(
    address: str,
) -> None:
    logs = {side: CallLog() for side in Side}

    def observe(connection: ObservedConnection) -> CallLog:
        return logs[Side[connection.side.upper()]]

    asyncio.run(Conversation(None, None, address, observers=[observe]).play())
    assert_order(logs[Side.CLIENT], logs[Side.SERVER])
    names = {call[0] for side in Side for call in logs[side].calls}
    assert names >= {"stream_written", "datagram_read", "reset_written", "channels_created"}
