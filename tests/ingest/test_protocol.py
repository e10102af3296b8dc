"""Messages between producers, readers and servers: their encoding and size."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aqueduct.ingest.protocol import (
    Answer,
    Committed,
    Done,
    Found,
    Listing,
    Opened,
    PartitionInfo,
    Refusal,
    TopicInfo,
)
from aqueduct.ingest.records import RecordColumns

CASES: list[tuple[Any, Any]] = [
    (RecordColumns(1, [b"x"], [5]), RecordColumns),
    (RecordColumns(7, [b"x", b""], [5, -5], [b"k", None], [[("n", b"v")], []], 3), RecordColumns),
    (Opened(4, 17, 1_000), Answer),
    (Committed(1, 2, {0: 5, 3: 7}), Answer),
    (Refusal("refused", "why"), Answer),
    (Listing([TopicInfo("t", [PartitionInfo(0, 1, 2, 3, 4, 5, "f")], {"r": {0: 1}})]), Listing),
    (Found({0: 1}), Found | Refusal),
    (Done(), Done | Refusal),
]


@pytest.mark.parametrize(("message", "kind"), CASES)
def test_a_decoded_message_equals_the_encoded_one(message: Any, kind: Any) -> None:
    data = msgspec.msgpack.encode(message)
    assert msgspec.msgpack.decode(data, type=kind) == message


@pytest.mark.parametrize(("message", "kind"), CASES)
def test_a_truncated_message_is_a_decoding_error(message: Any, kind: Any) -> None:
    data = msgspec.msgpack.encode(message)
    for size in range(len(data)):
        with pytest.raises(msgspec.MsgspecError):
            msgspec.msgpack.decode(data[:size], type=kind)


@pytest.mark.parametrize(
    ("records", "encoded"),
    [
        (RecordColumns(1, [b"x"], [5]), "990191c401789105c0c0c0c0c0c2"),
        (
            RecordColumns(7, [b"x", b""], [5, -5], [b"k", None], [[("n", b"v")], []], None, [3, 1]),
            "990792c40178c4009205fb92c4016bc0929192a16ec4017690c0920301c0c2",
        ),
        (
            RecordColumns(9, [b"x"], [5], partition=2, ids=bytes(20), is_last=True),
            "990991c401789105c0c002c0c414" + 20 * "00" + "c3",
        ),
    ],
)
def test_the_wire_format_of_records_is_fixed(records: RecordColumns, encoded: str) -> None:
    assert msgspec.msgpack.encode(records).hex() == encoded


def test_a_small_record_has_little_overhead() -> None:
    records = RecordColumns(1, [b"12345678"] * 1_000, [1_700_000_000_000_000] * 1_000)
    assert len(msgspec.msgpack.encode(records)) < 1_000 * (8 + 2 + 9) + 50
