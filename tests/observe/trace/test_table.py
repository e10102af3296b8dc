from __future__ import annotations

import datetime
from array import array
from typing import Any

from aqueduct.observe.trace.batch import DroppedRows, RowBatch, frame_code, signed
from aqueduct.observe.trace.kinds import FIN, Kind, space
from aqueduct.observe.trace.schema import WRITTEN
from aqueduct.observe.trace.table import to_table
from aqueduct.wire.frames import AckReliable, MessageFrame

CLIENT = ("c0ffee", "client")
SERVER = ("c0ffee", "server")


def rows(batch: RowBatch, **given: Any) -> list[dict[str, Any]]:
    table = to_table(batch, "here", given.get("sequence", 0), given.get("wall_offset", 0))
    table.validate(full=True)
    assert table.schema.equals(WRITTEN)
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def test_a_run_becomes_a_row_per_message() -> None:
    batch = RowBatch()
    batch.add(5, CLIENT, Kind.CONNECTION_OPENED)
    batch.add_sizes(array("q", [10, 20, 30]))
    batch.add(7_000, CLIENT, frame_code(Kind.FRAME_SENT, MessageFrame, True), 24, 100, 3, stream=2)
    batch.add(9_000, SERVER, Kind.MESSAGE_TAKEN | space(False), 24, 7, 2)
    found = rows(batch, sequence=40)
    assert [row["sequence"] for row in found] == [40, 41, 42, 43, 44, 45]
    assert [row["message"] for row in found] == [None, 100, 101, 102, 7, 8]
    assert [row["size"] for row in found] == [None, 10, 20, 30, None, None]
    assert [row["payload_size"] for row in found] == [None, 10, 20, 30, None, None]
    assert [row["reliable"] for row in found] == [None, True, True, True, False, False]
    assert [row["frame"] for row in found] == [None, "MESSAGE", "MESSAGE", "MESSAGE", None, None]
    assert [row["role"] for row in found] == [None, *["sender"] * 3, *["receiver"] * 2]
    assert {row["channel_name"] for row in found} == {None, "client#3>"}
    assert [row["side"] for row in found] == [*["client"] * 4, *["server"] * 2]
    assert [row["kind"] for row in found[-2:]] == ["message_taken"] * 2
    assert [row["stream"] for row in found] == [None, 2, 2, 2, None, None]


def test_runs_of_one_row_are_not_expanded() -> None:
    batch = RowBatch()
    for number in range(3):
        batch.add_sizes(array("q", [number]))
        batch.add(number, CLIENT, frame_code(Kind.FRAME_SENT, MessageFrame, False) | FIN, 0, number)
    found = rows(batch)
    assert [(row["message"], row["size"], row["fin"]) for row in found] == [
        (0, 0, True),
        (1, 1, True),
        (2, 2, True),
    ]


def test_rare_columns_are_in_their_rows() -> None:
    batch = RowBatch()
    batch.add(0, CLIENT, Kind.CHANNEL_CREATED, 8, rare={"carrier": 0, "mode": "ordered"})
    batch.add(0, CLIENT, Kind.MESSAGE_LOST | space(True), 8, 0, 2, rare={"lineage": [16, 0]})
    batch.add(0, CLIENT, frame_code(Kind.FRAME_SENT, AckReliable), 2, rare={"ranges": [0, 9]})
    found = rows(batch)
    assert [row["mode"] for row in found] == ["ordered", None, None, None]
    assert [row["lineage"] for row in found] == [None, [16, 0], [16, 0], None]
    assert [row["ranges"] for row in found] == [None, None, None, [0, 9]]
    assert [row["carrier"] for row in found] == [0, None, None, None]


def test_wall_time_is_the_monotonic_time_and_an_offset() -> None:
    batch = RowBatch()
    batch.add(2_500_000_000, CLIENT, Kind.CONNECTION_OPENED)
    (row,) = rows(batch, wall_offset=1_000_000_000)
    assert row["monotonic_ns"] == 2_500_000_000
    assert row["wall"] == datetime.datetime(1970, 1, 1, 0, 0, 3, 500_000, datetime.UTC)


def test_the_largest_numbers_fit_as_signed_ones() -> None:
    largest = 2**64 - 1
    batch = RowBatch()
    batch.add(0, CLIENT, Kind.MESSAGE_TAKEN | space(True), largest, largest, value=largest)
    (row,) = rows(batch)
    assert (row["channel"], row["message"], row["value"]) == (-1, -1, -1)
    assert row["channel_name"] == f"server!{2**61 - 1}>"
    assert signed(largest) == -1


def test_dropped_rows_are_counted_and_not_kept() -> None:
    waste = DroppedRows()
    waste.add_sizes(array("q", [1, 2, 3]))
    waste.add(0, CLIENT, Kind.MESSAGE_TAKEN, 0, 0, 3)
    assert waste.rows == 3
    assert not waste.numbers
    assert not waste.sizes
