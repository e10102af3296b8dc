"""Varints, varbytes and header data: the three encodings that all frames consist of."""

from typing import Final

from aqueduct.errors import Incomplete, RemoteProtocolError

MAX_VARINT: Final = 2**64 - 1

HeaderPairs = tuple[tuple[bytes, bytes], ...]
"""An ordered multimap of byte strings (AQ-HEADER-1)."""


# Most varints in practice are below 2^14: a lookup instead of a computation.
SHORT_VARINTS: Final[list[bytes]] = [
    bytes((value,)) if value < 0x80 else bytes((value & 0x7F | 0x80, value >> 7))
    for value in range(0x4000)
]

_CONTINUED: Final[list[bytes]] = [bytes((low | 0x80,)) for low in range(0x80)]


def encode_varint(value: int) -> bytes:
    """Return the shortest little-endian base 128 form of value (AQ-VARINT-1, AQ-VARINT-2)."""
    if 0 <= value < 0x4000:
        return SHORT_VARINTS[value]
    if not 0 <= value <= MAX_VARINT:
        raise ValueError(f"{value} does not fit a varint")
    return _CONTINUED[value & 0x7F] + _CONTINUED[value >> 7 & 0x7F] + encode_varint(value >> 14)


def varint_size(value: int) -> int:
    """Return the length of the encoded value in bytes."""
    return 1 if value < 0x80 else (value.bit_length() + 6) // 7


def decode_varint(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """Return the varint at pos and the position after it; raise Incomplete past end."""
    if pos >= end:
        raise Incomplete
    byte = data[pos]
    pos += 1
    if byte < 0x80:
        return byte, pos
    value = byte & 0x7F
    shift = 7
    while pos < end:
        byte = data[pos]
        pos += 1
        if shift == 63 and byte > 1:
            raise RemoteProtocolError("AQ-VARINT-3", "a varint is larger than 64 bits")
        if byte == 0:
            raise RemoteProtocolError("AQ-VARINT-2", "a varint is longer than its value needs")
        if byte < 0x80:
            return value | byte << shift, pos
        value |= (byte & 0x7F) << shift
        shift += 7
    raise Incomplete


def encode_varbytes(contents: bytes) -> bytes:
    """Return the length of contents, then contents (AQ-BYTES-1)."""
    return encode_varint(len(contents)) + contents


def decode_varbytes(data: bytes, pos: int, end: int) -> tuple[bytes, int]:
    """Return the contents of the varbytes at pos and the position after it, or raise Incomplete."""
    length, pos = decode_varint(data, pos, end)
    stop = pos + length
    if stop > end:
        raise Incomplete
    return data[pos:stop], stop


def headers_size(headers: HeaderPairs) -> int:
    """Return the length of encoded header data, without its length prefix."""
    size = 0
    for name, value in headers:
        size += varint_size(len(name)) + len(name) + varint_size(len(value)) + len(value)
    return size


def encode_headers(headers: HeaderPairs) -> bytes:
    """Return header data: one varbytes that holds name, value, name, value… (AQ-HEADER-1)."""
    if not headers:
        return b"\x00"
    parts = []
    for name, value in headers:
        parts.append(encode_varbytes(name))
        parts.append(encode_varbytes(value))
    return encode_varbytes(b"".join(parts))


def decode_headers(contents: bytes) -> HeaderPairs:
    """Return the pairs in the contents of header data, in order."""
    pairs = []
    pos = 0
    end = len(contents)
    try:
        while pos < end:
            name, pos = decode_varbytes(contents, pos, end)
            if pos == end:
                raise RemoteProtocolError("AQ-HEADER-2", "a header name has no value")
            value, pos = decode_varbytes(contents, pos, end)
            pairs.append((name, value))
    except Incomplete:
        # AQ-BYTES-2: a value inside a varbytes must not run past its end.
        raise RemoteProtocolError("AQ-BYTES-2", "a header runs past its header data") from None
    return tuple(pairs)
