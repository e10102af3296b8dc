"""Finds the frames in a stream or datagram and skips the payloads of messages.

The parser of the core (`wire/sequence.py`) extracts payloads. A trace needs only sizes and numbers,
so this one skips payloads. It is several times faster for messages of one size and for large
payloads, and holds few bytes however a stream is cut.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from aqueduct.errors import CloseCode, Incomplete, RemoteProtocolError
from aqueduct.wire.frames import (
    BARE_FRAMES,
    MESSAGE_STARTS,
    MESSAGE_STARTS_CONTINUED,
    NO_EXTRAS,
    PREAMBLE,
    VARBYTES_FRAMES,
    VARINT_FRAMES,
    Frame,
    MessageFrame,
    RouteTo,
    Version,
    decode_attachments,
)
from aqueduct.wire.primitives import (
    decode_headers,
    decode_varbytes,
    decode_varint,
    encode_varint,
)

MAX_HELD = 1024 * 1024
"""Bytes of one incomplete frame without its payload, above which a stream is not followed."""

_ANY = 2**62
_LOWS = bytes(range(0x80))
_LOWS_CONTINUED = bytes(range(0x80, 0x100))
_MIN_EQUAL = 3
_MIN_BLOCK = 8


class PlainMessages:
    """The sizes of MESSAGE frames with consecutive numbers, without headers or attachments."""

    __slots__ = ("first", "sizes")

    def __init__(self, first: int, sizes: array[int]) -> None:
        self.first = first
        self.sizes = sizes


@dataclass(frozen=True, slots=True)
class RichMessage:
    """A MESSAGE frame with headers or attachments: sizes, names of headers and channels."""

    number: int
    size: int
    payload_size: int
    header_names: tuple[bytes, ...]
    attachments: tuple[int, ...]


ScannedFrame = PlainMessages | RichMessage | Frame


class Scanner:
    """Finds the frames of one stream or one datagram."""

    __slots__ = ("_pending", "_rest", "_skip", "channel")

    def __init__(self) -> None:
        self.channel = -1
        """The channel of the last ROUTE_TO; -1 before it."""
        self._rest = b""
        self._skip = 0
        self._pending: PlainMessages | RichMessage | None = None

    @property
    def held(self) -> int:
        """The bytes held of an incomplete frame."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[ScannedFrame]:
        """Return the frames that these bytes complete."""
        found: list[ScannedFrame] = []
        pos = 0
        if self._pending is not None:
            if len(data) < self._skip:
                self._skip -= len(data)
                return found
            pos = self._skip
            found.append(self._pending)
            self._pending = None
            self._skip = 0
        elif self._rest:
            data = self._rest + data
            self._rest = b""
        end = len(data)
        try:
            while pos < end:
                if data[pos] == MessageFrame.TAG and self.channel >= 0:
                    pos = self._read_messages(data, pos, found)
                else:
                    pos = self._read_other(data, pos, end, found)
        except Incomplete:
            if end - pos > MAX_HELD:
                raise RemoteProtocolError(
                    "AQ-SEQ-7", "more headers than a trace follows", CloseCode.LIMIT_EXCEEDED
                ) from None
            self._rest = data[pos:]
        return found

    def _read_messages(self, data: bytes, pos: int, found: list[ScannedFrame]) -> int:
        """Read one message, and the plain ones that follow it."""
        end = len(data)
        number, at = decode_varint(data, pos + 1, end)
        headers, at = decode_varbytes(data, at, end)
        attachments, at = decode_varbytes(data, at, end)
        size, at = decode_varint(data, at, end)
        message: PlainMessages | RichMessage
        if headers or attachments:
            message = RichMessage(
                number,
                len(headers) + len(attachments) + size,
                size,
                tuple(name for name, _ in decode_headers(headers)),
                tuple(one.channel for one in decode_attachments(attachments, _ANY, _ANY)),
            )
        else:
            # The length may exceed what its column can hold.
            message = PlainMessages(number, array("q", (min(size, _ANY),)))
        if at + size > end:
            self._pending = message
            self._skip = at + size - end
            return end
        last = found[-1] if found else None
        if isinstance(message, RichMessage):
            found.append(message)
            return at + size
        if isinstance(last, PlainMessages) and last.first + len(last.sizes) == number:
            last.sizes.append(size)
            message = last
        else:
            found.append(message)
        return read_sizes(data, at + size, number + 1, message.sizes)

    def _read_other(self, data: bytes, pos: int, end: int, found: list[ScannedFrame]) -> int:
        tag = data[pos]
        frame: Frame
        if tag in BARE_FRAMES:
            frame, at = BARE_FRAMES[tag], pos + 1
        elif tag in VARINT_FRAMES:
            number, at = decode_varint(data, pos + 1, end)
            frame = VARINT_FRAMES[tag](number)
            if isinstance(frame, RouteTo):
                self.channel = frame.channel
        elif tag in VARBYTES_FRAMES:
            head = 1
            if tag == Version.TAG:
                head = len(PREAMBLE)
                if not PREAMBLE.startswith(data[pos : pos + head]):
                    raise RemoteProtocolError("AQ-FRAME-3", "VERSION has a wrong preamble")
            contents, at = decode_varbytes(data, pos + head, end)
            frame = VARBYTES_FRAMES[tag](contents)
        elif tag == MessageFrame.TAG:
            raise RemoteProtocolError("AQ-SEQ-3", "a channel's frame came without ROUTE_TO")
        else:
            raise RemoteProtocolError("AQ-FRAME-2", f"there is no frame with tag {tag}")
        found.append(frame)
        return at


