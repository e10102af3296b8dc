"""PDUs on a stream of bytes."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aqueduct.errors import RemoteProtocolError
from aqueduct.ipc.core.framing import HEAD_SIZE, Deframer, frame_head

LARGEST = 1_000

CASES = [
    ("nothing", b"", []),
    ("one PDU", b"\x01\x00\x00\x00\x03abc", [b"abc"]),
    ("an empty PDU", b"\x01\x00\x00\x00\x00", [b""]),
    ("two PDUs", b"\x01\x00\x00\x00\x01a\x01\x00\x00\x00\x02bc", [b"a", b"bc"]),
    ("the largest PDU", b"\x01\x00\x00\x03\xe8" + bytes(1_000), [bytes(1_000)]),
    ("a PDU that looks like a frame", b"\x01\x00\x00\x00\x05\x01\0\0\0\0", [b"\x01\0\0\0\0"]),
]

BAD_CASES = [
    ("type 0", b"\x00\x00\x00\x00\x00", "IPC-TCP-2"),
    ("type 2", b"\x02\x00\x00\x00\x01a", "IPC-TCP-2"),
    ("plain text", b"GET / HTTP/1.1\r\n\r\n", "IPC-TCP-2"),
    ("one byte too many", b"\x01\x00\x00\x03\xe9", "IPC-TCP-3"),
    ("four gigabytes", b"\x01\xff\xff\xff\xff", "IPC-TCP-3"),
]


def framed(pdus: list[bytes]) -> bytes:
    return b"".join(frame_head(len(pdu)) + pdu for pdu in pdus)


@pytest.mark.parametrize(
    ("stream", "pdus"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_pdus_are_parsed_at_once_and_byte_by_byte(stream: bytes, pdus: list[bytes]) -> None:
    """IPC-TCP-1."""
    assert framed(pdus) == stream
    whole = Deframer(LARGEST)
    whole.handle_data(stream)
    assert whole.poll_pdus() == pdus
    assert whole.poll_pdus() == []
    bytewise = Deframer(LARGEST)
    found = []
    for at in range(len(stream)):
        bytewise.handle_data(memoryview(stream)[at : at + 1])
        found += bytewise.poll_pdus()
    assert found == pdus
    assert whole.held == bytewise.held == 0


@pytest.mark.parametrize(
    ("stream", "rule"), [c[1:] for c in BAD_CASES], ids=[c[0] for c in BAD_CASES]
)
@pytest.mark.parametrize("step", [1, 2, 1_000])
def test_an_invalid_frame_is_rejected_by_its_first_bytes(
    stream: bytes, rule: str, step: int
) -> None:
    deframer = Deframer(LARGEST)
    whole = framed([b"before"]) + stream
    before_it_is_known = len(whole) - len(stream) + HEAD_SIZE - 1

    def feed() -> None:
        for at in range(0, len(whole), step):
            assert at <= before_it_is_known
            deframer.handle_data(whole[at : at + step])

    with pytest.raises(RemoteProtocolError) as caught:
        feed()
    assert caught.value.rule == rule
    assert deframer.poll_pdus() == [b"before"]


def test_a_pdu_does_not_alias_the_input_buffer() -> None:
    buffer = bytearray(framed([b"abc"]) + b"\x01")
    deframer = Deframer(LARGEST)
    deframer.handle_data(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    deframer.handle_data(b"\x00\x00\x00\x01x")
    pdus = deframer.poll_pdus()
    assert pdus == [b"abc", b"x"]
    assert {type(pdu) for pdu in pdus} == {bytes}


@given(
    st.lists(st.binary(max_size=40), max_size=20),
    st.lists(st.integers(0, 400), max_size=20),
    st.binary(max_size=4).map(lambda start: b"\x01\x00\x00\x00"[: len(start)]),
)
def test_chunk_boundaries_do_not_matter(pdus: list[bytes], cuts: list[int], rest: bytes) -> None:
    stream = framed(pdus) + rest
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    deframer = Deframer(LARGEST)
    for start, stop in itertools.pairwise(edges):
        deframer.handle_data(stream[start:stop])
    assert deframer.poll_pdus() == pdus
    assert deframer.held == len(rest)


@given(st.binary(max_size=200), st.integers(1, 200))
def test_arbitrary_bytes_parse_alike_for_all_chunk_boundaries(data: bytes, cut: int) -> None:
    def outcome(pieces: list[bytes]) -> tuple[list[bytes], str]:
        deframer = Deframer(LARGEST)
        rule = ""
        try:
            for piece in pieces:
                deframer.handle_data(piece)
        except RemoteProtocolError as error:
            rule = error.rule
        return deframer.poll_pdus(), rule

    data = b"\x01\x00\x00\x00" + data
    assert outcome([data]) == outcome([data[:cut], data[cut:]])


def test_a_large_pdu_in_tiny_pieces_takes_no_quadratic_time() -> None:
    size = 1_000_000
    stream = framed([bytes(size)])
    deframer = Deframer(size)
    begun = time.process_time()
    for at in range(0, len(stream), 16):
        deframer.handle_data(stream[at : at + 16])
    assert time.process_time() - begun < 2
    assert deframer.poll_pdus() == [bytes(size)]
