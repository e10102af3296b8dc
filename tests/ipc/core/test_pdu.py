"""PDUs to bytes and back: one table of good ones, one of violations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aqueduct.errors import RemoteProtocolError
from aqueduct.ipc.core.pdu import (
    MAX_INT32,
    Code,
    Data,
    DataAck,
    Header,
    HeaderAck,
    Pdu,
    data_head,
    decode,
    decode_owner,
    decode_size,
    encode_size,
    header_head,
)

M = bytes(range(0xA0, 0xB0))
D = bytes(range(0xC0, 0xD0))
MHEX = M.hex()
DHEX = D.hex()

CASES: list[tuple[str, Pdu, str]] = [
    ("empty message", Header(M, D, 0), f"03 10 00000000 {MHEX} {DHEX} 00000000"),
    ("header alone", Header(M, D, 258), f"03 10 00000000 {MHEX} {DHEX} 00000102"),
    ("header", Header(M, D, 3, b"abc"), f"03 10 00000000 {MHEX} {DHEX} 00000003 616263"),
    ("largest", Header(M, D, MAX_INT32, b"a"), f"03 10 00000000 {MHEX} {DHEX} 7fffffff 61"),
    ("header ack", HeaderAck(M), f"04 10 00000000 {MHEX} 0000"),
    ("wrong id", HeaderAck(M, 2, D), f"04 10 00000000 {MHEX} 0002 {DHEX}"),
    ("too large", HeaderAck(M, 5, b"\0\0\1\2"), f"04 10 00000000 {MHEX} 0005 00000102"),
    ("highest code", HeaderAck(M, 0x7FFF), f"04 10 00000000 {MHEX} 7fff"),
    ("data", Data(M, D, 1, b"xyz"), f"01 10 00000000 {MHEX} {DHEX} 00000001 78797a"),
    ("abort", Data(M, D, 515), f"01 10 00000000 {MHEX} {DHEX} 00000203"),
    ("last data", Data(M, D, MAX_INT32), f"01 10 00000000 {MHEX} {DHEX} 7fffffff"),
    ("data ack", DataAck(M, 7), f"02 10 00000000 {MHEX} 00000007 0000"),
    ("refusal", DataAck(M, 258, 1), f"02 10 00000000 {MHEX} 00000102 0001"),
    ("with payload", DataAck(M, 1, 2, D), f"02 10 00000000 {MHEX} 00000001 0002 {DHEX}"),
]
IDS = [name for name, _, _ in CASES]
HEADS = {Header: 42, Data: 42, HeaderAck: 24, DataAck: 28}

ZEROS = "00" * 16
VIOLATIONS: list[tuple[str, str, str]] = [
    ("opcode 0", "IPC-PDU-1", f"00 10 00000000 {MHEX} {DHEX} 00000001"),
    ("opcode 5", "IPC-PDU-1", f"05 10 00000000 {MHEX} {DHEX} 00000001"),
    ("nothing", "IPC-PDU-2", ""),
    ("version 0", "IPC-PDU-3", f"03 00 00000000 {MHEX} {DHEX} 00000000"),
    ("version 2", "IPC-PDU-3", f"04 20 00000000 {MHEX} 0000"),
    ("no message id in a header", "IPC-PDU-4", f"03 10 00000000 {ZEROS} {DHEX} 00000000"),
    ("no message id in a data", "IPC-PDU-4", f"01 10 00000000 {ZEROS} {DHEX} 00000001"),
    ("no message id in a header ack", "IPC-PDU-4", f"04 10 00000000 {ZEROS} 0000"),
    ("no message id in a data ack", "IPC-PDU-4", f"02 10 00000000 {ZEROS} 00000001 0000"),
    ("no destination in a header", "IPC-PDU-4", f"03 10 00000000 {MHEX} {ZEROS} 00000000"),
    ("no destination in a data", "IPC-PDU-4", f"01 10 00000000 {MHEX} {ZEROS} 00000001"),
    ("length below 0", "IPC-PDU-5", f"03 10 00000000 {MHEX} {DHEX} ffffffff"),
    ("data number 0", "IPC-PDU-5", f"01 10 00000000 {MHEX} {DHEX} 00000000"),
    ("data number below 0", "IPC-PDU-5", f"01 10 00000000 {MHEX} {DHEX} 80000000"),
    ("ack number 0", "IPC-PDU-5", f"02 10 00000000 {MHEX} 00000000 0000"),
    ("code below 0 in a header ack", "IPC-PDU-6", f"04 10 00000000 {MHEX} ffff"),
    ("code below 0 in a data ack", "IPC-PDU-6", f"02 10 00000000 {MHEX} 00000001 8000"),
    ("header ack of 513 bytes", "IPC-PDU-7", f"04 10 00000000 {MHEX} 0000" + "61" * 489),
    ("data ack of 513 bytes", "IPC-PDU-7", f"02 10 00000000 {MHEX} 00000001 0000" + "61" * 485),
]

ids = st.binary(min_size=16, max_size=16).filter(any)
numbers = st.integers(1, MAX_INT32)
codes = st.integers(0, 0x7FFF)
payloads = st.binary(max_size=64)
pdus: st.SearchStrategy[Pdu] = st.one_of(
    st.builds(Header, ids, ids, st.integers(0, MAX_INT32), st.binary()),
    st.builds(Data, ids, ids, numbers, st.binary()),
    st.builds(HeaderAck, ids, codes, payloads),
    st.builds(DataAck, ids, numbers, codes, payloads),
)


@pytest.mark.parametrize(("_", "pdu", "expected"), CASES, ids=IDS)
def test_a_pdu_encodes_to_the_specified_bytes(_: str, pdu: Pdu, expected: str) -> None:
    """IPC-PDU-1, IPC-PDU-2, IPC-PDU-3: opcode, version, reserved zeros, fields in order."""
    assert pdu.encode().hex() == expected.replace(" ", "")


@pytest.mark.parametrize(("_", "pdu", "encoded"), CASES, ids=IDS)
def test_the_specified_bytes_decode_to_the_pdu(_: str, pdu: Pdu, encoded: str) -> None:
    assert decode(bytes.fromhex(encoded)) == pdu


@pytest.mark.parametrize(("_", "pdu", "encoded"), CASES, ids=IDS)
def test_reserved_bytes_are_ignored(_: str, pdu: Pdu, encoded: str) -> None:
    """IPC-PDU-3."""
    data = bytearray.fromhex(encoded)
    data[2:6] = b"\xff\x01\x80\x7f"
    assert decode(bytes(data)) == pdu


@pytest.mark.parametrize(("_", "pdu", "encoded"), CASES, ids=IDS)
def test_a_truncated_pdu_is_malformed(_: str, pdu: Pdu, encoded: str) -> None:
    """IPC-PDU-2: every truncation within the fields; bytes after them are data."""
    data = bytes.fromhex(encoded)
    head = HEADS[type(pdu)]
    for size in range(head):
        with pytest.raises(RemoteProtocolError) as caught:
            decode(data[:size])
        assert caught.value.rule == "IPC-PDU-2"
    for size in range(head, len(data)):
        assert decode(data[:size]).payload == pdu.payload[: size - head]


@pytest.mark.parametrize(
    ("_", "rule", "encoded"), VIOLATIONS, ids=[name for name, _, _ in VIOLATIONS]
)
def test_a_violation_names_its_rule(_: str, rule: str, encoded: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(bytes.fromhex(encoded))
    assert caught.value.rule == rule


def test_an_ack_of_512_bytes_is_the_longest() -> None:
    """IPC-PDU-7; HEADER and DATA have no limit here."""
    assert decode(HeaderAck(M, 0, bytes(488)).encode()) == HeaderAck(M, 0, bytes(488))
    assert decode(DataAck(M, 1, 0, bytes(484)).encode()) == DataAck(M, 1, 0, bytes(484))
    assert decode(Data(M, D, 1, bytes(70_000)).encode()) == Data(M, D, 1, bytes(70_000))


def test_the_codes_are_those_of_the_specification() -> None:
    """IPC-PDU-6."""
    assert {code.name: code.value for code in Code} == {
        "SUCCESS": 0,
        "PROCESSING_ERROR": 1,
        "INVALID_DESTINATION": 2,
        "MESSAGE_TOO_LARGE": 3,
        "RECEIVE_TIMEOUT": 4,
        "PDU_TOO_LARGE": 5,
        "APPLICATION": -1,
        "RESET": -2,
        "SHUTDOWN": -3,
        "SEND_TIMEOUT": -4,
        "ABORTED_BY_SENDER": -5,
        "PEER_RESTARTED": -6,
    }


def test_an_ack_states_a_size_in_four_bytes() -> None:
    """IPC-PDU-8."""
    assert encode_size(65_000).hex() == "0000fde8"
    assert decode_size(encode_size(65_000)) == 65_000
    assert decode_size(b"") is None
    assert decode_size(bytes(5)) is None


def test_an_ack_states_an_owner_id_in_sixteen_bytes() -> None:
    """IPC-PDU-8."""
    assert decode_owner(D) == D
    assert decode_owner(D[:15]) is None
    assert decode_owner(D + b"x") is None
    assert decode_owner(bytes(16)) is None


def test_a_head_followed_by_data_is_the_whole_pdu() -> None:
    assert header_head(M, D, 9) + b"data" == Header(M, D, 9, b"data").encode()
    assert data_head(M, D, 9) + b"data" == Data(M, D, 9, b"data").encode()


@given(pdus)
def test_an_encoded_pdu_decodes_to_itself(pdu: Pdu) -> None:
    assert decode(pdu.encode()) == pdu


@given(
    st.binary(max_size=80)
    | st.builds(lambda a, b: bytes((a, 0x10)) + b, st.integers(0, 5), st.binary(max_size=80))
)
def test_arbitrary_bytes_decode_or_break_a_rule(data: bytes) -> None:
    try:
        pdu = decode(data)
    except RemoteProtocolError:
        return
    assert pdu.encode()[6:] == data[6:]