def read_sizes(data: bytes, pos: int, number: int, sizes: array[int]) -> int:
    """Add the sizes of the complete plain messages from ``pos`` on; return where they end.

    All but the low 7 bits of the number stay the same for up to 128 messages, and so does the
    head: comparing is faster than decoding. Messages of one size are compared many at a time.
    """
    end = len(data)
    startswith = data.startswith
    append = sizes.append
    same = 0
    before = -1
    try:
        while True:
            high = number >> 7
            starts = MESSAGE_STARTS_CONTINUED if high else MESSAGE_STARTS
            rest = encode_varint(high) + NO_EXTRAS if high else NO_EXTRAS
            head_size = 2 + len(rest)
            low = number & 0x7F
            while low < 0x80 and startswith(starts[low] + rest, pos):
                at = pos + head_size
                size = data[at]
                at += 1
                if size >= 0x80:
                    size, at = decode_varint(data, at - 1, end)
                stop = at + size
                if stop > end:
                    return pos
                append(size)
                stride = stop - pos
                low += 1
                pos = stop
                same = same + 1 if size == before else 0
                before = size
                if same >= _MIN_EQUAL:
                    count = _count_alike(data, pos, stride, low, bool(high), rest, size)
                    if count:
                        sizes.extend(array("q", (size,)) * count)
                        low += count
                        pos += count * stride
                    else:
                        same = 0
            if low < 0x80:
                return pos
            number = (high + 1) << 7
    except (IndexError, Incomplete, RemoteProtocolError):
        # The head is incomplete or malformed: the caller reads it again and decides.
        return pos


def _count_alike(
    data: bytes, pos: int, stride: int, low: int, continued: bool, rest: bytes, size: int
) -> int:
    """Return how many messages from ``pos`` on have consecutive numbers and one size, or 0."""
    count = min(0x80 - low, (len(data) - pos) // stride)
    if count < _MIN_BLOCK:
        return 0
    stop = pos + count * stride
    lows = _LOWS_CONTINUED if continued else _LOWS
    if data[pos + 1 : stop : stride] != lows[low : low + count]:
        return 0
    head = bytes((MessageFrame.TAG, 0)) + rest + encode_varint(size)
    for at, byte in enumerate(head):
        if at != 1 and data[pos + at : stop : stride] != bytes((byte,)) * count:
            return 0
    return count
