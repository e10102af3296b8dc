"""Varints, varbytes and header data."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aqueduct.errors import CloseCode, Incomplete, RemoteProtocolError
from aqueduct.wire.primitives import (
    MAX_VARINT,
    HeaderPairs,
    decode_headers,
    decode_varbytes,
    decode_varint,
    encode_headers,
    encode_varbytes,
    encode_varint,
    headers_size,
    varint_size,
)
from tests.wire.strategies import headers, varints

VARINTS = [
    (0, "00"),
    (1, "01"),
    (127, "7F"),
    (128, "80 01"),
    (300, "AC 02"),
    (16383, "FF 7F"),
    (16384, "80 80 01"),
    (2**21, "80 80 80 01"),
    (2**63 - 1, "FF FF FF FF FF FF FF FF 7F"),
    (2**63, "80 80 80 80 80 80 80 80 80 01"),
    (MAX_VARINT, "FF FF FF FF FF FF FF FF FF 01"),
]


@pytest.mark.parametrize(("value", "encoded"), VARINTS)
def test_a_varint_is_little_endian_base_128(value: int, encoded: str) -> None:
    """AQ-VARINT-1."""
    data = bytes.fromhex(encoded)
    assert encode_varint(value) == data
    assert decode_varint(data, 0, len(data)) == (value, len(data))
    assert varint_size(value) == len(data)


@given(varints, st.binary(max_size=3), st.binary(max_size=3))
def test_a_varint_is_read_from_the_middle_of_other_bytes(
    value: int, before: bytes, after: bytes
) -> None:
    data = before + encode_varint(value) + after
    stop = len(data) - len(after)
    assert decode_varint(data, len(before), len(data)) == (value, stop)
    assert decode_varint(data, len(before), stop) == (value, stop)
    assert varint_size(value) == len(encode_varint(value))


@pytest.mark.parametrize("encoded", ["80 00", "FF 00", "80 80 00", "AC 82 00", "80" * 9 + "00"])
def test_an_overlong_varint_is_rejected(encoded: str) -> None:
    """AQ-VARINT-2."""
    data = bytes.fromhex(encoded)
    with pytest.raises(RemoteProtocolError) as caught:
        decode_varint(data, 0, len(data))
    assert caught.value.rule == "AQ-VARINT-2"
    assert caught.value.code is CloseCode.PROTOCOL_VIOLATION


@pytest.mark.parametrize("encoded", ["FF" * 9 + "02", "80" * 9 + "7F", "80" * 10, "FF" * 11])
def test_a_varint_of_more_than_64_bits_is_rejected_at_its_tenth_byte(encoded: str) -> None:
    """AQ-VARINT-3."""
    data = bytes.fromhex(encoded)
    with pytest.raises(RemoteProtocolError) as caught:
        decode_varint(data, 0, 10)
    assert caught.value.rule == "AQ-VARINT-3"


@given(varints)
def test_a_truncated_varint_is_incomplete(value: int) -> None:
    data = encode_varint(value)
    for end in range(len(data)):
        with pytest.raises(Incomplete):
            decode_varint(data, 0, end)


@pytest.mark.parametrize("value", [-1, MAX_VARINT + 1])
def test_a_number_that_fits_no_varint_is_not_encoded(value: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        encode_varint(value)


@pytest.mark.parametrize(("contents", "head"), [(b"", "00"), (b"abc", "03"), (b"x" * 300, "AC 02")])
def test_a_varbytes_is_its_length_and_its_bytes(contents: bytes, head: str) -> None:
    """AQ-BYTES-1."""
    data = bytes.fromhex(head) + contents
    assert encode_varbytes(contents) == data
    assert decode_varbytes(data + b"more", 0, len(data) + 4) == (contents, len(data))
    with pytest.raises(Incomplete):
        decode_varbytes(data, 0, len(data) - 1)


@given(headers)
def test_header_data_keeps_order_and_repeated_names(pairs: HeaderPairs) -> None:
    """AQ-HEADER-1."""
    encoded = encode_headers(pairs)
    contents, stop = decode_varbytes(encoded, 0, len(encoded))
    assert stop == len(encoded)
    assert decode_headers(contents) == pairs
    assert headers_size(pairs) == len(contents)


def test_header_data_is_one_varbytes_of_names_and_values() -> None:
    """AQ-HEADER-1."""
    pairs = ((b"b", b"2"), (b"a", b""), (b"b", b"1"))
    assert encode_headers(pairs) == bytes.fromhex("0B 01 62 01 32 01 61 00 01 62 01 31")
    assert encode_headers(()) == b"\x00"


@pytest.mark.parametrize("contents", ["00", "01 61", "01 61 01 62 00"])
def test_a_header_name_without_a_value_is_rejected(contents: str) -> None:
    """AQ-HEADER-2."""
    with pytest.raises(RemoteProtocolError) as caught:
        decode_headers(bytes.fromhex(contents))
    assert caught.value.rule == "AQ-HEADER-2"


@pytest.mark.parametrize("contents", ["01", "02 61", "01 61 02 62", "01 61 80", "01 61 00 FF"])
def test_a_header_that_runs_past_its_header_data_is_rejected(contents: str) -> None:
    """AQ-BYTES-2."""
    with pytest.raises(RemoteProtocolError) as caught:
        decode_headers(bytes.fromhex(contents))
    assert caught.value.rule == "AQ-BYTES-2"


@given(st.binary(max_size=40))
def test_header_data_has_one_encoding_only(contents: bytes) -> None:
    """AQ-VARINT-2, AQ-BYTES-2 and AQ-HEADER-2 allow one encoding of the same pairs only."""
    try:
        pairs = decode_headers(contents)
    except RemoteProtocolError:
        return
    assert encode_headers(pairs) == encode_varbytes(contents)
