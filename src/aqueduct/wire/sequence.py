"""The incremental parser of one stream or datagram, which also checks the order of frames."""

from collections import deque
from dataclasses import dataclass
from typing import Final

from aqueduct.errors import CloseCode, Incomplete, RemoteProtocolError
from aqueduct.wire.frames import (
    BARE_FRAMES,
    MESSAGE_STARTS,
    MESSAGE_STARTS_CONTINUED,
    NO_EXTRAS,
    PREAMBLE,
    VARBYTES_FRAMES,
    VARINT_FRAMES,
    AckVersion,
    ConnectionHeaders,
    Frame,
    MessageFrame,
    MessageRun,
    RouteTo,
    Version,
)
from aqueduct.wire.primitives import MAX_VARINT, decode_varint, encode_varint
from aqueduct.wire.ranges import MAX_RANGES_SIZE

_MESSAGE: Final = 4
_LAST_TAG: Final = 12
_CONNECTION_TAGS: Final = (Version.TAG, AckVersion.TAG, ConnectionHeaders.TAG)

_BETWEEN_FRAMES: Final = -1
_UNKNOWN: Final = -1

# Pieces of a varbytes that are smaller than this are gathered in one buffer: as an object each
# they would cost far more memory than they have bytes.
_SMALL_PIECE: Final = 1024
_WHOLE_PIECE: Final = 64
"""A chunk that is a whole piece is kept as it is, unless it is smaller than its object."""


@dataclass(frozen=True, slots=True)
class ParserLimits:
    """Limits of what a peer can make the parser hold, in bytes unless stated otherwise."""

    max_message: int
    """The size of a message: its header data, attachments and payload together."""
    max_headers: int
    """The size of each header data."""
    max_attachments: int
    """How many attachments one message may have."""
    max_version: int = 64
    """The text of VERSION."""


