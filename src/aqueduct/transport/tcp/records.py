"""The records and frames of QMux: bytes to values and back, without any state of a connection.

QMux (draft-ietf-quic-qmux-01) carries frames of QUIC version 1 (RFC 9000, 19) over a stream of
bytes. docs/spec/12-tcp.md says what Aqueduct uses of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from aqueduct.errors import RemoteProtocolError

MAX_INTEGER: Final = (1 << 62) - 1
"""The largest integer of QUIC's variable-length encoding (RFC 9000, 16)."""
MIN_RECORD: Final = 16_382
"""Bytes of frames that every endpoint takes in one record."""
MAX_RECORD: Final = 65_536
"""Bytes of frames that this side takes in one record, and that it sends at most."""

_PADDING: Final = re.compile(rb"\0+")
_RESET_STREAM, _STOP_SENDING = 0x04, 0x05
_STREAM, _STREAM_LAST = 0x08, 0x0F
_OFFSET, _LENGTH, _FIN = 0x04, 0x02, 0x01
_MAX_STREAMS = 0x13
_CLOSE_TRANSPORT, _CLOSE_APPLICATION = 0x1C, 0x1D
_DATAGRAM, _DATAGRAM_LENGTH = 0x30, 0x31
_PARAMETERS = 0x3F5153300D0A0D0A
_PING, _PONG = 0x348C67529EF8C7BD, 0x348C67529EF8C7BE

_IGNORED: Final = {
    _STOP_SENDING: 2,
    0x10: 1,  # MAX_DATA
    0x11: 2,  # MAX_STREAM_DATA
    0x12: 1,  # MAX_STREAMS, bidirectional
    0x14: 1,  # DATA_BLOCKED
    0x15: 2,  # STREAM_DATA_BLOCKED
    0x16: 1,  # STREAMS_BLOCKED, bidirectional
    0x17: 1,  # STREAMS_BLOCKED, unidirectional
}
"""Frames without a meaning here (AQ-TCP-6), and how many integers each has."""

_IDLE_TIMEOUT = 0x01
_DATA = 0x04
_STREAM_DATA = 0x07
_STREAMS = 0x09
_DATAGRAM_SIZE = 0x20
_RECORD_SIZE = 0x0571C59429CD0845
_PROHIBITED: Final = frozenset((0x00, 0x02, 0x03, *range(0x0A, 0x11)))
"""Parameters about connection ids, packets and migration, of which QMux has none."""


@dataclass(frozen=True, slots=True)
class StreamData:
    """STREAM: bytes of a stream at an offset, and its end if ``fin`` is set."""

    stream: int
    offset: int
    data: bytes
    fin: bool


@dataclass(frozen=True, slots=True)
class StreamReset:
    """RESET_STREAM: the end of a stream that was cut off."""

    stream: int
    code: int
    size: int
    """Bytes of the stream that were sent."""


@dataclass(frozen=True, slots=True)
class Datagram:
    """DATAGRAM (RFC 9221)."""

    data: bytes


@dataclass(frozen=True, slots=True)
class StreamLimit:
    """MAX_STREAMS: how many unidirectional streams the peer may open in total."""

    streams: int


@dataclass(frozen=True, slots=True)
class Ping:
    """QX_PING: asks the peer to send the same number back, or does so."""

    number: int
    is_answer: bool


@dataclass(frozen=True, slots=True)
class Close:
    """CONNECTION_CLOSE, by the application or by the transport."""

    code: int
    reason: str
    by_application: bool = True


@dataclass(frozen=True, slots=True)
class Parameters:
    """QX_TRANSPORT_PARAMETERS: what the side that sends it takes."""

    idle_timeout: int = 0
    """Milliseconds; 0 for none."""
    max_data: int = 0
    max_stream_data: int = 0
    max_streams: int = 0
    max_datagram: int = 0
    max_record: int = MIN_RECORD


@dataclass(frozen=True, slots=True)
class Ignored:
    """A frame that QMux allows and Aqueduct does not use."""


Frame = StreamData | StreamReset | Datagram | StreamLimit | Ping | Close | Parameters | Ignored


def encode_integer(value: int) -> bytes:
    """Return the shortest encoding of an integer (RFC 9000, 16)."""
    if value < 0x40:
        return value.to_bytes(1, "big")
    if value < 0x4000:
        return (value | 0x4000).to_bytes(2, "big")
    if value < 0x4000_0000:
        return (value | 0x8000_0000).to_bytes(4, "big")
    return (value | 0xC000_0000_0000_0000).to_bytes(8, "big")


