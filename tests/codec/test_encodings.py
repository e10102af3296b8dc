"""How each type is encoded, byte for byte, so that other languages can rely on it."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from typing import Any

import msgspec
import pytest

from aqueduct.codec import JsonCodec, codec_for, no_channels
from aqueduct.errors import DecodeError, EncodeError


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Point(msgspec.Struct):
    x: int
    label: str = "here"


class Pair(msgspec.Struct, array_like=True):
    first: int
    second: str


class Join(msgspec.Struct, tag=True):
    room: str


class Leave(msgspec.Struct, tag=True):
    room: str


UTC = datetime.UTC
STAMP = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ENCODINGS: list[tuple[Any, Any, bytes, bytes]] = [
    (type(None), None, b"\xc0", b"null"),
    (int | None, None, b"\xc0", b"null"),
    (bool, True, b"\xc3", b"true"),
    (int, -3, b"\xfd", b"-3"),
    (int, 2**64 - 1, b"\xcf" + b"\xff" * 8, b"18446744073709551615"),
    (int, -(2**63), b"\xd3\x80" + bytes(7), b"-9223372036854775808"),
    (float, 1.5, b"\xcb\x3f\xf8" + bytes(6), b"1.5"),
    (str, "é", b"\xa2\xc3\xa9", b'"\xc3\xa9"'),
    (list[bytes], [b"\x01\xff"], b"\x91\xc4\x02\x01\xff", b'["Af8="]'),
    (tuple[int, str], (1, "a"), b"\x92\x01\xa1a", b'[1,"a"]'),
    (set[int], {1}, b"\x91\x01", b"[1]"),
    (dict[str, int], {"a": 1}, b"\x81\xa1a\x01", b'{"a":1}'),
    (dict[int, int], {1: 2}, b"\x81\x01\x02", b'{"1":2}'),
    (Colour, Colour.RED, b"\xa3red", b'"red"'),
    (Level, Level.HIGH, b"\x03", b"3"),
    (datetime.datetime, STAMP, b"\xd6\xff\x69\x57\x35\xa5", b'"2026-01-02T03:04:05Z"'),
    (
        datetime.datetime,
        STAMP.replace(microsecond=6),
        b"\xd7\xff\x00\x00\x5d\xc0\x69\x57\x35\xa5",
        b'"2026-01-02T03:04:05.000006Z"',
    ),
    (
        datetime.datetime,
        STAMP.replace(tzinfo=None),
        b"\xb32026-01-02T03:04:05",
        b'"2026-01-02T03:04:05"',
    ),
    (datetime.date, STAMP.date(), b"\xaa2026-01-02", b'"2026-01-02"'),
    (datetime.time, STAMP.time(), b"\xa803:04:05", b'"03:04:05"'),
    (
        datetime.timedelta,
        datetime.timedelta(days=1, seconds=3, microseconds=5),
        b"\xadP1DT3.000005S",
        b'"P1DT3.000005S"',
    ),
    (uuid.UUID, uuid.UUID(int=5), b"\xd9\x24" + b"00000000-0000-0000-0000-000000000005", b""),
    (decimal.Decimal, decimal.Decimal("1.50"), b"\xa41.50", b'"1.50"'),
    (Point, Point(1), b"\x82\xa1x\x01\xa5label\xa4here", b'{"x":1,"label":"here"}'),
    (Pair, Pair(1, "a"), b"\x92\x01\xa1a", b'[1,"a"]'),
    (
        Join | Leave,
        Leave("lobby"),
        b"\x82\xa4type\xa5Leave\xa4room\xa5lobby",
        b'{"type":"Leave","room":"lobby"}',
    ),
]


@pytest.mark.parametrize(("kind", "value", "packed", "text"), ENCODINGS)
def test_a_value_is_encoded_as_its_type_says(
    kind: Any, value: Any, packed: bytes, text: bytes
) -> None:
    """AQ-TYPE-7, AQ-TYPE-8."""
    text = text or b'"%s"' % str(value).encode()
    for codec, payload in ((codec_for(kind), packed), (codec_for(kind, JsonCodec), text)):
        assert codec.encode(value) == (payload, [])
        assert codec.decode(payload, no_channels) == value


@pytest.mark.parametrize(
    ("kind", "payload", "value"),
    [
        (int, b"\xd3" + bytes(7) + b"\x01", 1),
        (float, b"\xca\x3f\x80\x00\x00", 1.0),
        (float, b"\x01", 1.0),
        (Point, b"\x83\xa5label\xa1l\xa1z\x02\xa1x\x03", Point(3, "l")),
        (Point, b"\x81\xa1x\x03", Point(3)),
        (Join | Leave, b"\x82\xa4room\xa1r\xa4type\xa4Join", Join("r")),
        (
            datetime.datetime,
            b"\xc7\x0c\xff" + bytes(4) + bytes(4) + b"\x69\x57\x35\xa5",
            STAMP,
        ),
    ],
)
def test_other_encodings_of_a_value_are_taken(kind: Any, payload: bytes, value: Any) -> None:
    """AQ-TYPE-7, AQ-TYPE-1, AQ-TYPE-8: numbers of any size, fields and tags in any order."""
    assert codec_for(kind).decode(payload, no_channels) == value


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (str, b"\x01"),
        (int, b"\xa11"),
        (int, b"\xcb\x3f\xf0" + bytes(6)),
        (list[bytes], b"\x91\xa1x"),
        (str, b"\xc4\x01x"),
        (Join | Leave, b"\x82\xa4type\xa4Sing\xa4room\xa1r"),
        (Join | Leave, b"\x81\xa4room\xa1r"),
        (Point, b"\x80"),
    ],
)
def test_what_is_of_another_type_is_malformed(kind: Any, payload: bytes) -> None:
    """AQ-TYPE-7, AQ-TYPE-8."""
    with pytest.raises(DecodeError):
        codec_for(kind).decode(payload, no_channels)


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
def test_an_integer_of_more_than_64_bits_cannot_be_sent(number: int) -> None:
    """AQ-TYPE-7."""
    with pytest.raises(EncodeError):
        codec_for(int).encode(number)
