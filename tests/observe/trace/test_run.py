"""Traces of both ends of a real conversation over loopback."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import aqueduct
from aqueduct.observe.trace import Trace
from aqueduct.observe.trace.read import ledger, read
from tests.observe.trace.recorded import Conversation
from tests.ports import closed_port

FATES = {"message_delivered", "message_undelivered", "message_lost", "message_open"}
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def rows(recorded: Path) -> Rows:
    found: Rows = read(recorded).to_pylist()
    return found


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["connection"], row["channel"], row["reliable"], row["message"]


def messages(rows: Rows, kind: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    found = [row for row in rows if row["kind"] == kind and row["message"] is not None]
    assert len({key(row) for row in found}) == len(found), "one row per message"
    return {key(row): row for row in found}


def test_both_ends_record_the_same_connection_id(rows: Rows) -> None:
    assert {(row["connection"] != "", row["side"]) for row in rows} == {
        (True, "client"),
        (True, "server"),
    }
    assert len({row["connection"] for row in rows}) == 1


def test_every_message_has_exactly_one_fate(rows: Rows) -> None:
    fates = Counter(key(row) for row in rows if row["kind"] in FATES)
    assert set(fates.values()) == {1}
    assert set(messages(rows, "frame_sent")) <= set(fates)
    assert set(messages(rows, "message_taken")) <= set(fates)


def test_every_kind_of_fate_occurs(rows: Rows) -> None:
    assert {row["kind"] for row in rows} >= FATES


def test_as_many_messages_have_a_fate_as_a_sender_was_given(rows: Rows) -> None:
    fates = Counter(row["channel"] for row in rows if row["kind"] in FATES)
    for row in rows:
        if row["kind"] == "channel_ended" and row["role"] == "sender":
            assert fates[row["channel"]] == row["value"], row["channel_name"]


def test_each_end_received_what_the_other_sent(rows: Rows) -> None:
    sent, received = messages(rows, "frame_sent"), messages(rows, "frame_received")
    assert set(received) <= set(sent)
    for one, row in received.items():
        for column in ("size", "payload_size", "stream", "attachments", "channel_name"):
            assert row[column] == sent[one][column]
        assert row["side"] != sent[one]["side"]
        assert row["wall"] >= sent[one]["wall"]


def test_every_frame_sent_was_received(rows: Rows) -> None:
    """On loopback, except on streams that were reset."""
    reset = {row["stream"] for row in rows if row["kind"] == "stream_reset"}

    def count(kind: str) -> Counter[tuple[Any, ...]]:
        return Counter(
            (row["stream"], row["frame"], row["value"], row["fin"])
            for row in rows
            if row["kind"] == kind and row["stream"] is not None and row["stream"] not in reset
        )

    assert count("frame_sent") == count("frame_received")


def test_taken_messages_arrived_and_were_delivered(rows: Rows) -> None:
    taken = messages(rows, "message_taken")
    assert set(taken) <= set(messages(rows, "frame_received"))
    bad = {key(row) for row in rows if row["kind"] in ("message_undelivered", "message_lost")}
    assert not set(taken) & bad


def test_taken_messages_are_those_that_the_application_received(
    rows: Rows, conversation: tuple[Path, Conversation]
) -> None:
    taken = messages(rows, "message_taken")
    sent = messages(rows, "frame_sent")
    to_server = [
        sent[one]["payload_size"]
        for one, row in taken.items()
        if row["side"] == "server" and row["channel_name"] != "entrypoint"
    ]
    assert sorted(to_server) == sorted(map(len, conversation[1].taken))


def test_every_half_ended_once(rows: Rows) -> None:
    created = Counter((r["side"], r["channel"]) for r in rows if r["kind"] == "channel_created")
    ended = Counter((r["side"], r["channel"]) for r in rows if r["kind"] == "channel_ended")
    assert created == ended
    assert set(created.values()) == {1}


def test_a_lost_message_names_its_ancestor(rows: Rows) -> None:
    lost = [row for row in rows if row["kind"] == "message_lost"]
    ended = {row["channel"]: row for row in rows if row["how"] == "lost in transit"}
    assert lost
    for row in lost:
        assert row["lineage"] == ended[row["channel"]]["lineage"]
        assert row["lineage"]


def test_the_ledger_has_the_fates(recorded: Path) -> None:
    fates = Counter(ledger(read(recorded))["fate"].to_pylist())
    assert fates["dropped"] == 5
    assert fates["nacked"] == 3
    assert fates["lost"] == 1
    assert fates["open"] == 1
    assert fates["delivered"] > 900


def test_the_files_contain_no_payloads_or_header_values(recorded: Path) -> None:
    for path in recorded.iterdir():
        table = pq.read_table(path).to_pylist()
        assert "hush" not in repr(table)


def test_the_limits_of_both_sides_are_recorded(rows: Rows) -> None:
    stated = [row for row in rows if row["limits"] is not None]
    assert {row["side"] for row in stated} == {"client", "server"}
    assert all('"channel_window"' in row["limits"] for row in stated)


def test_a_connection_that_fails_is_recorded_and_leaves_no_writer(tmp_path: Path) -> None:
    async def fail() -> None:
        with closed_port() as port, pytest.raises(aqueduct.ConnectError):
            await aqueduct.connect(f"127.0.0.1:{port}", trust=aqueduct.dev_trust(), trace=tmp_path)

    asyncio.run(fail())
    kinds = [row["kind"] for row in read(tmp_path).to_pylist()]
    assert kinds[0] == "connection_opened"
    assert kinds[-1] == "connection_ended"
    assert not [one for one in threading.enumerate() if one.name.startswith("aqueduct-trace")]


def test_many_connections_share_a_trace_and_one_writer(tmp_path: Path) -> None:
    async def play() -> None:
        with Trace(tmp_path) as trace:
            async with aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls(), trace=trace) as server:

                async def talk(number: int) -> None:
                    async with aqueduct.connect(
                        server.address, trust=aqueduct.dev_trust(), trace=trace
                    ) as connection:
                        await connection.entrypoint.send(b"x" * number)
                        await connection.entrypoint.flush()

                await asyncio.gather(*(talk(number) for number in range(20)))

    asyncio.run(play())
    table = read(tmp_path)
    pairs = {(row["connection"], row["side"]) for row in table.to_pylist()}
    assert len(pairs) == 40
    assert len({connection for connection, _ in pairs}) == 20
    assert sorted(ledger(table)["size"].to_pylist()) == list(range(20))
