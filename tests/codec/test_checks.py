"""What is sent is checked against the channel's type, by its class and the halves in its fields."""

from __future__ import annotations

import asyncio
import datetime
import enum
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    Protocol,
    TypedDict,
    TypeVar,
)

import msgspec
import pytest

import aqueduct
from aqueduct import Receiver, Sender, WrongType, blocking, channel
from aqueduct.codec import codec_for
from aqueduct.codec.checks import TypeCheck, check_for

T = TypeVar("T")


class Point(msgspec.Struct):
    x: int


class Subpoint(Point):
    y: int = 0


class Box(msgspec.Struct, Generic[T]):
    value: T


class Sum(msgspec.Struct):
    numbers: Receiver[int]
    reply: Sender[int]
    more: Sender[int] | None = None


@dataclass
class Plain:
    half: Sender[int]


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Pair(NamedTuple):
    left: int


class Table(TypedDict):
    name: str


class Sized(Protocol):
    def __len__(self) -> int: ...


Celsius = NewType("Celsius", float)
box: Any = Box
NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (Point, [Point(1), Subpoint(1)], [None, 1, {"x": 1}, Box(1), Point]),
        (Point | int, [Point(1), 2], [None, True, "x"]),
        (Point | None, [Point(1), None], [0]),
        (box[int], [Box(1)], [Point(1)]),
        (int, [1, Level.LOW], [True, 1.5, "1", None]),
        (bool, [True], [1]),
        (float, [1, 1.5], [True, "1"]),
        (str, ["x"], [b"x", None]),
        (bytes, [b"x", bytearray(b"x"), memoryview(b"x")], ["x", None]),
        (type(None), [None], [0, False]),
        (list[int], [[1], (1,), {1}], [{1: 1}, 1, "x"]),
        (Sequence[int], [[1], (1,)], ["text"]),
        (dict[str, int], [{"a": 1}], [[], None]),
        (Table, [{"name": "x"}], [[]]),
        (Colour, [Colour.RED], [1]),
        (Annotated[int, msgspec.Meta(gt=0)], [1], ["x"]),
        (Annotated[int, msgspec.Meta(extra={"a": 1})], [1], ["x"]),
        (Celsius, [1.5], ["x"]),
        (Any, [None, 1, Point(1)], []),
        (Pair, [Pair(1), (1,), [1]], [None, "x", {1}]),
        (Literal["a", "b"], ["a"], [None, 1]),
        (Literal[1, None], [1, None], ["a", True]),
        (datetime.datetime, [NOW], [None, "2026-01-01", NOW.date(), 5]),
        (datetime.date, [NOW.date()], [None, NOW]),
        (datetime.date | datetime.datetime, [NOW.date(), NOW], [None]),
        (datetime.time, [NOW.time()], [None, NOW]),
        (datetime.timedelta, [datetime.timedelta(1)], [None, 5]),
        (uuid.UUID, [uuid.UUID(int=1)], [None, str(uuid.UUID(int=1))]),
        (Decimal, [Decimal(1)], [None, 1.5, "1"]),
        (Sized, ["anything"], []),
    ],
)
def test_values_of_another_class_are_refused(kind: Any, good: list[Any], bad: list[Any]) -> None:
    check = check_for(kind)
    for value in good * 2:
        check.check(value)
    for value in bad * 2:
        with pytest.raises(WrongType, match="cannot send"):
            check.check(value)
    for value in good:
        check.check(value)


def test_the_error_names_the_type_and_the_class_of_the_value() -> None:
    for value, text in ((1, "an int"), ("x", "a str"), (None, "None"), (Box(1), "a Box")):
        with pytest.raises(WrongType, match=f"^a channel of Point cannot send {text}$"):
            check_for(Point).check(value)


def test_the_class_of_a_value_is_checked_once() -> None:
    check = TypeCheck(Point)
    assert check.known == set()
    check.check(Subpoint(1))
    assert check.known == {Subpoint}


def test_halves_are_checked_by_their_direction_in_the_fields_of_a_message() -> None:
    tx, rx = channel(int)
    threads, their = blocking.channel(int)
    check = check_for(Sum)
    check.check(Sum(rx, tx))
    check.check(Sum(rx, tx, more=tx))
    check.check(Sum(their, threads))  # type: ignore[arg-type]
    for wrong in (Sum(tx, rx), Sum(rx, None), Sum(rx, tx, rx), Sum(rx, 7)):  # type: ignore[arg-type]
        with pytest.raises(WrongType, match=r"Sum\.\w+ takes a"):
            check.check(wrong)
    check_for(Plain).check(Plain(tx))
    with pytest.raises(WrongType, match=r"Plain\.half takes a Sender"):
        check_for(Plain).check(Plain(rx))  # type: ignore[arg-type]
    check_for(Sender[int]).check(tx)
    with pytest.raises(WrongType, match="cannot send a Receiver"):
        check_for(Sender[int]).check(rx)
    with pytest.raises(WrongType):
        check_for(int).check(rx)
    check_for(Any).check(rx)
    for half in (tx, threads):
        half.finish()


def test_a_codec_refuses_a_value_of_another_type_and_keeps_its_halves() -> None:
    tx, rx = channel(int)
    with pytest.raises(WrongType):
        codec_for(Point).encode({"half": tx})
    payload, halves = codec_for(Sum).encode(Sum(rx, tx))
    assert halves == [rx, tx]
    assert msgspec.msgpack.decode(payload) == {"numbers": 0, "reply": 1, "more": None}
    tx.finish()


async def test_a_wrong_value_is_a_type_error_of_the_call_on_local_channels_too() -> None:
    tx, rx = channel(Point)
    for value in (None, 1, {"x": 1}):
        with pytest.raises(TypeError, match="a channel of Point cannot send"):
            await tx.send(value)  # type: ignore[arg-type]
        with pytest.raises(aqueduct.EncodeError):
            tx.send_nowait(value)  # type: ignore[arg-type]
    await tx.send(Point(1))
    assert await rx.receive() == Point(1)
    tx.finish()


@pytest.mark.parametrize("kind", [5, "text", 1.5, [int], object()])
def test_what_cannot_be_the_type_of_a_message_is_refused_when_the_channel_is_made(
    kind: Any,
) -> None:
    for make in (channel, aqueduct.oneshot, blocking.channel, blocking.oneshot):
        with pytest.raises(TypeError, match="cannot be the type of a channel"):
            make(kind)


def test_a_wrong_value_sent_by_a_thread_is_a_type_error_of_the_call() -> None:
    tx, _rx = blocking.channel(int)
    with pytest.raises(TypeError):
        tx.send("text")  # type: ignore[arg-type]
    tx.finish()


async def test_a_wrong_request_is_refused_at_the_call() -> None:
    class Add(aqueduct.Request[int]):
        a: int

    class Other(aqueduct.Request[int]):
        a: int

    tx, rx = channel(Add)
    with pytest.raises(TypeError, match="cannot send an Other"):
        await asyncio.wait_for(tx.call(Other(1)), 60)
    tx.finish()
    rx.close()
