"""The incremental parser: the same frames from any chunks, the order of frames, and the limits."""

import gc
import re
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aqueduct.errors import CloseCode, RemoteProtocolError
from aqueduct.wire.chanid import Side, channel_id
from aqueduct.wire.frames import (
    PREAMBLE,
    AckReliable,
    AckVersion,
    Attachment,
    CancelSender,
    CloseReceiver,
    ConnectionHeaders,
    Dequeued,
    FinishSender,
    Frame,
    MessageFrame,
    MessageRun,
    RouteTo,
    Version,
    message_head,
)
from aqueduct.wire.primitives import MAX_VARINT, encode_varint
from aqueduct.wire.ranges import MAX_RANGES_SIZE
from aqueduct.wire.sequence import ParserLimits, SequenceParser
from tests.wire.cases import CASES, LIMITS, Case
from tests.wire.strategies import cut, sequences

ROUTE = RouteTo(0).encode()
every_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


def drain(parser: SequenceParser) -> list[Frame | MessageRun]:
    return list(iter(parser.next, None))


def parse(chunks: Iterable[bytes], limits: ParserLimits = LIMITS) -> list[Frame]:
    """Return all frames of a complete sequence, with runs split into messages."""
    parser = SequenceParser(limits)
    frames: list[Frame] = []
    for chunk in chunks:
        parser.feed(chunk)
        frames += flatten(drain(parser))
    parser.finish()
    assert parser.held == 0
    return frames


def flatten(frames: Iterable[Frame | MessageRun]) -> list[Frame]:
    flat: list[Frame] = []
    for frame in frames:
        if isinstance(frame, MessageRun):
            assert frame.payloads
            assert frame.size == sum(map(len, frame.payloads))
            flat += frame.messages()
        else:
            flat.append(frame)
    return flat


