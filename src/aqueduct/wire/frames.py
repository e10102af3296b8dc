"""The thirteen frames: one frozen value each, with its encoder and its decoder side by side.

Every frame has the same shape (AQ-FRAME-1): a tag byte, then at most one varint, then up to three
varbytes. VERSION alone has a longer tag. So a decoder is given the varint and the contents of
the varbytes, already cut out of the input and measured by the parser in ``sequence.py``.
"""

# The tags are annotated as quoted literals because that is the one form that both the interpreter
# and mypyc take for a class constant, rather than a field, of a dataclass.

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, TypeAlias

from aqueduct.errors import CloseCode, Incomplete, RemoteProtocolError
from aqueduct.wire.chanid import ENTRYPOINT, describe
from aqueduct.wire.primitives import (
    SHORT_VARINTS,
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
from aqueduct.wire.ranges import (
    Range,
    decode_ack_nack_lengths,
    decode_ack_ranges,
    encode_ack_nack_lengths,
    encode_ack_ranges,
)

PROTOCOL_VERSION: Final = b"0.0.0-AFTER"

PREAMBLE: Final = bytes((239, 80, 95, 166, 96, 15, 64, 142)) + b"AQUEDUCT"
"""The magic bytes and the human text that VERSION begins with; its first byte is its tag."""


@dataclass(frozen=True, slots=True)
class Version:
    """The protocol version that the sender of this sequence speaks."""

    TAG: "ClassVar[Literal[239]]" = 239
    version: bytes = PROTOCOL_VERSION

    def encode(self) -> bytes:
        """Return the preamble, then the version text (AQ-FRAME-3)."""
        return PREAMBLE + encode_varbytes(self.version)


@dataclass(frozen=True, slots=True)
class AckVersion:
    """VERSION was received; the peer need not start its sequences with it any more."""

    TAG: "ClassVar[Literal[1]]" = 1

    def encode(self) -> bytes:
        """Return the tag alone (AQ-FRAME-4)."""
        return b"\x01"


@dataclass(frozen=True, slots=True)
class ConnectionHeaders:
    """The connection headers of one side's application, sent before anything else."""

    TAG: "ClassVar[Literal[2]]" = 2
    headers: HeaderPairs

    def encode(self) -> bytes:
        """Return the tag, then the header data (AQ-FRAME-5)."""
        return b"\x02" + encode_headers(self.headers)

    @staticmethod
    def decode(headers: bytes) -> "ConnectionHeaders":
        """Decode the contents of the header data."""
        return ConnectionHeaders(decode_headers(headers))


@dataclass(frozen=True, slots=True)
class RouteTo:
    """The channel of all following frames in the sequence."""

    TAG: "ClassVar[Literal[3]]" = 3
    channel: int

    def encode(self) -> bytes:
        """Return the tag, then CHANNEL (AQ-FRAME-6)."""
        return b"\x03" + encode_varint(self.channel)


@dataclass(frozen=True, slots=True)
class Attachment:
    """A channel whose other half is sent with a message."""

    channel: int
    headers: HeaderPairs

    def encode(self) -> bytes:
        """Return CHANNEL, then its header data (AQ-FRAME-8)."""
        return encode_varint(self.channel) + encode_headers(self.headers)


@dataclass(frozen=True, slots=True)
class MessageFrame:
    """One message on the channel."""

    TAG: "ClassVar[Literal[4]]" = 4
    number: int
    headers: HeaderPairs
    attachments: tuple[Attachment, ...]
    payload: bytes

    def encode(self) -> bytes:
        """Return the tag, NUMBER, then header data, ATTACHMENTS and PAYLOAD (AQ-FRAME-7)."""
        return b"".join(
            (
                b"\x04",
                encode_varint(self.number),
                encode_headers(self.headers),
                encode_varbytes(b"".join([each.encode() for each in self.attachments])),
                encode_varbytes(self.payload),
            )
        )

    @staticmethod
    def decode(
        number: int, contents: list[bytes], max_attachments: int, max_headers: int
    ) -> "MessageFrame":
        """Decode the contents of its three varbytes, and check the limits of each attachment."""
        headers, attachments, payload = contents
        return MessageFrame(
            number,
            decode_headers(headers),
            decode_attachments(attachments, max_attachments, max_headers),
            payload,
        )

    @property
    def size(self) -> int:
        """Bytes that flow control counts: the contents of its three varbytes (AQ-FLOW-1)."""
        size = headers_size(self.headers) + len(self.payload)
        for attachment in self.attachments:
            contents = headers_size(attachment.headers)
            size += varint_size(attachment.channel) + varint_size(contents) + contents
        return size


def decode_attachments(
    contents: bytes, max_attachments: int, max_headers: int
) -> tuple[Attachment, ...]:
    """Return the attachments in the contents of MESSAGE's ATTACHMENTS."""
    attachments: list[Attachment] = []
    channels: set[int] = set()
    pos = 0
    end = len(contents)
    try:
        while pos < end:
            channel, pos = decode_varint(contents, pos, end)
            headers, pos = decode_varbytes(contents, pos, end)
            # AQ-FRAME-9: a channel is attached once, and the entrypoint always exists.
            if channel == ENTRYPOINT or channel in channels:
                raise RemoteProtocolError(
                    "AQ-FRAME-9", f"a message may not attach {describe(channel)} (again)"
                )
            if len(attachments) == max_attachments:
                raise RemoteProtocolError(
                    "AQ-SEQ-8",
                    f"a message has more than {max_attachments} attachments",
                    CloseCode.LIMIT_EXCEEDED,
                )
            if len(headers) > max_headers:
                raise RemoteProtocolError(
                    "AQ-SEQ-7",
                    f"header data of {len(headers)} bytes, the limit is {max_headers}",
                    CloseCode.LIMIT_EXCEEDED,
                )
            channels.add(channel)
            attachments.append(Attachment(channel, decode_headers(headers)))
    except Incomplete:
        raise RemoteProtocolError(
            "AQ-BYTES-2", "an attachment runs past the end of ATTACHMENTS"
        ) from None
    return tuple(attachments)


@dataclass(frozen=True, slots=True)
class SentUnreliable:
    """The number of messages sent in datagrams since the last SENT_UNRELIABLE."""

    TAG: "ClassVar[Literal[5]]" = 5
    count: int

    def encode(self) -> bytes:
        """Return the tag, then COUNT (AQ-FRAME-10)."""
        return b"\x05" + encode_varint(self.count)


@dataclass(frozen=True, slots=True)
class FinishSender:
    """The sender sends no more messages; ``sent_reliable`` were sent in streams."""

    TAG: "ClassVar[Literal[6]]" = 6
    sent_reliable: int

    def encode(self) -> bytes:
        """Return the tag, then SENT_RELIABLE (AQ-FRAME-11)."""
        return b"\x06" + encode_varint(self.sent_reliable)


@dataclass(frozen=True, slots=True)
class CancelSender:
    """The sender cancels everything it has sent."""

    TAG: "ClassVar[Literal[7]]" = 7

    def encode(self) -> bytes:
        """Return the tag alone (AQ-FRAME-12)."""
        return b"\x07"


@dataclass(frozen=True, slots=True)
class AckReliable:
    """Messages that have arrived in streams, as absolute half-open ranges."""

    TAG: "ClassVar[Literal[8]]" = 8
    ranges: tuple[Range, ...]

    def encode(self) -> bytes:
        """Return the tag, then RANGES as gaps and lengths (AQ-FRAME-13)."""
        return b"\x08" + encode_ack_ranges(self.ranges)

    @staticmethod
    def decode(ranges: bytes) -> "AckReliable":
        """Decode the contents of RANGES."""
        return AckReliable(decode_ack_ranges(ranges))


@dataclass(frozen=True, slots=True)
class AckNackUnreliable:
    """The fates of the next messages sent in datagrams: alternating counts of acks and nacks."""

    TAG: "ClassVar[Literal[9]]" = 9
    lengths: tuple[int, ...]

    def encode(self) -> bytes:
        """Return the tag, then RANGES as ack and nack lengths (AQ-FRAME-14)."""
        return b"\x09" + encode_ack_nack_lengths(self.lengths)

    @staticmethod
    def decode(ranges: bytes) -> "AckNackUnreliable":
        """Decode the contents of RANGES."""
        return AckNackUnreliable(decode_ack_nack_lengths(ranges))


@dataclass(frozen=True, slots=True)
class CloseReceiver:
    """The receiver takes no more messages."""

    TAG: "ClassVar[Literal[10]]" = 10

    def encode(self) -> bytes:
        """Return the tag alone (AQ-FRAME-15)."""
        return b"\x0a"


@dataclass(frozen=True, slots=True)
class ForgetChannel:
    """The channel's creator has no such channel."""

    TAG: "ClassVar[Literal[11]]" = 11

    def encode(self) -> bytes:
        """Return the tag alone (AQ-FRAME-16)."""
        return b"\x0b"


@dataclass(frozen=True, slots=True)
class Dequeued:
    """The bytes of messages that the receiving application took since the last DEQUEUED."""

    TAG: "ClassVar[Literal[12]]" = 12
    num_bytes: int

    def encode(self) -> bytes:
        """Return the tag, then NUM_BYTES (AQ-FRAME-17)."""
        return b"\x0c" + encode_varint(self.num_bytes)


Frame: TypeAlias = (
    Version
    | AckVersion
    | ConnectionHeaders
    | RouteTo
    | MessageFrame
    | SentUnreliable
    | FinishSender
    | CancelSender
    | AckReliable
    | AckNackUnreliable
    | CloseReceiver
    | ForgetChannel
    | Dequeued
)


def frame_name(kind: type[object]) -> str:
    """Return the name of a frame in the specification, such as ``ROUTE_TO``."""
    name = kind.__name__.removesuffix("Frame")
    return "".join(f"_{c}" if c.isupper() and i else c for i, c in enumerate(name)).upper()


# AQ-FRAME-1: what follows the tag. Only MESSAGE has both a varint and varbytes.
BARE_FRAMES: Final[dict[int, Frame]] = {
    AckVersion.TAG: AckVersion(),
    CancelSender.TAG: CancelSender(),
    CloseReceiver.TAG: CloseReceiver(),
    ForgetChannel.TAG: ForgetChannel(),
}
VARINT_FRAMES: Final[dict[int, Callable[[int], Frame]]] = {
    RouteTo.TAG: RouteTo,
    SentUnreliable.TAG: SentUnreliable,
    FinishSender.TAG: FinishSender,
    Dequeued.TAG: Dequeued,
}
VARBYTES_FRAMES: Final[dict[int, Callable[[bytes], Frame]]] = {
    Version.TAG: Version,
    ConnectionHeaders.TAG: ConnectionHeaders.decode,
    AckReliable.TAG: AckReliable.decode,
    AckNackUnreliable.TAG: AckNackUnreliable.decode,
}


class MessageRun:
    """Plain MESSAGE frames (no headers, no attachments) with consecutive numbers, as one value."""

    __slots__ = ("first", "payloads", "size")

    def __init__(self, first: int, payloads: list[bytes], size: int) -> None:
        self.first = first
        self.payloads = payloads
        self.size = size

    def messages(self) -> Iterator[MessageFrame]:
        """Yield the same messages one by one."""
        number = self.first
        for payload in self.payloads:
            yield MessageFrame(number, (), (), payload)
            number += 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MessageRun):
            return NotImplemented
        return self.first == other.first and self.payloads == other.payloads

    def __repr__(self) -> str:
        return f"MessageRun(first={self.first}, payloads={self.payloads!r}, size={self.size})"


