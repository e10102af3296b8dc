"""MessagePack payloads: the contract of a codec, what is encoded, and what errors say."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime, tzinfo
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest

import aqueduct
from aqueduct import DecodeError, EncodeError, Receiver, Sender
from aqueduct.codec import ChannelHalf, Codec, MessagePackCodec, codec_for, no_channels
from aqueduct.codec.base import name_of
from aqueduct.codec.raw import RAW
from tests.codec.contract import ChannelCodecContract, Refusing

Small = Annotated[int, msgspec.Meta(ge=0, lt=10)]


class Point(msgspec.Struct, tag=True):
    x: int
    y: float = 0.5


class Name(msgspec.Struct, tag=True):
    text: str


class Colour(Enum):
    RED = "red"


class Request(msgspec.Struct):
    numbers: Receiver[int]
    replies: list[Sender[str]]
    raw: Sender  # type: ignore[type-arg]  # as people write it
    count: int = 0


class Picky(msgspec.Struct):
    """A type whose own code raises an error that msgspec does not know."""

    number: int

    def __post_init__(self) -> None:
        if self.number == 13:
            raise KeyError("thirteen")


class Broken(tzinfo):
    def utcoffset(self, moment: datetime | None) -> None:
        raise RuntimeError("no clock here")

    dst = utcoffset

    def tzname(self, moment: datetime | None) -> str:
        return "broken"


@pytest.fixture
def halves() -> Iterator[list[ChannelHalf]]:
    """Yield a receiver and three senders."""
    channels = [aqueduct.channel(int) for _ in range(4)]
    yield [channels[0].receiver, *(one.sender for one in channels[1:])]
    for sender, receiver in channels:
        sender.finish()
        receiver.close()


codec = codec_for


class TestMessagePackCodec(ChannelCodecContract):
    content_type = "application/msgpack"
    samples = (
        (int, -17),
        (str, "väter"),
        (dict[str, set[int]], {"a": {1}}),
        (bytearray, bytearray(b"kept")),
        (Refusing, Refusing(4)),
        (Any, {"a": [1, b"bytes", None]}),
    )
    rejected = ((Any, object()), (Any, [1, {2: object()}]), (Any, 1 << 70))
    malformed = (
        (int, b""),
        (int, b"\xa2no"),
        (list[int], b"\x92\x01"),
        (Refusing, b"\xc1"),
        (Any, b"\x01\x02"),
    )

    def make(self, kind: Any) -> Codec[Any]:
        return MessagePackCodec(kind)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, -17),
        (str, "väter"),
        (type(None), None),
        (float, 0.25),
        (list[int], [1, 2]),
        (tuple[int, str], (1, "a")),
        (dict[str, set[int]], {"a": {1}}),
        (Colour, Colour.RED),
        (Literal["a", 1], "a"),
        (int | str | None, "either"),
        (Point | Name, Name("tagged")),
        (Point | Name, Point(1)),
        (list[Point], [Point(1, 2.0)]),
        (Small, 9),
        (Annotated[int, {"unhashable": True}], 3),
        (Any, {"a": [1, b"bytes"]}),
        (bytearray, bytearray(b"kept")),
    ],
)
def test_a_value_of_any_type_round_trips(kind: Any, value: Any) -> None:
    payload, halves = codec(kind).encode(value)
    assert halves == []
    assert codec(kind).decode(payload, no_channels) == value
    assert codec(kind).decode_many([payload, payload]) == ([value, value], None)


def test_bytes_are_not_encoded() -> None:
    assert codec_for(bytes) is RAW


def test_a_thread_makes_one_codec_per_type_and_threads_share_none() -> None:
    assert codec_for(Point) is codec_for(Point)
    assert codec_for(list[int]) is codec_for(list[int])
    assert codec_for(int | str) is not codec_for(int)
    other: list[Any] = []
    thread = threading.Thread(target=lambda: other.extend((codec_for(Point), codec_for(Point))))
    thread.start()
    thread.join()
    assert other[0] is other[1]
    assert other[0] is not codec_for(Point)


def test_the_codec_of_an_unhashable_type_is_not_cached() -> None:
    kind = Annotated[int, {"a": []}]
    assert codec(kind).decode(b"\x07", no_channels) == 7
    assert codec_for(kind) is not codec_for(kind)


def test_a_type_that_msgspec_rejects_is_a_type_error_when_the_codec_is_made() -> None:
    with pytest.raises(TypeError, match=r"cannot be the type of a channel: .*union"):
        codec_for(Point | dict[str, int])


def test_halves_become_the_indexes_of_their_attachments(halves: list[ChannelHalf]) -> None:
    receiver, one, two, three = halves
    value = Request(receiver, [one, two], three, 4)  # type: ignore[arg-type, list-item]
    payload, found = codec(Request).encode(value)
    assert found == halves
    assert msgspec.msgpack.decode(payload) == {
        "numbers": 0,
        "replies": [1, 2],
        "raw": 3,
        "count": 4,
    }
    asked: list[tuple[int, type[ChannelHalf], Any]] = []

    def claim(index: int, half: type[ChannelHalf], kind: Any) -> ChannelHalf:
        asked.append((index, half, kind))
        return halves[index]

    assert codec(Request).decode(payload, claim) == value
    assert asked == [(0, Receiver, int), (1, Sender, str), (2, Sender, str), (3, Sender, bytes)]


def test_a_message_carries_only_its_own_halves(halves: list[ChannelHalf]) -> None:
    anything = codec(Any)
    assert anything.encode([halves[0]])[1] == halves[:1]
    assert anything.encode([halves[1]])[1] == halves[1:2]
    with pytest.raises(EncodeError):
        anything.encode([halves[2], object()])
    with pytest.raises(EncodeError, match="no clock here"):
        anything.encode([halves[2], datetime(2020, 1, 1, tzinfo=Broken())])
    assert anything.encode("plain")[1] == []


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "cannot encode object: object is not supported by msgspec"),
        ([1, {2: object()}], "cannot encode list: object is not supported"),
        (1 << 70, "cannot encode int: "),
    ],
)
def test_an_encode_error_names_the_type(value: Any, words: str) -> None:
    with pytest.raises(EncodeError, match=words):
        codec(Any).encode(value)


def test_a_value_that_holds_itself_cannot_be_encoded() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(EncodeError, match="cannot encode list"):
        codec(Any).encode(loop)


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (int, "no", r"^not of type int: Expected `int`, got `str`"),
        (
            Point,
            {"type": "Point", "x": "no"},
            r"^not of type Point: .*, got `str` - at `\$.x",
        ),
        (Small, 10, "Expected `int` <= 9"),
        (Point | Name, {"type": "Neither"}, "Invalid value 'Neither'"),
        (Request, {"numbers": 0}, r"^not of type Request: attachment 0 was .* - at `\$.numbers`"),
        (Request, {"numbers": "0"}, "a channel is written as the index of an attachment"),
        (Request, {"numbers": True}, "a channel is written as the index of an attachment"),
        (Picky, {"number": 13}, r"^not of type Picky: KeyError\('thirteen'\)"),
        (Broken, 1, "^not of type Broken: .*is not supported by msgspec"),
    ],
)
def test_a_decode_error_says_what_was_expected_and_where(kind: Any, value: Any, words: str) -> None:
    payload = msgspec.msgpack.encode(value)
    with pytest.raises(DecodeError, match=words):
        codec(kind).decode(payload, no_channels)
    values, failed = codec(kind).decode_many([payload])
    assert values == []
    with pytest.raises(DecodeError, match=words):
        raise failed  # type: ignore[misc]  # there is one


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x92\x01", b"\x01\x02"])
def test_malformed_msgpack_is_a_decode_error(payload: bytes) -> None:
    with pytest.raises(DecodeError, match="not of type Any: "):
        codec(Any).decode(payload, no_channels)


def test_decode_many_stops_at_the_first_malformed_payload() -> None:
    payloads = [msgspec.msgpack.encode({"number": n}) for n in (1, 2, 13, 4)]
    values, failed = codec(Picky).decode_many(payloads)
    assert values == [Picky(1), Picky(2)]
    assert isinstance(failed, DecodeError)
    assert isinstance(failed.__cause__, KeyError)
    assert codec(Picky).decode_many(payloads[3:]) == ([Picky(4)], None)
    assert codec(Picky).decode_many([]) == ([], None)


def test_types_are_named_as_in_annotations() -> None:
    assert [name_of(kind) for kind in (int, Point, int | None)] == ["int", "Point", "int | None"]
