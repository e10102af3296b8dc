"""Messages of producers: their decoded size is computed and bounded before decoding."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aqueduct.ingest.errors import RefusedRecords
from aqueduct.ingest.protocol import MAX_MESSAGE_HEADERS
from aqueduct.ingest.records import RecordColumns
from aqueduct.ingest.server import decoding
from aqueduct.ingest.server.decoding import HEADER_OVERHEAD, Undecoded

MIB = 2**20


def encoded(records: Any) -> bytes:
    return msgspec.msgpack.encode(records)


FULL = RecordColumns(
    7, [b"x", b""], [5, -5], [b"k", None], [[("n", b"v")], []], None, [0, 1], b"i" * 40, True
)


@pytest.mark.parametrize(
    "records",
    [
        RecordColumns(1, [], []),
        RecordColumns(2**62, [b"x"] * 1_000, [2**40] * 1_000),
        RecordColumns(1, [b"x"], [0], None, [[("n", b"v")] * 64]),
        RecordColumns(1, [b""] * 2_048, [0] * 2_048, headers=[[("name", b"value")] * 8] * 2_048),
        FULL,
    ],
)
def test_decoded_records_equal_the_encoded_ones(records: RecordColumns) -> None:
    undecoded = Undecoded(encoded(records))
    before = undecoded.size
    assert undecoded.records() == records
    assert undecoded.size <= before


def test_the_size_counts_every_header_before_one_is_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(_: Any) -> Any:
        raise AssertionError("decoded")

    monkeypatch.setattr(decoding, "_headers", never)
    plain = Undecoded(encoded(RecordColumns(1, [b""] * 600, [0] * 600)))
    rows = [[("", b"")] * (17 * (number % 2) + 15) for number in range(600)]
    many = Undecoded(encoded(RecordColumns(1, [b""] * 600, [0] * 600, headers=rows)))
    assert many.size - plain.size >= HEADER_OVERHEAD * sum(map(len, rows))


def test_a_message_with_too_many_headers_is_rejected_before_decoding() -> None:
    rows = [[("", b"")] * 64] * (MAX_MESSAGE_HEADERS // 64)
    Undecoded(encoded(RecordColumns(1, [b""] * len(rows), [0] * len(rows), headers=rows)))
    rows = [*rows, [("", b"")]]
    with pytest.raises(RefusedRecords, match=r"16,385 headers, more than 16,384: send fewer"):
        Undecoded(encoded(RecordColumns(1, [b""] * len(rows), [0] * len(rows), headers=rows)))


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\xc0",
        encoded("no records"),
        encoded([1]),
        encoded([1, [b"x"], [0], None, 5]),
        encoded([1, [b"x"], [0], None, [5]]),
        encoded([1, [b"x"], [0], None, [[("n", 5)]]]),
        encoded([1, [b"x"], [0], None, [[("n",)]]]),
        encoded([1, [b"x"], [0], None, [5] * 20_000]),
        encoded([1, [b"x"], [0], None, "x" * 20_000]),
        b"\x95\x01\x91\xc4\x01x\x91\x00\xc0" + b"\x91" * 10_000 + b"\x90",
        encoded([1, [b""] * 16_385, []]),
        encoded(FULL)[:-3],
        encoded(FULL) + b"\x00",
    ],
)
def test_malformed_records_are_rejected_and_raise_nothing_else(garbage: bytes) -> None:
    with pytest.raises(RefusedRecords, match="not a valid message of records"):
        Undecoded(garbage).records()


def test_memory_stays_within_its_bound_whatever_messages_decode_to(tmp_path: Path) -> None:
    """Twelve messages of 4 MB would decode to 80 MB each; none of them is decoded."""
    command = [sys.executable, "-m", "tests.ingest.hoarding", str(tmp_path / "data")]
    ran = subprocess.run(
        [*command, "12", "16384", "64"], capture_output=True, text=True, timeout=100, check=True
    )
    assert int(ran.stdout) < 128 * MIB