class SequenceParser:
    """Parses the bytes of one stream or datagram, in chunks of any size, into frames.

    Between two calls it is between frames, or inside one: then it holds the tag, perhaps the varint
    after it, the complete varbytes, and the pieces of the incomplete one. It must not be used any
    more once it has raised.
    """

    __slots__ = (
        "_any_frame",
        "_chunk",
        "_chunks",
        "_collected",
        "_contents",
        "_length",
        "_limits",
        "_number",
        "_pieces",
        "_pos",
        "_preamble_matched",
        "_routed",
        "_scratch",
        "_size",
        "_tag",
    )

    def __init__(self, limits: ParserLimits) -> None:
        self._limits = limits
        self._chunk = b""
        self._pos = 0
        self._chunks: deque[bytes] | None = None
        self._routed = False
        self._any_frame = False
        self._tag: int = _BETWEEN_FRAMES
        self._number: int = _UNKNOWN
        self._preamble_matched = 0
        self._contents: list[bytes] | None = None
        self._size = 0
        self._length: int = _UNKNOWN
        self._pieces: list[bytes | bytearray | memoryview] | None = None
        self._collected = 0
        self._scratch = b""

    def feed(self, data: bytes) -> None:
        """Add the next bytes of the stream, or the datagram."""
        if self._pos == len(self._chunk) and not self._chunks:
            self._chunk = data
            self._pos = 0
        elif data:
            if self._chunks is None:
                self._chunks = deque()
            self._chunks.append(data)

    @property
    def held(self) -> int:
        """Bytes that are kept and were not returned as part of a frame yet."""
        held = len(self._chunk) - self._pos + len(self._scratch) + self._collected
        if self._chunks is not None:
            for chunk in self._chunks:
                held += len(chunk)
        if self._contents is not None:
            for contents in self._contents:
                held += len(contents)
        return held

    def finish(self) -> None:
        """Handle the end of the stream or datagram; call it once `next` returns None.

        The parser of a stream that was reset is dropped instead (AQ-SEQ-10).
        """
        if self._tag != _BETWEEN_FRAMES or self._has_bytes():
            raise RemoteProtocolError("AQ-SEQ-4", "the sequence ended inside a frame")
        if not self._any_frame:
            raise RemoteProtocolError("AQ-SEQ-5", "the sequence ended without a frame")

    def next(self) -> Frame | MessageRun | None:
        """Return the next frame, or None if more bytes are needed.

        Consecutive plain messages that are complete in one chunk are returned as one run.
        """
        if self._tag == _BETWEEN_FRAMES:
            if not self._has_bytes():
                return None
            tag = self._chunk[self._pos]
            if tag == _MESSAGE and self._routed:
                run = self._take_run()
                if run is not None:
                    return run
            if self._tag == _BETWEEN_FRAMES:
                self._begin(tag)
        if self._tag == _MESSAGE:
            return self._take_message()
        return self._take_other()

    def _has_bytes(self) -> bool:
        if self._pos < len(self._chunk):
            return True
        if self._chunks:
            self._chunk = self._chunks.popleft()
        else:
            # Free the buffers: an idle stream must not cost as much memory as an active one.
            self._chunk = b""
            self._chunks = None
        self._pos = 0
        return len(self._chunk) > 0

    def _begin(self, tag: int) -> None:
        if tag in _CONNECTION_TAGS:
            if self._routed:
                raise RemoteProtocolError("AQ-SEQ-1", "a connection's frame came after ROUTE_TO")
        elif tag == RouteTo.TAG:
            if self._routed:
                raise RemoteProtocolError("AQ-SEQ-2", "ROUTE_TO came twice")
            self._routed = True
        elif not _MESSAGE <= tag <= _LAST_TAG:
            raise RemoteProtocolError("AQ-FRAME-2", f"there is no frame with tag {tag}")
        elif not self._routed:
            raise RemoteProtocolError("AQ-SEQ-3", "a channel's frame came without ROUTE_TO")
        self._tag = tag
        self._preamble_matched = 1  # the tag is its first byte
        self._pos += 1

    def _end(self) -> None:
        self._tag = _BETWEEN_FRAMES
        self._any_frame = True

    def _take_other(self) -> Frame | None:
        tag = self._tag
        if tag in BARE_FRAMES:
            frame = BARE_FRAMES[tag]
        elif tag in VARINT_FRAMES:
            number = self._take_varint()
            if number == _UNKNOWN:
                return None
            frame = VARINT_FRAMES[tag](number)
        else:
            if tag == Version.TAG and not self._match_preamble():
                return None
            contents = self._take_varbytes()
            if contents is None:
                return None
            frame = VARBYTES_FRAMES[tag](contents)
        self._end()
        return frame

    def _take_message(self) -> MessageFrame | MessageRun | None:
        if self._number == _UNKNOWN:
            self._number = self._take_varint()
            if self._number == _UNKNOWN:
                return None
        parts = self._contents
        if parts is None:
            parts = self._contents = []
        while len(parts) < 3:
            contents = self._take_varbytes()
            if contents is None:
                return None
            parts.append(contents)
        number = self._number
        self._number = _UNKNOWN
        self._contents = None
        self._size = 0
        self._end()
        if parts[0] or parts[1]:
            limits = self._limits
            return MessageFrame.decode(number, parts, limits.max_attachments, limits.max_headers)
        run = MessageRun(number, [parts[2]], len(parts[2]))
        self._extend_run(run)
        return run

    def _take_run(self) -> MessageRun | None:
        """Return the plain messages that are complete in the rest of the chunk, or None."""
        try:
            number, _ = decode_varint(self._chunk, self._pos + 1, len(self._chunk))
        except (Incomplete, RemoteProtocolError):
            return None
        run = MessageRun(number, [], 0)
        self._extend_run(run)
        if not run.payloads:
            return None
        self._any_frame = True
        return run

    def _extend_run(self, run: MessageRun) -> None:
        """Add the next plain messages in the chunk to run, while their numbers are consecutive.

        The parser spends most of its time here if there are many small messages. As all but the
        low 7 bits of the number stay the same for up to 128 messages, so does their head, and
        comparing is faster than decoding. The other methods parse everything else.
        """
        chunk = self._chunk
        pos = self._pos
        end = len(chunk)
        limit = self._limits.max_message
        startswith = chunk.startswith
        payloads: list[bytes] = []
        append = payloads.append
        number = run.first + len(run.payloads)
        try:
            while number <= MAX_VARINT:
                high = number >> 7
                if high:
                    starts = MESSAGE_STARTS_CONTINUED
                    rest = encode_varint(high) + NO_EXTRAS
                else:
                    starts = MESSAGE_STARTS
                    rest = NO_EXTRAS
                head_size = 2 + len(rest)
                low = number & 0x7F
                while low < 0x80 and startswith(starts[low] + rest, pos):
                    start = pos + head_size
                    size = chunk[start]
                    start += 1
                    if size >= 0x80:
                        high_size = chunk[start]
                        if 0 < high_size < 0x80:
                            size = size & 0x7F | high_size << 7
                            start += 1
                        else:
                            size, start = decode_varint(chunk, start - 1, end)
                    stop = start + size
                    if size > limit:
                        break
                    if stop > end:
                        self._await_payload(high << 7 | low, size)
                        pos = start
                        break
                    append(chunk[start:stop])
                    pos = stop
                    low += 1
                if low < 0x80:
                    break
                number = (high + 1) << 7
        except (IndexError, Incomplete, RemoteProtocolError):
            # The head is incomplete or invalid: parse it again from its tag, field by field.
            pass
        self._pos = pos
        run.payloads += payloads
        run.size += sum(map(len, payloads))

    def _await_payload(self, number: int, size: int) -> None:
        """Set the state that parsing the head of a plain message field by field would leave."""
        self._tag = _MESSAGE
        self._number = number
        self._contents = [b"", b""]
        self._length = size

    def _match_preamble(self) -> bool:
        """Compare byte by byte, so that the parser stops at the first wrong byte (AQ-FRAME-3)."""
        while self._preamble_matched < len(PREAMBLE):
            if not self._has_bytes():
                return False
            if self._chunk[self._pos] != PREAMBLE[self._preamble_matched]:
                raise RemoteProtocolError("AQ-FRAME-3", "VERSION has a wrong preamble")
            self._pos += 1
            self._preamble_matched += 1
        return True

    def _take_varint(self) -> int:
        """Return the next varint, or _UNKNOWN if it is incomplete."""
        pos = self._pos
        if pos < len(self._chunk) and not self._scratch:
            byte = self._chunk[pos]
            if byte < 0x80:
                self._pos = pos + 1
                return byte
        while self._has_bytes():
            before = len(self._scratch)
            # A varint has ten bytes at most, so this never copies more.
            head = self._scratch + self._chunk[self._pos : self._pos + 10]
            try:
                value, used = decode_varint(head, 0, len(head))
            except Incomplete:
                self._scratch = head
                self._pos += len(head) - before
                continue
            self._scratch = b""
            self._pos += used - before
            return value
        return _UNKNOWN

    def _take_varbytes(self) -> bytes | None:
        """Return the contents of the next varbytes, or None if they are incomplete."""
        if self._length == _UNKNOWN:
            length = self._take_varint()
            if length == _UNKNOWN:
                return None
            self._check_length(length)
            if length == 0:
                return b""
            self._length = length
        while self._collected < self._length:
            if not self._has_bytes():
                return None
            self._take_piece(self._length - self._collected)
        contents = b"".join(self._pieces or ())
        self._pieces = None
        self._collected = 0
        self._length = _UNKNOWN
        return contents

    def _take_piece(self, wanted: int) -> None:
        chunk = self._chunk
        start = self._pos
        stop = min(start + wanted, len(chunk))
        size = stop - start
        self._pos = stop
        self._collected += size
        pieces = self._pieces
        if pieces is None:
            pieces = self._pieces = []
        if size == wanted and not pieces:
            pieces.append(chunk[start:stop])
        elif size == len(chunk) and size >= _WHOLE_PIECE:
            pieces.append(chunk)
        elif size >= _SMALL_PIECE and size >= len(chunk) // 4:
            # A view keeps its whole chunk alive, so the piece must be a good part of it.
            pieces.append(memoryview(chunk)[start:stop])
        elif pieces and isinstance(pieces[-1], bytearray):
            pieces[-1] += memoryview(chunk)[start:stop]
        else:
            pieces.append(bytearray(memoryview(chunk)[start:stop]))

    def _check_length(self, length: int) -> None:
        """Reject a varbytes by its length, before its contents arrive."""
        tag = self._tag
        limits = self._limits
        if tag == _MESSAGE:
            self._size += length
            if self._size > limits.max_message:
                raise _too_large("AQ-SEQ-6", "a message", self._size, limits.max_message)
            if not self._contents and length > limits.max_headers:
                raise _too_large("AQ-SEQ-7", "header data", length, limits.max_headers)
        elif tag == ConnectionHeaders.TAG:
            if length > limits.max_headers:
                raise _too_large("AQ-SEQ-7", "header data", length, limits.max_headers)
        elif tag == Version.TAG:
            if length > limits.max_version:
                raise _too_large("AQ-SEQ-9", "a version text", length, limits.max_version)
        elif length > MAX_RANGES_SIZE:
            raise _too_large("AQ-RANGE-5", "RANGES", length, MAX_RANGES_SIZE)


def _too_large(rule: str, what: str, size: int, limit: int) -> RemoteProtocolError:
    return RemoteProtocolError(
        rule, f"{what} of {size} bytes, the limit is {limit}", CloseCode.LIMIT_EXCEEDED
    )
