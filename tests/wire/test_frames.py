"""The frames' bytes, one case each, and the fast encoder of plain messages."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aqueduct.errors import CloseCode, RemoteProtocolError
from aqueduct.wire.chanid import ENTRYPOINT
from aqueduct.wire.frames import (
    PREAMBLE,
    Attachment,
    Frame,
    MessageFrame,
    MessageRun,
    Version,
    decode_attachments,
    message_head,
    plain_frames,
)
from aqueduct.wire.primitives import MAX_VARINT, decode_varbytes, decode_varint, encode_varbytes
from tests.wire.cases import CASES, Case
from tests.wire.strategies import channel_frames, connection_frames, messages, varints

every_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


@every_case
def test_a_frame_is_encoded_as_the_table_says(case: Case) -> None:
    """AQ-FRAME-3 to AQ-FRAME-17, as named in each case."""
    assert case.frame.encode() == case.encoded


def test_the_table_has_a_case_for_every_layout() -> None:
    """AQ-FRAME-9 is about values, not layout; the rest of AQ-FRAME-3 to AQ-FRAME-17 is here."""
    layouts = {3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 16, 17}
    assert {case.rule for case in CASES} == {f"AQ-FRAME-{number}" for number in layouts}


@every_case
def test_every_frame_is_a_tag_then_a_varint_then_varbytes(case: Case) -> None:
    """AQ-FRAME-1."""
    data = case.encoded
    assert data[0] == type(case.frame).TAG
    pos, end = 1, len(data)
    if isinstance(case.frame, Version):
        assert data.startswith(PREAMBLE)
        pos = len(PREAMBLE)
    for _ in range(case.varints):
        _, pos = decode_varint(data, pos, end)
    for _ in range(case.varbytes):
        _, pos = decode_varbytes(data, pos, end)
    assert pos == end
    assert case.varints <= 1
    assert case.varbytes <= 3


@every_case
def test_a_frame_is_a_frozen_value(case: Case) -> None:
    frame = case.frame
    names = [field.name for field in dataclasses.fields(frame)]
    twin = type(frame)(*[getattr(frame, name) for name in names])
    assert twin == frame
    assert hash(twin) == hash(frame)
    assert not hasattr(frame, "__dict__")
    for name in names:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(frame, name, getattr(frame, name))


def test_frames_without_fields_still_differ() -> None:
    kinds = {case.frame for case in CASES if not dataclasses.fields(case.frame)}
    assert len(kinds) == 4


@given(messages)
def test_the_size_of_a_message_is_the_length_of_its_three_contents(message: MessageFrame) -> None:
    data = message.encode()
    _, pos = decode_varint(data, 1, len(data))
    size = 0
    for _ in range(3):
        contents, pos = decode_varbytes(data, pos, len(data))
        size += len(contents)
    assert message.size == size


@given(st.one_of(connection_frames, channel_frames))
def test_two_frames_with_the_same_bytes_are_equal(frame: Frame) -> None:
    for case in CASES:
        assert (case.frame == frame) is (case.encoded == frame.encode())


@given(varints, st.integers(0, 40_000))
def test_the_head_of_a_plain_message_is_all_but_its_payload(number: int, size: int) -> None:
    """AQ-FRAME-7."""
    payload = bytes(size)
    assert message_head(number, size) + payload == MessageFrame(number, (), (), payload).encode()


@given(
    st.one_of(st.integers(0, 300), st.integers(2**21 - 150, 2**21 + 10), varints),
    st.lists(st.sampled_from([b"", b"a", b"bc", bytes(200), bytes(20_000)]), max_size=300),
)
def test_plain_messages_are_the_same_encoded_together_or_one_by_one(
    first: int, payloads: list[bytes]
) -> None:
    """AQ-FRAME-7."""
    first = min(first, MAX_VARINT - len(payloads))
    each = [
        MessageFrame(first + at, (), (), payload).encode() for at, payload in enumerate(payloads)
    ]
    assert b"".join(plain_frames(first, payloads)) == b"".join(each)


def attachments(*pairs: tuple[int, bytes]) -> bytes:
    return b"".join(
        Attachment(channel, ()).encode()[:-1] + encode_varbytes(headers)
        for channel, headers in pairs
    )


@pytest.mark.parametrize(
    "contents",
    [
        attachments((ENTRYPOINT, b"")),
        attachments((9, b""), (ENTRYPOINT, b"")),
        attachments((9, b""), (9, b"")),
        attachments((300, b""), (9, b""), (300, b"\x01a\x01b")),
    ],
)
def test_a_message_attaches_a_channel_once_and_never_the_entrypoint(contents: bytes) -> None:
    """AQ-FRAME-9."""
    with pytest.raises(RemoteProtocolError) as caught:
        decode_attachments(contents, 256, 256)
    assert caught.value.rule == "AQ-FRAME-9"


@pytest.mark.parametrize("contents", ["09", "89", "09 01", "09 00 0A", "09 02 00"])
def test_an_attachment_that_runs_past_the_attachments_is_rejected(contents: str) -> None:
    """AQ-BYTES-2."""
    with pytest.raises(RemoteProtocolError) as caught:
        decode_attachments(bytes.fromhex(contents), 256, 256)
    assert caught.value.rule == "AQ-BYTES-2"


def test_attachments_are_limited_in_number_and_in_their_headers() -> None:
    """AQ-SEQ-7, AQ-SEQ-8."""
    two = attachments((1, b"\x01a\x01b"), (2, b""))
    assert len(decode_attachments(two, 2, 4)) == 2
    for max_attachments, max_headers, rule in [(1, 4, "AQ-SEQ-8"), (2, 3, "AQ-SEQ-7")]:
        with pytest.raises(RemoteProtocolError) as caught:
            decode_attachments(two, max_attachments, max_headers)
        assert caught.value.rule == rule
        assert caught.value.code is CloseCode.LIMIT_EXCEEDED


def test_a_run_yields_its_messages() -> None:
    run = MessageRun(126, [b"a", b"", b"bc"], 3)
    assert list(run.messages()) == [
        MessageFrame(126, (), (), b"a"),
        MessageFrame(127, (), (), b""),
        MessageFrame(128, (), (), b"bc"),
    ]
    assert run == MessageRun(126, [b"a", b"", b"bc"], 3)
    assert run != MessageRun(125, [b"a", b"", b"bc"], 3)
    assert run != MessageRun(126, [b"a", b""], 1)
    assert run != MessageFrame(126, (), (), b"a")
    assert repr(run) == "MessageRun(first=126, payloads=[b'a', b'', b'bc'], size=3)"