def bytewise(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def broken(data: bytes, limits: ParserLimits = LIMITS) -> RemoteProtocolError:
    """Return the error, which must be the same if the bytes arrive one by one."""
    errors = []
    for chunks in ([data], bytewise(data)):
        with pytest.raises(RemoteProtocolError) as caught:
            parse(chunks, limits)
        errors.append(caught.value)
    assert str(errors[0]) == str(errors[1])
    assert errors[0].code is errors[1].code
    return errors[0]


@every_case
def test_a_frame_is_decoded_as_the_table_says(case: Case) -> None:
    assert parse([case.sequence])[-1] == case.frame


@every_case
def test_a_frame_is_decoded_byte_by_byte_and_not_before_its_last_byte(case: Case) -> None:
    *most, last = bytewise(case.sequence)
    parser = SequenceParser(LIMITS)
    before: list[Frame] = []
    for byte in most:
        parser.feed(byte)
        before += flatten(drain(parser))
    assert before == ([] if case.sequence == case.encoded else [RouteTo(0)])
    parser.feed(last)
    assert flatten(drain(parser)) == [case.frame]
    parser.finish()


@every_case
def test_the_bytes_after_a_frame_are_left_for_the_next_one(case: Case) -> None:
    after = AckVersion() if case.connection_level else CancelSender()
    assert parse([case.sequence + after.encode()])[-2:] == [case.frame, after]


@every_case
def test_a_sequence_may_not_end_inside_a_frame(case: Case) -> None:
    """AQ-SEQ-4."""
    for length in range(1, len(case.encoded)):
        cut_off = case.sequence[: len(case.sequence) - len(case.encoded) + length]
        assert broken(cut_off).rule == "AQ-SEQ-4"


def test_an_empty_sequence_is_a_violation() -> None:
    """AQ-SEQ-5."""
    assert broken(b"").rule == "AQ-SEQ-5"


def test_a_sequence_that_is_reset_inside_a_frame_is_no_error() -> None:
    """AQ-SEQ-10: a parser that is dropped instead of finished raises nothing."""
    parser = SequenceParser(LIMITS)
    parser.feed(ROUTE + message_head(0, 100) + b"begun")
    assert drain(parser) == [RouteTo(0)]


@given(sequences())
def test_every_sequence_of_frames_round_trips(frames: list[Frame]) -> None:
    assert parse([b"".join(frame.encode() for frame in frames)]) == frames


@given(sequences(), st.lists(st.integers(min_value=0)))
def test_any_chunks_give_the_same_frames(frames: list[Frame], cuts: list[int]) -> None:
    data = b"".join(frame.encode() for frame in frames)
    assert parse(cut(data, cuts)) == frames
    assert parse(bytewise(data)) == frames

    parser = SequenceParser(LIMITS)
    for chunk in cut(data, cuts):
        parser.feed(chunk)
    assert parser.held == len(data)
    assert flatten(drain(parser)) == frames


@given(sequences(), st.lists(st.integers(min_value=0)), st.integers(min_value=0))
def test_queued_chunks_are_read_in_order(frames: list[Frame], cuts: list[int], pause: int) -> None:
    chunks = cut(b"".join(frame.encode() for frame in frames), cuts)
    parser = SequenceParser(LIMITS)
    found: list[Frame] = []
    for at, chunk in enumerate(chunks):
        parser.feed(chunk)
        if at % (pause % 3 + 1) == 0:
            frame = parser.next()
            found += flatten([] if frame is None else [frame])
    assert found + flatten(drain(parser)) == frames


def outcome(chunks: Iterable[bytes]) -> tuple[list[Frame], str]:
    parser = SequenceParser(LIMITS)
    frames: list[Frame] = []
    largest = LIMITS.max_message + 10
    try:
        for chunk in chunks:
            parser.feed(chunk)
            while (frame := parser.next()) is not None:
                frames += flatten([frame])
            assert parser.held <= largest
        parser.finish()
    except RemoteProtocolError as error:
        return frames, f"{error.code.name} {error}"
    return frames, ""


almost_frames = st.lists(
    st.one_of(
        st.binary(max_size=4),
        st.sampled_from([case.encoded for case in CASES]),
        st.sampled_from([PREAMBLE, ROUTE, b"\x04\x05\x00\x00", b"\xff" * 9, b"\x80\x00"]),
    ),
    max_size=12,
).map(b"".join)


@given(
    st.one_of(almost_frames, almost_frames.map(lambda data: ROUTE + data)),
    st.lists(st.integers(min_value=0)),
)
@example(ROUTE + message_head(MAX_VARINT, 0) + b"\x04" + b"\x80" * 9 + b"\x02\x00\x00\x00", [])
def test_arbitrary_bytes_have_the_same_outcome_in_any_chunks(data: bytes, cuts: list[int]) -> None:
    """Only RemoteProtocolError is raised, and no more is held than the limits allow."""
    assert outcome([data]) == outcome(cut(data, cuts)) == outcome(bytewise(data))


def test_consecutive_plain_messages_are_one_run() -> None:
    payloads = [bytes([at]) * at for at in range(200)]
    data = b"".join(message_head(100 + at, at) + payloads[at] for at in range(200))
    parser = SequenceParser(LIMITS)
    parser.feed(ROUTE + data)
    assert drain(parser) == [RouteTo(0), MessageRun(100, payloads, sum(range(200)))]


def test_a_run_continues_after_a_message_in_two_chunks() -> None:
    data = b"".join(message_head(at, 3) + b"abc" for at in range(6))
    for middle in range(len(data)):
        parser = SequenceParser(LIMITS)
        parser.feed(ROUTE + data[:middle])
        drain(parser)
        parser.feed(data[middle:])
        assert len(drain(parser)) == 1


def test_a_run_ends_at_a_gap_in_the_numbers() -> None:
    numbers = [5, 6, 8, 9, 9, 127, 128, 0]
    parser = SequenceParser(LIMITS)
    parser.feed(ROUTE + b"".join(message_head(number, 1) + b"x" for number in numbers))
    assert drain(parser)[1:] == [
        MessageRun(5, [b"x"] * 2, 2),
        MessageRun(8, [b"x"] * 2, 2),
        MessageRun(9, [b"x"], 1),
        MessageRun(127, [b"x"] * 2, 2),
        MessageRun(0, [b"x"], 1),
    ]


def test_a_run_ends_at_a_message_that_is_not_plain() -> None:
    other = MessageFrame(1, ((b"a", b"b"),), (), b"")
    parser = SequenceParser(LIMITS)
    parser.feed(ROUTE + b"\x04\x00\x00\x00\x00" + other.encode() + b"\x04\x02\x00\x00\x00")
    assert drain(parser)[1:] == [MessageRun(0, [b""], 0), other, MessageRun(2, [b""], 0)]


def test_a_run_holds_payloads_with_any_size_of_length_prefix() -> None:
    limits = ParserLimits(max_message=3 * 2**20, max_headers=0, max_attachments=0)
    payloads = [b"x" * size for size in (0, 127, 128, 16383, 16384, 2**21 - 1, 2**21)]
    data = b"".join(message_head(at, len(body)) + body for at, body in enumerate(payloads))
    parser = SequenceParser(limits)
    parser.feed(ROUTE + data)
    assert drain(parser)[1:] == [MessageRun(0, payloads, sum(map(len, payloads)))]


def test_the_messages_before_a_malformed_one_are_returned() -> None:
    parser = SequenceParser(LIMITS)
    parser.feed(ROUTE + b"\x04\x00\x00\x00\x01x" + b"\x04\x01\x00\x00\x81\x80\x00")
    assert parser.next() == RouteTo(0)
    assert parser.next() == MessageRun(0, [b"x"], 1)
    with pytest.raises(RemoteProtocolError, match="AQ-VARINT-2"):
        parser.next()


@pytest.mark.parametrize("tag", [0, 13, 14, 127, 128, 238, 240, 255])
def test_an_unknown_tag_is_rejected(tag: int) -> None:
    """AQ-FRAME-2."""
    assert broken(bytes([tag])).rule == "AQ-FRAME-2"
    assert broken(ROUTE + bytes([tag])).rule == "AQ-FRAME-2"


@pytest.mark.parametrize("wrong", range(1, 16))
def test_version_is_rejected_at_the_first_wrong_byte(wrong: int) -> None:
    """AQ-FRAME-3."""
    data = bytearray(PREAMBLE[: wrong + 1])
    data[wrong] ^= 0x20
    assert broken(bytes(data)).rule == "AQ-FRAME-3"
    parser = SequenceParser(LIMITS)
    parser.feed(PREAMBLE[:wrong])
    assert parser.next() is None


def test_version_may_come_twice() -> None:
    assert parse([Version().encode() * 2]) == [Version(), Version()]


@pytest.mark.parametrize("frame", [Version(), AckVersion(), ConnectionHeaders(())])
def test_a_connection_frame_after_route_to_is_a_violation(frame: Frame) -> None:
    """AQ-SEQ-1."""
    assert parse([frame.encode() + ROUTE]) == [frame, RouteTo(0)]
    assert broken(ROUTE + frame.encode()).rule == "AQ-SEQ-1"
    assert broken(ROUTE + CancelSender().encode() + frame.encode()).rule == "AQ-SEQ-1"


def test_a_second_route_to_is_a_violation() -> None:
    """AQ-SEQ-2."""
    assert broken(ROUTE + ROUTE).rule == "AQ-SEQ-2"
    assert broken(ROUTE + CancelSender().encode() + RouteTo(8).encode()).rule == "AQ-SEQ-2"


@pytest.mark.parametrize("tag", range(4, 13))
def test_a_channel_frame_without_route_to_is_a_violation(tag: int) -> None:
    """AQ-SEQ-3."""
    assert broken(bytes([tag])).rule == "AQ-SEQ-3"
    assert broken(Version().encode() + bytes([tag])).rule == "AQ-SEQ-3"


def rejected_by_length(head: bytes, length: int, rule: str) -> bool:
    """Return whether a length of one over the limit is rejected before its contents."""
    parser = SequenceParser(LIMITS)
    parser.feed(head + encode_varint(length))
    drain(parser)
    error = broken(head + encode_varint(length + 1))
    assert error.code is CloseCode.LIMIT_EXCEEDED
    return error.rule == rule


def test_a_message_over_the_limit_is_rejected_before_it_arrives() -> None:
    """AQ-SEQ-6."""
    limit = LIMITS.max_message
    assert rejected_by_length(ROUTE + b"\x04\x00\x00\x00", limit, "AQ-SEQ-6")
    assert rejected_by_length(ROUTE + b"\x04\x00\x00", limit, "AQ-SEQ-6")
    partly = b"\x04\x00" + b"\x04\x01a\x01b" + b"\x02\x01\x00"
    assert rejected_by_length(ROUTE + partly, limit - 6, "AQ-SEQ-6")


def test_the_limit_applies_to_each_message() -> None:
    """AQ-SEQ-6."""
    size = LIMITS.max_message - 4
    message = MessageFrame(0, ((b"a", b"b"),), (), b"x" * size)
    assert message.size == LIMITS.max_message
    assert parse([ROUTE + message.encode() * 3]) == [RouteTo(0)] + [message] * 3
    assert parse(bytewise(ROUTE + message.encode() * 2)) == [RouteTo(0)] + [message] * 2


def test_header_data_over_the_limit_is_rejected_before_it_arrives() -> None:
    """AQ-SEQ-7."""
    assert rejected_by_length(b"\x02", LIMITS.max_headers, "AQ-SEQ-7")
    assert rejected_by_length(ROUTE + b"\x04\x00", LIMITS.max_headers, "AQ-SEQ-7")
    headers = ((b"a" * 253, b""),)
    attachment = Attachment(8, headers)
    assert parse([ROUTE + MessageFrame(0, (), (attachment,), b"").encode()])
    headers = ((b"a" * 253, b"b"),)
    data = ROUTE + MessageFrame(0, (), (Attachment(8, headers),), b"").encode()
    assert broken(data).rule == "AQ-SEQ-7"


def test_a_message_has_a_limited_number_of_attachments() -> None:
    """AQ-SEQ-8."""
    limit = LIMITS.max_attachments
    attachments = tuple(Attachment(channel, ()) for channel in range(8, 9 + limit))
    assert parse([ROUTE + MessageFrame(0, (), attachments[:limit], b"").encode()])
    error = broken(ROUTE + MessageFrame(0, (), attachments, b"").encode())
    assert error.rule == "AQ-SEQ-8"
    assert error.code is CloseCode.LIMIT_EXCEEDED


def test_a_version_text_over_the_limit_is_rejected_before_it_arrives() -> None:
    """AQ-SEQ-9."""
    assert rejected_by_length(PREAMBLE, LIMITS.max_version, "AQ-SEQ-9")


@pytest.mark.parametrize("tag", [8, 9])
def test_ranges_over_the_limit_are_rejected_before_they_arrive(tag: int) -> None:
    """AQ-RANGE-5."""
    assert rejected_by_length(ROUTE + bytes([tag]), MAX_RANGES_SIZE, "AQ-RANGE-5")


def test_held_counts_the_bytes_of_incomplete_frames() -> None:
    parser = SequenceParser(LIMITS)
    parser.feed(ROUTE + b"\x04\x00" + b"\x04\x01a\x01b" + b"\x00" + b"\x0aabcde")
    assert drain(parser) == [RouteTo(0)]
    assert parser.held == 4 + 5
    parser.feed(b"fghi")
    parser.feed(b"j\x04\x01")
    assert parser.held == 4 + 5 + 4 + 3
    assert len(drain(parser)) == 1
    assert parser.held == 0
    parser.feed(b"\x80")
    assert drain(parser) == []
    assert parser.held == 1


def memory_of_holding(chunks: Iterable[bytes], limits: ParserLimits) -> int:
    parser = SequenceParser(limits)
    gc.collect()
    tracemalloc.start()
    try:
        for chunk in chunks:
            parser.feed(chunk)
            drain(parser)
            del chunk
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_memory_of_a_payload_in_tiny_chunks_is_proportional_to_its_bytes() -> None:
    limits = ParserLimits(max_message=200_000, max_headers=0, max_attachments=0)
    head = ROUTE + message_head(0, 200_000)
    drops = (bytes(3) for _ in range(30_000))
    assert memory_of_holding([head, *drops], limits) < 2 * 90_000 + 30_000


def test_a_small_piece_does_not_keep_its_large_chunk_alive() -> None:
    limits = ParserLimits(max_message=200_000, max_headers=0, max_attachments=0)
    chunk = (ROUTE + message_head(0, 100_000) + bytes(100_000) + message_head(1, 9) for _ in "1")
    assert memory_of_holding(chunk, limits) < 50_000


def examples_of_the_specification() -> list[bytes]:
    page = Path(__file__).parents[2] / "docs" / "spec" / "2-frames.md"
    blocks = re.findall(
        r"^```hexdump\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    dumps = [re.findall(r"^(?:[0-9A-F]{2} {1,2})+", block + "\n", re.MULTILINE) for block in blocks]
    return [bytes.fromhex("".join(lines)) for lines in dumps]


def test_the_examples_of_the_specification_are_valid() -> None:
    first, forth, back = examples_of_the_specification()
    assert parse([first]) == [Version(), ConnectionHeaders(((b"lang", b"py"),))]
    channel = channel_id(Side.CLIENT, Side.CLIENT, False, 3)
    answer = Attachment(channel_id(Side.CLIENT, Side.SERVER, True, 0), ())
    messages = [MessageFrame(0, ((b"k", b"v"),), (answer,), b"hi"), MessageFrame(1, (), (), b"bye")]
    assert parse([forth]) == [RouteTo(channel), *messages, FinishSender(2)]
    assert parse([back]) == [
        RouteTo(channel),
        AckReliable(((0, 2),)),
        Dequeued(sum(message.size for message in messages)),
        CloseReceiver(),
    ]