def decode_integer(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the integer at a position, and the position behind it."""
    if at < end:
        first = data[at]
        if first < 0x40:
            return first, at + 1
        size = 1 << (first >> 6)
        stop = at + size
        if stop <= end:
            return int.from_bytes(data[at:stop], "big") & ((1 << (8 * size - 2)) - 1), stop
    raise RemoteProtocolError("AQ-TCP-5", "a frame does not end within its record")


def stream_head(stream: int, offset: int, size: int, fin: bool) -> bytes:
    """Return the head of a STREAM frame, which ``size`` bytes of data follow."""
    kind = _STREAM | _LENGTH | (_FIN if fin else 0)
    if not offset:
        return bytes((kind,)) + encode_integer(stream) + encode_integer(size)
    kind |= _OFFSET
    head = bytes((kind,)) + encode_integer(stream) + encode_integer(offset)
    return head + encode_integer(size)


def datagram_head(size: int) -> bytes:
    """Return the head of a DATAGRAM frame, which ``size`` bytes of data follow."""
    return bytes((_DATAGRAM_LENGTH,)) + encode_integer(size)


def encode_frame(frame: Frame) -> bytes:
    """Return the encoding of a frame."""
    if isinstance(frame, StreamData):
        head = stream_head(frame.stream, frame.offset, len(frame.data), frame.fin)
        return head + frame.data
    if isinstance(frame, Datagram):
        return datagram_head(len(frame.data)) + frame.data
    if isinstance(frame, StreamReset):
        return _integers(_RESET_STREAM, frame.stream, frame.code, frame.size)
    if isinstance(frame, StreamLimit):
        return _integers(_MAX_STREAMS, frame.streams)
    if isinstance(frame, Ping):
        return _integers(_PONG if frame.is_answer else _PING, frame.number)
    if isinstance(frame, Close):
        reason = frame.reason.encode()
        if frame.by_application:
            return _integers(_CLOSE_APPLICATION, frame.code, len(reason)) + reason
        return _integers(_CLOSE_TRANSPORT, frame.code, 0, len(reason)) + reason
    if isinstance(frame, Parameters):
        stated = (
            (_IDLE_TIMEOUT, frame.idle_timeout),
            (_DATA, frame.max_data),
            (_STREAM_DATA, frame.max_stream_data),
            (_STREAMS, frame.max_streams),
            (_DATAGRAM_SIZE, frame.max_datagram),
            (_RECORD_SIZE, frame.max_record),
        )
        contents = b"".join(_parameter(name, value) for name, value in stated)
        return _integers(_PARAMETERS, len(contents)) + contents
    return b"\x00"


def decode_frame(data: bytes, at: int, end: int) -> tuple[Frame, int]:
    """Return the frame at a position of a record that ends at ``end``, and the position behind it.

    Raises `RemoteProtocolError` for a frame that is malformed, or that QMux does not allow.
    """
    kind, at = decode_integer(data, at, end)
    if _STREAM <= kind <= _STREAM_LAST:
        stream, at = decode_integer(data, at, end)
        offset = 0
        if kind & _OFFSET:
            offset, at = decode_integer(data, at, end)
        stop = end
        if kind & _LENGTH:
            at, stop = _contents(data, at, end)
        return StreamData(stream, offset, data[at:stop], bool(kind & _FIN)), stop
    if kind in (_DATAGRAM, _DATAGRAM_LENGTH):
        stop = end
        if kind == _DATAGRAM_LENGTH:
            at, stop = _contents(data, at, end)
        return Datagram(data[at:stop]), stop
    if kind in (_PING, _PONG):
        number, at = decode_integer(data, at, end)
        return Ping(number, kind == _PONG), at
    if kind == _RESET_STREAM:
        stream, at = decode_integer(data, at, end)
        code, at = decode_integer(data, at, end)
        size, at = decode_integer(data, at, end)
        return StreamReset(stream, code, size), at
    if kind == _MAX_STREAMS:
        streams, at = decode_integer(data, at, end)
        return StreamLimit(streams), at
    if kind in (_CLOSE_TRANSPORT, _CLOSE_APPLICATION):
        code, at = decode_integer(data, at, end)
        if kind == _CLOSE_TRANSPORT:
            _, at = decode_integer(data, at, end)  # the type of the frame that was at fault
        at, stop = _contents(data, at, end)
        reason = data[at:stop].decode(errors="replace")
        return Close(code, reason, kind == _CLOSE_APPLICATION), stop
    if kind == _PARAMETERS:
        at, stop = _contents(data, at, end)
        return _decode_parameters(data, at, stop), stop
    if not kind:  # at once: a record may consist of it
        padding = _PADDING.match(data, at, end)
        return Ignored(), padding.end() if padding is not None else at
    integers = _IGNORED.get(kind)
    if integers is None:
        raise RemoteProtocolError("AQ-TCP-6", f"a frame of type {kind:#x}")
    for _ in range(integers):
        _, at = decode_integer(data, at, end)
    return Ignored(), at


def _parameter(name: int, value: int) -> bytes:
    encoded = encode_integer(value)
    return _integers(name, len(encoded)) + encoded


def _integers(*values: int) -> bytes:
    return b"".join(map(encode_integer, values))


def _contents(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return where contents start and stop whose length is at this position."""
    size, at = decode_integer(data, at, end)
    if at + size > end:
        raise RemoteProtocolError("AQ-TCP-5", "a frame does not end within its record")
    return at, at + size


def _decode_parameters(data: bytes, at: int, end: int) -> Parameters:
    found: dict[int, int] = {}
    while at < end:
        name, at = decode_integer(data, at, end)
        start, at = _contents(data, at, end)
        if name in _PROHIBITED:
            raise RemoteProtocolError("AQ-TCP-4", f"QMux prohibits the parameter {name:#x}")
        if name in found:
            raise RemoteProtocolError("AQ-TCP-4", f"the parameter {name:#x} was stated twice")
        found[name] = 0
        if name in _KNOWN:
            found[name], stop = decode_integer(data, start, at)
            if stop != at:
                raise RemoteProtocolError("AQ-TCP-4", f"the parameter {name:#x} is no integer")
    return Parameters(
        found.get(_IDLE_TIMEOUT, 0),
        found.get(_DATA, 0),
        found.get(_STREAM_DATA, 0),
        found.get(_STREAMS, 0),
        found.get(_DATAGRAM_SIZE, 0),
        found.get(_RECORD_SIZE, MIN_RECORD),
    )


_KNOWN: Final = frozenset(
    (_IDLE_TIMEOUT, _DATA, _STREAM_DATA, _STREAMS, _DATAGRAM_SIZE, _RECORD_SIZE)
)


class RecordReader:
    """Cuts the bytes of a connection into records."""

    __slots__ = ("_at", "_data", "_needed", "_pieces", "held")

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        """Where the next record begins in the data."""
        self._pieces: list[bytes] = []
        """What came behind the data, while both are too short for a record."""
        self.held = 0
        """Bytes of records that were not returned."""
        self._needed = 1
        """Bytes with which the next record may be complete."""

    def feed(self, data: bytes | memoryview) -> None:
        """Add bytes of the connection; the buffer of a view may be used again after that."""
        self.held += len(data)
        if self.held >= self._needed and not self._pieces:
            rest = self._data[self._at :]
            self._data = b"".join((rest, data))
            self._at = 0
        else:
            self._pieces.append(bytes(data))

    def next(self) -> tuple[bytes, int, int] | None:
        """Return data, and where the next complete record starts and stops in it; None if none.

        Raises `RemoteProtocolError` for a record that is too long.
        """
        while self.held >= self._needed:
            if self._pieces and len(self._data) - self._at < self._needed:
                self._data = b"".join([self._data[self._at :], *self._pieces])
                self._at = 0
                self._pieces.clear()
            data, at = self._data, self._at
            size_of_head = 1 << (data[at] >> 6)
            if self.held < size_of_head:
                self._needed = size_of_head
                continue
            size, start = decode_integer(data, at, len(data))
            if not 0 < size <= MAX_RECORD:
                raise RemoteProtocolError("AQ-TCP-3", f"a record of {size} bytes")
            stop = start + size
            self._needed = stop - at
            if self.held >= self._needed:
                if stop > len(data):
                    continue
                self._at = stop
                self.held -= stop - at
                self._needed = 1
                return data, start, stop
        if self._at == len(self._data):
            self._data = b""  # an idle connection holds no buffer
            self._at = 0
        return None


class RecordWriter:
    """Packs frames into records."""

    __slots__ = ("_frames", "_largest", "_records", "_size", "size")

    def __init__(self) -> None:
        self._largest = MIN_RECORD
        self._frames: list[bytes | memoryview] = []
        self._size = 0
        """Bytes of the frames of the record that is not complete."""
        self._records: list[bytes] = []
        self.size = 0
        """Bytes of frames that were added in the life of the connection."""

    def set_limit(self, size: int) -> None:
        """Set the size of records that the peer takes."""
        self._largest = min(size, MAX_RECORD)

    @property
    def largest(self) -> int:
        """The most bytes of a frame."""
        return self._largest

    def add(self, head: bytes, data: bytes | memoryview = b"") -> None:
        """Add a frame; it is not longer than a record."""
        size = len(head) + len(data)
        if self._size + size > self._largest:
            self._complete()
        self._frames.append(head)
        if data:
            self._frames.append(data)
        self._size += size
        self.size += size

    def take(self) -> list[bytes]:
        """Return the records."""
        self._complete()
        records = self._records
        if records:
            self._records = []
        return records

    def _complete(self) -> None:
        if self._frames:
            self._records.append(b"".join((encode_integer(self._size), *self._frames)))
            self._frames.clear()
            self._size = 0