# A plain MESSAGE begins with its tag and the low 7 bits of its number: with the number complete,
# or continued. The rest of its head is the same for the next 127 numbers.
MESSAGE_STARTS: Final[list[bytes]] = [bytes((4, low)) for low in range(0x80)]
MESSAGE_STARTS_CONTINUED: Final[list[bytes]] = [bytes((4, low | 0x80)) for low in range(0x80)]

NO_EXTRAS: Final = b"\x00\x00"
"""Empty header data and empty ATTACHMENTS: what a plain MESSAGE has between number and payload."""

_PLAIN_ENDS: Final[list[bytes]] = [NO_EXTRAS + size for size in SHORT_VARINTS]


def message_head(number: int, payload_size: int) -> bytes:
    """Return a plain MESSAGE without its payload: tag, number, empty headers, length."""
    if number < 0x80:
        start = MESSAGE_STARTS[number]
    elif number < 0x20_0000:
        start = MESSAGE_STARTS_CONTINUED[number & 0x7F] + SHORT_VARINTS[number >> 7]
    else:
        start = MESSAGE_STARTS_CONTINUED[number & 0x7F] + encode_varint(number >> 7)
    if payload_size < 0x4000:
        return start + _PLAIN_ENDS[payload_size]
    return start + NO_EXTRAS + encode_varint(payload_size)


def plain_frames(first: int, payloads: list[bytes]) -> list[bytes]:
    """Return plain MESSAGEs with consecutive numbers, as alternating heads and payloads.

    Up to 128 consecutive heads differ in one byte only, if the payloads have one size.
    """
    heads: list[bytes] = []
    while len(heads) < len(payloads):
        number = first + len(heads)
        low = number & 0x7F
        part = payloads[len(heads) : len(heads) + 0x80 - low]
        if number < 0x80:
            starts, middle = MESSAGE_STARTS, NO_EXTRAS
        else:
            starts, middle = MESSAGE_STARTS_CONTINUED, encode_varint(number >> 7) + NO_EXTRAS
        sizes = set(map(len, part))
        ends = {size: middle + encode_varint(size) for size in sizes}
        if len(ends) == 1:
            end = ends[len(part[0])]
            heads += [start + end for start in starts[low : low + len(part)]]
        else:
            heads += [
                start + ends[len(payload)]
                for start, payload in zip(starts[low:], part, strict=False)
            ]
    frames = payloads + payloads
    frames[0::2] = heads
    frames[1::2] = payloads
    return frames
