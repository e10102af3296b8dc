from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aqueduct.errors import RemoteProtocolError
from aqueduct.observe.trace.scan import MAX_HELD, PlainMessages, RichMessage, ScannedFrame, Scanner
from aqueduct.wire.frames import Frame, MessageFrame, RouteTo, message_head
from aqueduct.wire.primitives import encode_varint
from tests.wire.strategies import cut, sequences


def flat(found: list[ScannedFrame]) -> list[object]:
    """Split runs into messages, so that results do not depend on chunks."""
    result: list[object] = []
    for one in found:
        if isinstance(one, PlainMessages):
            result += [(one.first + at, size) for at, size in enumerate(one.sizes)]
        else:
            result.append(one)
    return result


def expected(frames: list[Frame]) -> list[object]:
    result: list[object] = []
    for frame in frames:
        if not isinstance(frame, MessageFrame):
            result.append(frame)
        elif frame.headers or frame.attachments:
            result.append(
                RichMessage(
                    frame.number,
                    frame.size,
                    len(frame.payload),
                    tuple(name for name, _ in frame.headers),
                    tuple(one.channel for one in frame.attachments),
                )
            )
        else:
            result.append((frame.number, len(frame.payload)))
    return result


@given(sequences(), st.lists(st.integers(0, 5_000), max_size=12))
def test_the_scanner_finds_all_frames_in_any_chunks(frames: list[Frame], cuts: list[int]) -> None:
    data = b"".join(frame.encode() for frame in frames)
    scanner = Scanner()
    found = [one for piece in cut(data, cuts) for one in scanner.feed(piece)]
    assert flat(found) == expected(frames)
    assert scanner.held == 0


@pytest.mark.parametrize("first", [0, 100, 127, 128, 16_300, 2**40])
@pytest.mark.parametrize("size", [0, 1, 100, 127, 128, 20_000])
def test_each_of_many_messages_of_one_size_is_found(first: int, size: int) -> None:
    payload = bytes(size)
    data = RouteTo(8).encode() + b"".join(
        message_head(number, size) + payload for number in range(first, first + 300)
    )
    (route, run) = Scanner().feed(data)
    assert route == RouteTo(8)
    assert isinstance(run, PlainMessages)
    assert run.first == first
    assert run.sizes == array("q", [size]) * 300


def test_a_run_of_one_size_ends_at_another_size() -> None:
    sizes = [10] * 50 + [11] * 50 + [10, 300] * 20 + [5] * 30
    data = RouteTo(0).encode() + b"".join(
        message_head(number, size) + bytes([4]) * size for number, size in enumerate(sizes)
    )
    (_, run) = Scanner().feed(data)
    assert isinstance(run, PlainMessages)
    assert run.sizes.tolist() == sizes


def test_payloads_are_not_held() -> None:
    scanner = Scanner()
    scanner.feed(RouteTo(0).encode() + message_head(0, 10_000_000))
    for _ in range(9):
        assert scanner.feed(bytes(1_000_000)) == []
    assert scanner.held == 0
    (run,) = scanner.feed(bytes(1_000_000))
    assert isinstance(run, PlainMessages)
    assert run.sizes.tolist() == [10_000_000]


def test_oversized_headers_are_rejected() -> None:
    scanner = Scanner()
    scanner.feed(RouteTo(0).encode() + b"\x04\x00" + encode_varint(2**60))
    scanner.feed(bytes(MAX_HELD - 100))
    with pytest.raises(RemoteProtocolError, match="AQ-SEQ-7"):
        scanner.feed(bytes(101))


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b"\x0d", "AQ-FRAME-2"),
        (b"\x04\x00\x00\x00\x00", "AQ-SEQ-3"),
        (b"\xef\x00", "AQ-FRAME-3"),
        (b"\x03\x80\x00", "AQ-VARINT-2"),
    ],
)
def test_malformed_frames_are_rejected_with_their_rule(data: bytes, rule: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        Scanner().feed(data)
    assert caught.value.rule == rule
