"""One table of frames and their bytes, for the tests of encoder, decoder and parser."""

from typing import NamedTuple

from aqueduct.wire.frames import (
    AckNackUnreliable,
    AckReliable,
    AckVersion,
    Attachment,
    CancelSender,
    CloseReceiver,
    ConnectionHeaders,
    Dequeued,
    FinishSender,
    ForgetChannel,
    Frame,
    MessageFrame,
    RouteTo,
    SentUnreliable,
    Version,
)
from aqueduct.wire.sequence import ParserLimits

LIMITS = ParserLimits(max_message=4096, max_headers=256, max_attachments=4)


class Case(NamedTuple):
    name: str
    frame: Frame
    encoded: bytes
    varints: int
    varbytes: int
    rule: str

    @property
    def connection_level(self) -> bool:
        return isinstance(self.frame, Version | AckVersion | ConnectionHeaders)

    @property
    def sequence(self) -> bytes:
        """The shortest sequence that contains the frame."""
        if self.connection_level or isinstance(self.frame, RouteTo):
            return self.encoded
        return b"\x03\x00" + self.encoded


def case(name: str, frame: Frame, encoded: str, shape: tuple[int, int], rule: str) -> Case:
    return Case(name, frame, bytes.fromhex(encoded), *shape, rule)


PREAMBLE = "EF 50 5F A6 60 0F 40 8E 41 51 55 45 44 55 43 54"
OURS = "0B 30 2E 30 2E 30 2D 41 46 54 45 52"

CASES = [
    case("version", Version(), f"{PREAMBLE} {OURS}", (0, 1), "AQ-FRAME-3"),
    case("another version", Version(b"9.9"), f"{PREAMBLE} 03 39 2E 39", (0, 1), "AQ-FRAME-3"),
    case("no version text", Version(b""), f"{PREAMBLE} 00", (0, 1), "AQ-FRAME-3"),
    case("ack version", AckVersion(), "01", (0, 0), "AQ-FRAME-4"),
    case("no connection headers", ConnectionHeaders(()), "02 00", (0, 1), "AQ-FRAME-5"),
    case(
        "connection headers",
        ConnectionHeaders(((b"a", b"1"), (b"a", b""), (b"", b"x"))),
        "02 0A  01 61 01 31  01 61 00  00 01 78",
        (0, 1),
        "AQ-FRAME-5",
    ),
    case("route to the entrypoint", RouteTo(0), "03 00", (1, 0), "AQ-FRAME-6"),
    case("route to channel 300", RouteTo(300), "03 AC 02", (1, 0), "AQ-FRAME-6"),
    case(
        "route to the last channel",
        RouteTo(2**64 - 1),
        "03 FF FF FF FF FF FF FF FF FF 01",
        (1, 0),
        "AQ-FRAME-6",
    ),
    case("empty message", MessageFrame(0, (), (), b""), "04 00 00 00 00", (1, 3), "AQ-FRAME-7"),
    case(
        "plain message",
        MessageFrame(5, (), (), b"hi"),
        "04 05 00 00 02 68 69",
        (1, 3),
        "AQ-FRAME-7",
    ),
    case(
        "plain message with a large number",
        MessageFrame(1_000_000, (), (), b"hi"),
        "04 C0 84 3D 00 00 02 68 69",
        (1, 3),
        "AQ-FRAME-7",
    ),
    case(
        "plain message of 200 bytes",
        MessageFrame(128, (), (), b"x" * 200),
        "04 80 01 00 00 C8 01" + "78" * 200,
        (1, 3),
        "AQ-FRAME-7",
    ),
    case(
        "message with headers",
        MessageFrame(1, ((b"k", b"v"),), (), b""),
        "04 01 04 01 6B 01 76 00 00",
        (1, 3),
        "AQ-FRAME-7",
    ),
    case(
        "message with attachments",
        MessageFrame(2, (), (Attachment(1, ()), Attachment(300, ((b"t", b"u"),))), b"!"),
        "04 02 00  09 01 00 AC 02 04 01 74 01 75  01 21",
        (1, 3),
        "AQ-FRAME-8",
    ),
    case(
        "message with everything",
        MessageFrame(300, ((b"k", b"v"),), (Attachment(5, ()),), b"hi"),
        "04 AC 02  04 01 6B 01 76  02 05 00  02 68 69",
        (1, 3),
        "AQ-FRAME-8",
    ),
    case("sent unreliable", SentUnreliable(3), "05 03", (1, 0), "AQ-FRAME-10"),
    case("finish sender", FinishSender(300), "06 AC 02", (1, 0), "AQ-FRAME-11"),
    case("cancel sender", CancelSender(), "07", (0, 0), "AQ-FRAME-12"),
    case("ack the first", AckReliable(((0, 1),)), "08 02 00 01", (0, 1), "AQ-FRAME-13"),
    case(
        "ack reliable with a gap",
        AckReliable(((0, 3), (5, 305))),
        "08 05 00 03 02 AC 02",
        (0, 1),
        "AQ-FRAME-13",
    ),
    case("ack one", AckNackUnreliable((1,)), "09 01 01", (0, 1), "AQ-FRAME-14"),
    case("nack one", AckNackUnreliable((0, 1)), "09 02 00 01", (0, 1), "AQ-FRAME-14"),
    case(
        "ack, nack, ack",
        AckNackUnreliable((7, 1, 300)),
        "09 04 07 01 AC 02",
        (0, 1),
        "AQ-FRAME-14",
    ),
    case("close receiver", CloseReceiver(), "0A", (0, 0), "AQ-FRAME-15"),
    case("forget channel", ForgetChannel(), "0B", (0, 0), "AQ-FRAME-16"),
    case("dequeued", Dequeued(65536), "0C 80 80 04", (1, 0), "AQ-FRAME-17"),
]
