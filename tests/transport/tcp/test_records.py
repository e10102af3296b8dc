"""The records and frames of QMux."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aqueduct.errors import RemoteProtocolError
from aqueduct.transport.tcp.records import (
    MAX_INTEGER,
    MAX_RECORD,
    MIN_RECORD,
    Close,
    Datagram,
    Frame,
    Ignored,
    Parameters,
    Ping,
    RecordReader,
    RecordWriter,
    StreamData,
    StreamLimit,
    StreamReset,
    decode_frame,
    decode_integer,
    encode_frame,
    encode_integer,
)

integers = st.one_of(st.integers(0, 300), st.integers(0, MAX_INTEGER))
small = st.binary(max_size=50)
frames = st.one_of(
    st.builds(StreamData, integers, integers, small, st.booleans()),
    st.builds(StreamReset, integers, integers, integers),
    st.builds(Datagram, small),
    st.builds(StreamLimit, integers),
    st.builds(Ping, integers, st.booleans()),
    st.builds(Close, integers, st.text(max_size=20), st.booleans()),
    st.builds(Parameters, *[integers] * 6),
    st.just(Ignored()),
)

# Encodings from RFC 9000 (A.1 and 19) and from the draft, written by hand.
CASES: list[tuple[str, Frame]] = [
    ("0a 03 02 6869", StreamData(3, 0, b"hi", False)),
    ("0f 02 40ff 01 78", StreamData(2, 255, b"x", True)),
    ("04 06 10 4400", StreamReset(6, 16, 1_024)),
    ("31 02 6869", Datagram(b"hi")),
    ("13 80020000", StreamLimit(131_072)),
    ("f48c67529ef8c7bd 07", Ping(7, False)),
    ("f48c67529ef8c7be 07", Ping(7, True)),
    ("1d 08 03 627965", Close(8, "bye")),
    ("1c 01 00 00", Close(1, "", by_application=False)),
    (
        "ff5153300d0a0d0a 24 01 02 7a98 04 08 ffffffffffffffff 07 08 ffffffffffffffff 09 01 3f"
        "20 01 01",
        Parameters(15_000, MAX_INTEGER, MAX_INTEGER, 63, 1),
    ),
]


@pytest.mark.parametrize(("text", "frame"), CASES, ids=[str(frame)[:40] for _, frame in CASES])
def test_frames_have_the_encodings_of_the_standards(text: str, frame: Frame) -> None:
    data = bytes.fromhex(text)
    if isinstance(frame, Parameters):  # others are valid, too: what is missing has a default
        contents = data[9:]
        data = data[:8] + encode_integer(len(contents)) + contents
    assert decode_frame(data, 0, len(data)) == (frame, len(data))
    if not isinstance(frame, Parameters):
        assert encode_frame(frame) == data


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("25", 37),
        ("7bbd", 15_293),
        ("9d7f3e7d", 494_878_333),
        ("c2197c5eff14e88c", 151288809941952652),
    ],
)
def test_integers_have_the_encodings_of_rfc_9000(text: str, value: int) -> None:
    data = bytes.fromhex(text)
    assert encode_integer(value) == data
    assert decode_integer(data, 0, len(data)) == (value, len(data))


@given(frames)
def test_every_frame_decodes_to_itself(frame: Frame) -> None:
    data = encode_frame(frame)
    assert decode_frame(b"?" + data + b"?", 1, len(data) + 1) == (frame, len(data) + 1)


@given(frames)
def test_a_frame_that_is_cut_off_is_a_violation(frame: Frame) -> None:
    """AQ-TCP-5."""
    data = encode_frame(frame)
    for end in range(len(data)):
        with pytest.raises(RemoteProtocolError, match="AQ-TCP-5"):
            decode_frame(data, 0, end)


def test_a_frame_without_a_length_reaches_to_the_end_of_its_record() -> None:
    assert decode_frame(b"\x0d\x06\x02rest...", 0, 7) == (StreamData(6, 2, b"rest", True), 7)
    assert decode_frame(b"\x30rest...", 0, 5) == (Datagram(b"rest"), 5)


@pytest.mark.parametrize(
    "text",
    ["00", "05 03 10", "10 3f", "11 03 3f", "12 3f", "14 3f", "15 03 3f", "16 3f", "17 3f"],
)
def test_other_frames_of_qmux_are_ignored(text: str) -> None:
    """AQ-TCP-6."""
    data = bytes.fromhex(text)
    assert decode_frame(data, 0, len(data)) == (Ignored(), len(data))


@pytest.mark.parametrize("kind", [0x01, 0x02, 0x06, 0x07, 0x18, 0x19, 0x1A, 0x1B, 0x1E, 0x21])
def test_frames_that_qmux_prohibits_are_violations(kind: int) -> None:
    """AQ-TCP-6."""
    with pytest.raises(RemoteProtocolError, match="AQ-TCP-6"):
        decode_frame(bytes((kind, 0, 0, 0)), 0, 4)


def test_a_parameter_that_is_stated_twice_or_is_no_integer_is_a_violation() -> None:
    """AQ-TCP-4."""
    head = encode_frame(Parameters())[:8]
    for contents in ("01 01 05 01 01 05", "09 02 3f3f"):
        inside = bytes.fromhex(contents)
        data = head + encode_integer(len(inside)) + inside
        with pytest.raises(RemoteProtocolError, match="AQ-TCP-4"):
            decode_frame(data, 0, len(data))


@pytest.mark.parametrize("name", [0x00, 0x02, 0x03, 0x0A, 0x0B, 0x0C, 0x0D, 0x0E, 0x0F, 0x10])
def test_a_parameter_of_quic_that_qmux_prohibits_is_a_violation(name: int) -> None:
    """AQ-TCP-4."""
    inside = bytes((name, 1, 5))
    data = encode_frame(Parameters())[:8] + encode_integer(len(inside)) + inside
    with pytest.raises(RemoteProtocolError, match=f"AQ-TCP-4: QMux prohibits .* {name:#x}"):
        decode_frame(data, 0, len(data))


def test_parameters_that_are_unknown_or_of_bidirectional_streams_are_ignored() -> None:
    inside = bytes.fromhex("4242 03 ffffff 05 01 07 06 01 07 08 01 07 09 01 07")
    data = encode_frame(Parameters())[:8] + encode_integer(len(inside)) + inside
    assert decode_frame(data, 0, len(data))[0] == Parameters(max_streams=7)


# Records


def records_in(pieces: list[bytes]) -> list[bytes]:
    reader = RecordReader()
    found = []
    for piece in pieces:
        reader.feed(piece)
        while (record := reader.next()) is not None:
            data, start, stop = record
            found.append(data[start:stop])
    assert reader.next() is None
    return found


@given(
    st.lists(st.binary(min_size=1, max_size=300), max_size=8),
    st.lists(st.integers(0, 2_500), max_size=12),
)
def test_records_are_found_however_the_bytes_are_cut(
    contents: list[bytes], cuts: list[int]
) -> None:
    """AQ-TCP-3."""
    data = b"".join(encode_integer(len(each)) + each for each in contents)
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:stop] for start, stop in pairwise(bounds)]
    assert records_in(pieces) == contents


@pytest.mark.parametrize("size", [0, MAX_RECORD + 1, MAX_INTEGER])
def test_an_empty_record_and_one_that_is_too_long_are_violations(size: int) -> None:
    """AQ-TCP-3: before anything of it is kept."""
    reader = RecordReader()
    reader.feed(encode_integer(size))
    with pytest.raises(RemoteProtocolError, match="AQ-TCP-3"):
        reader.next()


def test_the_largest_record_is_taken_byte_by_byte_in_little_time() -> None:
    contents = bytes(MAX_RECORD)
    data = encode_integer(MAX_RECORD) + contents
    assert records_in([data[at : at + 1] for at in range(len(data))]) == [contents]


@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_buffer_can_be_used_again_after_its_bytes_were_added(size: int) -> None:
    contents = [bytes([number]) * 20 for number in range(10)]
    data = b"".join(encode_integer(len(each)) + each for each in contents)
    buffer = bytearray(size)
    reader = RecordReader()
    found = []
    for start in range(0, len(data), size):
        piece = data[start : start + size]
        buffer[: len(piece)] = piece
        reader.feed(memoryview(buffer)[: len(piece)])
        buffer[:] = bytes(size)
        while (cut := reader.next()) is not None:
            whole, begin, stop = cut
            found.append(whole[begin:stop])
    assert found == contents
    assert reader.held == 0


def test_frames_are_packed_into_records_that_the_peer_takes() -> None:
    """AQ-TCP-3."""
    writer = RecordWriter()
    for _ in range(5):
        writer.add(b"h", bytes(MIN_RECORD // 2 - 1))
    assert [len(record) for record in records_in(writer.take())] == [
        MIN_RECORD,
        MIN_RECORD,
        MIN_RECORD // 2,
    ]
    writer.set_limit(10 * MAX_RECORD)
    for _ in range(4):
        writer.add(b"h", bytes(MIN_RECORD - 1))
    writer.add(b"small")
    assert [len(record) for record in records_in(writer.take())] == [4 * MIN_RECORD + 5]
    assert writer.take() == []
