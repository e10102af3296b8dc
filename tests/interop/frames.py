"""Aqueduct's frames, implemented independently from the specification."""

from __future__ import annotations

from dataclasses import dataclass, field

MAGIC = bytes.fromhex("EF505FA6600F408E") + b"AQUEDUCT"
VERSION_TEXT = b"0.0.0-AFTER"

Pairs = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Frame:
    """A frame by its name in the specification, with its fields."""

    name: str
    number: int = 0
    text: bytes = b""
    headers: Pairs = field(default_factory=list)
    attachments: list[tuple[int, Pairs]] = field(default_factory=list)
    numbers: tuple[int, ...] = ()


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def varbytes(contents: bytes) -> bytes:
    return varint(len(contents)) + contents


def pairs(headers: Pairs) -> bytes:
    """Return the contents of header data."""
    return b"".join(varbytes(name) + varbytes(value) for name, value in headers)


def version(text: bytes = VERSION_TEXT) -> bytes:
    return MAGIC + varbytes(text)


ACK_VERSION = b"\x01"
CANCEL_SENDER = b"\x07"
CLOSE_RECEIVER = b"\x0a"
FORGET_CHANNEL = b"\x0b"


def connection_headers(headers: Pairs | None = None) -> bytes:
    return b"\x02" + varbytes(pairs(headers or []))


def limits(**stated: int) -> tuple[bytes, bytes]:
    """Return the header that states the limits of this side."""
    contents = pairs([(name.replace("_", "-").encode(), varint(n)) for name, n in stated.items()])
    return b"aqueduct-limits", contents


def route_to(channel: int) -> bytes:
    return b"\x03" + varint(channel)


def message(
    number: int,
    payload: bytes = b"",
    headers: Pairs | None = None,
    attach: list[tuple[int, Pairs]] | None = None,
) -> bytes:
    attachments = b"".join(
        varint(channel) + varbytes(pairs(of_channel)) for channel, of_channel in attach or []
    )
    return (
        b"\x04"
        + varint(number)
        + varbytes(pairs(headers or []))
        + varbytes(attachments)
        + varbytes(payload)
    )


def sent_unreliable(count: int) -> bytes:
    return b"\x05" + varint(count)


def finish_sender(count: int) -> bytes:
    return b"\x06" + varint(count)


def ack_reliable(*ranges: int) -> bytes:
    return b"\x08" + varbytes(b"".join(map(varint, ranges)))


def ack_nack_unreliable(*lengths: int) -> bytes:
    return b"\x09" + varbytes(b"".join(map(varint, lengths)))


def dequeued(size: int) -> bytes:
    return b"\x0c" + varint(size)


class Reader:
    """Reads fields from bytes; raises IndexError if they end too early."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise IndexError
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self) -> int:
        number = shift = 0
        while True:
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return number

    def varbytes(self) -> bytes:
        return self.take(self.varint())

    def varints(self) -> tuple[int, ...]:
        inner = Reader(self.varbytes())
        out = []
        while inner.at < len(inner.data):
            out.append(inner.varint())
        return tuple(out)

    def headers(self) -> Pairs:
        return read_pairs(self.varbytes())


def read_pairs(contents: bytes) -> Pairs:
    inner = Reader(contents)
    out = []
    while inner.at < len(contents):
        out.append((inner.varbytes(), inner.varbytes()))
    return out


def read_attachments(contents: bytes) -> list[tuple[int, Pairs]]:
    inner = Reader(contents)
    out = []
    while inner.at < len(contents):
        out.append((inner.varint(), inner.headers()))
    return out


def read_frame(reader: Reader) -> Frame:
    """Return the next frame; raise IndexError if it is incomplete."""
    tag = reader.take(1)[0]
    if tag == 0xEF:
        assert reader.take(15) == MAGIC[1:]
        return Frame("VERSION", text=reader.varbytes())
    if tag == 0x02:
        return Frame("CONNECTION_HEADERS", headers=reader.headers())
    if tag == 0x04:
        number, headers = reader.varint(), reader.headers()
        attachments = read_attachments(reader.varbytes())
        return Frame("MESSAGE", number, reader.varbytes(), headers, attachments)
    plain = {
        0x01: "ACK_VERSION",
        0x07: "CANCEL_SENDER",
        0x0A: "CLOSE_RECEIVER",
        0x0B: "FORGET_CHANNEL",
    }
    if tag in plain:
        return Frame(plain[tag])
    counted = {0x03: "ROUTE_TO", 0x05: "SENT_UNRELIABLE", 0x06: "FINISH_SENDER", 0x0C: "DEQUEUED"}
    if tag in counted:
        return Frame(counted[tag], reader.varint())
    ranged = {0x08: "ACK_RELIABLE", 0x09: "ACK_NACK_UNRELIABLE"}
    return Frame(ranged[tag], numbers=reader.varints())


def read_frames(data: bytes) -> tuple[list[Frame], bytes]:
    """Return all complete frames, and the remaining bytes."""
    reader = Reader(data)
    frames = []
    while True:
        start = reader.at
        try:
            frames.append(read_frame(reader))
        except IndexError:
            return frames, data[start:]
