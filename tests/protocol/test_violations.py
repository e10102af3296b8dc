"""Protocol violations: each closes the connection with its code and names its rule.

One table. Each case runs twice, with streams in one piece and byte by byte; afterwards the core
must hold no state and ignore all input.
"""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from aqueduct.errors import CloseCode
from aqueduct.protocol.config import INITIAL_LIMITS, Config
from aqueduct.protocol.connection import Mode
from aqueduct.wire.chanid import ENTRYPOINT, Side
from aqueduct.wire.frames import (
    PREAMBLE,
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
    message_head,
)
from aqueduct.wire.primitives import MAX_VARINT, encode_varint
from aqueduct.wire.ranges import MAX_RANGE_VARINTS, MAX_RANGES_SIZE
from tests.protocol.wires import (
    GIVE_SENDER,
    RawPeer,
    carrier,
    encode,
    from_client,
    plain,
    to_client,
    to_server,
)

SOURCES = Path(__file__).resolve().parents[2] / "src" / "aqueduct"

VIOLATION = CloseCode.PROTOCOL_VIOLATION
LIMIT = CloseCode.LIMIT_EXCEEDED
FLOW = CloseCode.FLOW_CONTROL

Step = Callable[[RawPeer], None]

ROUTE = RouteTo(ENTRYPOINT).encode()
MESSAGE = message_head(0, 0)[:1]
SMALL = Config(max_streams=8, max_ranges=8, max_forgets=8, max_early_bytes=2_000)
WINDOW = INITIAL_LIMITS.channel_window
TIGHT = Config(limits=INITIAL_LIMITS)


class BytewisePeer(RawPeer):
    """A raw peer whose streams arrive one byte at a time."""

    def write(self, stream: int, data: bytes, *, fin: bool = False) -> None:
        for at in range(len(data)):
            last = at == len(data) - 1
            self.core.handle_stream_data(stream, data[at : at + 1], fin and last, self.now)
        if not data:
            self.core.handle_stream_data(stream, b"", fin, self.now)


class Case(NamedTuple):
    name: str
    side: Side
    config: Config | None
    greet: bool
    step: Step
    code: CloseCode
    rule: str


def bad(
    name: str,
    rule: str,
    step: Step,
    code: CloseCode = VIOLATION,
    *,
    side: Side = Side.SERVER,
    config: Config | None = None,
    greet: bool = True,
) -> Case:
    return Case(name, side, config, greet, step, code, rule)


# -- steps -----------------------------------------------------------------------------------------


def raw(data: bytes, *, fin: bool = False) -> Step:
    return lambda peer: (peer.raw(data, fin=fin), None)[1]


def stream(*frames: Frame, fin: bool = False) -> Step:
    return raw(encode(frames), fin=fin)


def on(channel: int, *frames: Frame, fin: bool = False) -> Step:
    return stream(RouteTo(channel), *frames, fin=fin)


def here(*frames: Frame) -> Step:
    return on(ENTRYPOINT, *frames)


def datagram(*frames: Frame) -> Step:
    return lambda peer: peer.datagram(*frames)


def raw_datagram(data: bytes) -> Step:
    return lambda peer: peer.core.handle_datagram(data, peer.now)


def each(*steps: Step) -> Step:
    def play(peer: RawPeer) -> None:
        for step in steps:
            step(peer)

    return play


def many(count: int, step: Callable[[int], Step]) -> Step:
    return each(*(step(number) for number in range(count)))


def sends(*payloads: bytes, mode: Mode = Mode.ORDERED) -> Step:
    """Have the core, a client, send these and run its timers."""

    def play(peer: RawPeer) -> None:
        peer.core.set_mode(ENTRYPOINT, mode)
        for payload in payloads:
            peer.core.send(ENTRYPOINT, payload, peer.now)
        peer.wait(0.03)

    return play


def contents(frame: bytes) -> bytes:
    """Return MESSAGE 0 on the entrypoint with these bytes after its number."""
    return ROUTE + MESSAGE + b"\x00" + frame


def ranges(tag: int, *varints: int) -> bytes:
    inside = b"".join(map(encode_varint, varints))
    return ROUTE + bytes([tag]) + encode_varint(len(inside)) + inside


ACK, ACK_NACK = 8, 9
CLIENT, SERVER = Side.CLIENT, Side.SERVER

ENCODING = [
    bad("an overlong varint", "AQ-VARINT-2", raw(b"\x03\x80\x00")),
    bad("an overlong number of a message", "AQ-VARINT-2", raw(ROUTE + b"\x04\x81\x00\0\0\0")),
    bad("a varint of 65 bits", "AQ-VARINT-3", raw(b"\x03" + b"\xff" * 9 + b"\x02")),
    bad("a varint of eleven bytes", "AQ-VARINT-3", raw(b"\x03" + b"\x80" * 10 + b"\x01")),
    bad("a header runs past its headers", "AQ-BYTES-2", raw(contents(b"\x02\x05a\x00\x00"))),
    bad("an attachment runs past", "AQ-BYTES-2", raw(contents(b"\x00\x02\x08\x05\x00"))),
    bad("a channel id runs past", "AQ-BYTES-2", raw(contents(b"\x00\x01\x88\x00"))),
    bad("a varint runs past its ranges", "AQ-BYTES-2", raw(ROUTE + b"\x08\x02\x00\x80")),
    bad("a name without a value", "AQ-HEADER-2", raw(contents(b"\x02\x01a\x00\x00"))),
    bad("a name without a value in connection headers", "AQ-HEADER-2", raw(b"\x02\x02\x01a")),
    bad("no ranges", "AQ-RANGE-1", raw(ranges(ACK)), side=CLIENT),
    bad("a gap without a length", "AQ-RANGE-1", raw(ranges(ACK, 0, 1, 2)), side=CLIENT),
    bad("a length of zero", "AQ-RANGE-2", raw(ranges(ACK, 0, 0)), side=CLIENT),
    bad("a gap of zero", "AQ-RANGE-2", raw(ranges(ACK, 0, 1, 0, 1)), side=CLIENT),
    bad("no lengths", "AQ-RANGE-3", raw(ranges(ACK_NACK)), side=CLIENT),
    bad("a nack of nothing", "AQ-RANGE-3", raw(ranges(ACK_NACK, 1, 0)), side=CLIENT),
    bad("only a zero", "AQ-RANGE-3", raw(ranges(ACK_NACK, 0)), side=CLIENT),
    bad("ranges past the last number", "AQ-RANGE-4", raw(ranges(ACK, MAX_VARINT, 2)), side=CLIENT),
    bad(
        "lengths past the last number",
        "AQ-RANGE-4",
        raw(ranges(ACK_NACK, MAX_VARINT, 2)),
        side=CLIENT,
    ),
    bad(
        "too many ranges",
        "AQ-RANGE-5",
        raw(ranges(ACK, *[1] * (MAX_RANGE_VARINTS + 2))),
        LIMIT,
        side=CLIENT,
    ),
    bad(
        "ranges that are too long",
        "AQ-RANGE-5",
        raw(ROUTE + b"\x09" + encode_varint(MAX_RANGES_SIZE + 1)),
        LIMIT,
        side=CLIENT,
    ),
]

FRAMES = [
    bad("an unknown tag", "AQ-FRAME-2", raw(b"\x0d")),
    bad("the tag zero", "AQ-FRAME-2", raw(b"\x00")),
    bad("an unknown tag behind a route", "AQ-FRAME-2", raw(ROUTE + b"\xfe")),
    bad("a wrong magic byte", "AQ-FRAME-3", raw(PREAMBLE[:5] + b"\x00")),
    bad("the entrypoint attached", "AQ-FRAME-9", here(carrier(0, ENTRYPOINT))),
    bad("a channel twice in a message", "AQ-FRAME-9", here(carrier(0, 8, 16, 8))),
    *(
        bad(f"{name} from the receiver", "AQ-FRAME-18", here(frame), side=CLIENT)
        for name, frame in (
            ("MESSAGE", plain(0)),
            ("MESSAGE with headers", MessageFrame(0, ((b"", b""),), (), b"")),
            ("MESSAGE with channels", carrier(0, to_server(0))),
            ("SENT_UNRELIABLE", SentUnreliable(1)),
            ("FINISH_SENDER", FinishSender(0)),
            ("CANCEL_SENDER", CancelSender()),
        )
    ),
    *(
        bad(f"{type(frame).__name__} from the sender", "AQ-FRAME-19", here(frame))
        for frame in (
            AckReliable(((0, 1),)),
            AckNackUnreliable((1,)),
            CloseReceiver(),
            Dequeued(0),
        )
    ),
    bad("a message from the receiver in a datagram", "AQ-FRAME-18",
        datagram(RouteTo(0), plain(0)), side=CLIENT),
    bad("FORGET_CHANNEL from the other side", "AQ-FRAME-20",
        each(lambda peer: made(peer, to_client(0)), on(to_client(0), ForgetChannel())),
        side=CLIENT),
    bad("FORGET_CHANNEL for the entrypoint", "AQ-FRAME-20", here(ForgetChannel())),
    bad("FORGET_CHANNEL for the entrypoint, to a client", "AQ-FRAME-20", here(ForgetChannel()),
        side=CLIENT),
    bad("a channel of ours attached", "AQ-FRAME-21", here(carrier(0, to_server(0)))),
    bad("a channel of ours among others", "AQ-FRAME-21", here(carrier(0, 8, 1))),
    bad("VERSION behind a route", "AQ-SEQ-1", here(Version())),
    bad("ACK_VERSION behind a route", "AQ-SEQ-1", here(AckVersion())),
    bad("CONNECTION_HEADERS behind a route", "AQ-SEQ-1", here(ConnectionHeaders(()))),
    bad("two routes", "AQ-SEQ-2", here(RouteTo(8))),
    bad("a message without a route", "AQ-SEQ-3", stream(plain(0))),
    bad("a close without a route", "AQ-SEQ-3", stream(CloseReceiver())),
    bad("an end inside a frame", "AQ-SEQ-4", raw(ROUTE + b"\x04\x00\x00", fin=True)),
    bad("an end inside a payload", "AQ-SEQ-4", raw(ROUTE + message_head(0, 9) + b"x", fin=True)),
    bad("an end inside VERSION", "AQ-SEQ-4", raw(PREAMBLE, fin=True)),
    bad("a datagram cut off", "AQ-SEQ-4", raw_datagram(ROUTE + b"\x04\x00\x00")),
    bad("a stream without a frame", "AQ-SEQ-5", raw(b"", fin=True)),
    bad("an empty datagram", "AQ-SEQ-5", raw_datagram(b"")),
    bad("a message that is too large", "AQ-SEQ-6", here(plain(0, b"x" * (WINDOW + 1))), LIMIT,
        config=TIGHT),
    bad("a message whose length is too large", "AQ-SEQ-6",
        raw(ROUTE + message_head(0, MAX_VARINT)), LIMIT),
    bad("headers that are too large", "AQ-SEQ-7",
        raw(contents(encode_varint(INITIAL_LIMITS.max_headers + 1))), LIMIT, config=TIGHT),
    bad("headers of an attachment that are too large", "AQ-SEQ-7",
        here(MessageFrame(
            0, (), (Attachment(8, ((b"", b"x" * INITIAL_LIMITS.max_headers),)),), b"")),
        LIMIT, config=TIGHT),
    bad("connection headers that are too large", "AQ-SEQ-7",
        raw(b"\x02" + encode_varint(INITIAL_LIMITS.max_headers + 1)), LIMIT, config=TIGHT),
    bad("too many attachments", "AQ-SEQ-8",
        here(carrier(0, *(8 * at for at in range(1, INITIAL_LIMITS.max_attachments + 2)))),
        LIMIT, config=TIGHT),
    bad("a version text that is too long", "AQ-SEQ-9", stream(Version(b"x" * 65)), LIMIT),
]  # fmt: skip

CONNECTION = [
    bad("no version", "AQ-VERSION-3", stream(ConnectionHeaders(())), greet=False),
    bad("no version from a server", "AQ-VERSION-3", stream(AckVersion()), greet=False, side=CLIENT),
    bad("no version in a datagram", "AQ-VERSION-3", datagram(RouteTo(0), plain(0)), greet=False),
    bad("another version", "AQ-VERSION-4", stream(Version(b"1.0")), CloseCode.VERSION_MISMATCH,
        greet=False),
    bad("another version later", "AQ-VERSION-4", stream(Version(b"1.0")),
        CloseCode.VERSION_MISMATCH),
    bad("too much before the headers", "AQ-CONN-3",
        stream(Version(), RouteTo(0), plain(0, b"x" * 3_000)), LIMIT, greet=False, config=SMALL),
    bad("too many streams before the headers", "AQ-CONN-3",
        many(8, lambda at: stream(Version(), RouteTo(0), plain(at))), LIMIT, greet=False,
        config=SMALL),
    bad("too many streams of nothing before the headers", "AQ-COST-1",
        many(9, lambda at: stream(Version(), fin=False)), LIMIT, greet=False,
        config=Config(max_early_streams=8)),
    bad("second headers", "AQ-CONN-4", stream(ConnectionHeaders(()))),
    bad("second headers in one stream", "AQ-CONN-4",
        stream(Version(), ConnectionHeaders(()), ConnectionHeaders(())), greet=False),
    bad("second headers from a server", "AQ-CONN-4", stream(ConnectionHeaders(())), side=CLIENT),
    bad("a limit that is no varint", "AQ-LIMIT-1",
        stream(Version(), ConnectionHeaders(((b"aqueduct-limits", b"\x0bmax-message\x00"),))),
        greet=False),
    bad("a limit of two varints", "AQ-LIMIT-1",
        stream(Version(), ConnectionHeaders(((b"aqueduct-limits", b"\x0bmax-message\x02\1\1"),))),
        greet=False),
    bad("limits that are no headers", "AQ-HEADER-2",
        stream(Version(), ConnectionHeaders(((b"aqueduct-limits", b"\x01a"),))), greet=False),
    bad("too much in unfinished messages", "AQ-LIMIT-3",
        many(36, lambda at: raw(ROUTE + message_head(at, WINDOW) + b"x" * (WINDOW - 1))), LIMIT,
        config=TIGHT),
    bad("too many channels", "AQ-LIMIT-4",
        many(2 * INITIAL_LIMITS.max_channels + 1, lambda at: on(from_client(1 + at), fin=True)),
        LIMIT, config=TIGHT),
    bad("too many channels of both kinds in messages", "AQ-LIMIT-4",
        many(INITIAL_LIMITS.max_channels + 1,
             lambda at: here(carrier(at, from_client(1 + at), to_client(at)))),
        LIMIT, config=TIGHT),
    bad("too many streams", "AQ-LIMIT-5", many(9, lambda at: here(plain(at))), LIMIT,
        config=SMALL),
    bad("too many gaps in what is sent", "AQ-LIMIT-6",
        many(9, lambda at: on(ENTRYPOINT, plain(2 * at, b"x"), fin=True)), LIMIT, config=SMALL),
    bad("too many gaps in what is acked", "AQ-LIMIT-6",
        each(sends(*[b"x"] * 20), here(AckReliable(tuple((2 * at, 2 * at + 1)
                                                         for at in range(9))))),
        LIMIT, side=CLIENT, config=SMALL),
    bad("too many stretches of empty messages", "AQ-LIMIT-6",
        lambda peer: scattered_empties(peer, 9), LIMIT, config=SMALL),
    bad("too many strays", "AQ-LIMIT-7", many(9, lambda at: on(to_server(at), fin=True)), LIMIT,
        config=SMALL),
]  # fmt: skip

CHANNELS = [
    bad("announcements on two streams", "AQ-STREAM-4",
        each(here(SentUnreliable(1)), here(SentUnreliable(1)))),
    bad("announcements and the finish on two streams", "AQ-STREAM-4",
        each(here(SentUnreliable(1)), here(FinishSender(0)))),
    bad("a second control stream behind the first", "AQ-STREAM-4",
        each(on(0, SentUnreliable(1), fin=True), here(FinishSender(0)))),
    bad("acks on two streams", "AQ-STREAM-5",
        each(sends(b"", b""), here(AckReliable(((0, 1),))), here(AckReliable(((1, 2),)))),
        side=CLIENT),
    bad("a close on a second stream", "AQ-STREAM-5",
        each(here(Dequeued(0)), here(CloseReceiver())), side=CLIENT),
    bad("a bidirectional stream", "AQ-STREAM-6",
        lambda peer: peer.core.handle_bidirectional_stream(peer.now)),
    bad("a number twice", "AQ-SEND-2", here(plain(0), plain(0))),
    bad("a number twice, with headers", "AQ-SEND-2",
        here(plain(0, b"x"), MessageFrame(0, ((b"", b""),), (), b""))),
    bad("a number twice, in two streams", "AQ-SEND-2", each(here(plain(5)), here(plain(5)))),
    bad("a number twice, within a run", "AQ-SEND-2",
        each(here(plain(5)), here(plain(4), plain(5), plain(6)))),
    bad("a number twice, in datagrams", "AQ-SEND-2",
        each(*[datagram(RouteTo(0), plain(0, b"x"))] * 2)),
    bad("a number twice, in a datagram with headers", "AQ-SEND-2",
        each(datagram(RouteTo(0), plain(0)),
             datagram(RouteTo(0), MessageFrame(0, ((b"", b""),), (), b"")))),
    bad("two messages on a oneshot channel", "AQ-SEND-6",
        on(from_client(0, oneshot=True), plain(0), plain(1))),
    bad("two datagrams on a oneshot channel", "AQ-SEND-6",
        many(2, lambda at: datagram(RouteTo(from_client(0, oneshot=True)), plain(at)))),
    bad("a finish at two on a oneshot channel", "AQ-SEND-6",
        on(from_client(0, oneshot=True), FinishSender(2))),
    bad("a channel attached to two messages", "AQ-SEND-7", here(carrier(0, 8), carrier(1, 8))),
    bad("a channel attached on two channels", "AQ-SEND-7",
        each(here(carrier(0, 8, 16)), on(16, carrier(0, 8)))),
    bad("more announced than there are numbers", "AQ-UNREL-1",
        here(SentUnreliable(MAX_VARINT), SentUnreliable(1))),
    bad("a decision of what was not announced", "AQ-UNREL-5",
        each(sends(b"", b"", mode=Mode.UNRELIABLE), here(AckNackUnreliable((1, 2)))), side=CLIENT),
    bad("a decision where there are no datagrams", "AQ-UNREL-5",
        each(sends(b""), here(AckNackUnreliable((1,)))), side=CLIENT),
    *(
        bad(f"{type(frame).__name__} in a datagram", "AQ-UNREL-7", datagram(*before, frame))
        for before, frame in (
            ((), AckVersion()),
            ((), ConnectionHeaders(())),
            ((RouteTo(8),), SentUnreliable(1)),
            ((RouteTo(8),), FinishSender(0)),
            ((RouteTo(8),), CancelSender()),
            ((RouteTo(8),), ForgetChannel()),
            ((RouteTo(to_client(0)),), AckReliable(((0, 1),))),
            ((RouteTo(to_client(0)),), AckNackUnreliable((1,))),
            ((RouteTo(to_client(0)),), CloseReceiver()),
            ((RouteTo(to_client(0)),), Dequeued(0)),
        )
    ),
    bad("an ack of what was not sent", "AQ-ACK-2",
        each(sends(b""), here(AckReliable(((0, 1), (5, 6))))), side=CLIENT),
    bad("an ack on an unused channel", "AQ-ACK-2",
        on(to_client(0), AckReliable(((0, 1),)))),
    bad("an announcement after the finish", "AQ-FINISH-3",
        here(FinishSender(1), SentUnreliable(1))),
    bad("two finishes", "AQ-FINISH-3", here(FinishSender(1), FinishSender(1))),
    bad("a finish below what arrived", "AQ-FINISH-4", here(plain(0), plain(1), FinishSender(1))),
    bad("a message past the finish", "AQ-FINISH-4", each(here(FinishSender(1)), here(plain(1)))),
    bad("messages that run past the finish", "AQ-FINISH-4",
        each(here(FinishSender(2)), here(plain(1), plain(2)))),
    bad("a cancel after the finish", "AQ-CANCEL-3", each(here(FinishSender(1)),
                                                         here(CancelSender()))),
    bad("past the channel window", "AQ-FLOW-2",
        here(plain(0, b"x" * (WINDOW - 1)), plain(1, b"xx")), FLOW, config=TIGHT),
    bad("past the channel window, with headers", "AQ-FLOW-2",
        here(plain(0, b"x" * (WINDOW - 1)), MessageFrame(1, ((b"", b""),), (), b"")), FLOW,
        config=TIGHT),
    bad("past the connection window", "AQ-FLOW-2",
        many(33, lambda at: on(from_client(1 + at), plain(0, b"x" * WINDOW), fin=True)), FLOW,
        config=TIGHT),
    bad("more dequeued than outstanding", "AQ-FLOW-5",
        each(sends(b"xyz"), here(Dequeued(2), Dequeued(2))), FLOW, side=CLIENT),
    bad("a nack of bytes that were dequeued", "AQ-FLOW-5",
        each(sends(b"xyz", mode=Mode.UNRELIABLE), here(Dequeued(3), AckNackUnreliable((0, 1)))),
        FLOW, side=CLIENT),
    bad("dequeued where nothing was sent", "AQ-FLOW-5", on(to_client(0), Dequeued(1)), FLOW),
]  # fmt: skip

CASES = [*ENCODING, *FRAMES, *CONNECTION, *CHANNELS]

OF_SEVERAL = {"AQ-COST-4"}
"""Rules that only several connections of one address can break: see test_bounds.py."""


def scattered_empties(peer: RawPeer, count: int) -> None:
    """Send empty messages in datagrams, of which every other one is lost, and take none."""
    control = peer.routed(ENTRYPOINT)
    for number in range(0, 2 * count, 2):
        peer.datagram_to(ENTRYPOINT, plain(number))
        peer.more(control, SentUnreliable(2))
        if number + 2 < 2 * count:
            peer.assert_alive()
            peer.wait(0.1)


def made(peer: RawPeer, channel: int) -> None:
    """Have the core, a client, create a receiver."""
    sent = peer.core.send_message(ENTRYPOINT, b"", peer.now, attach=[GIVE_SENDER])
    assert sent.channels == (channel,)
    peer.poll()


def long(case: Case) -> bool:
    """Return whether a case takes too long byte by byte."""
    return case.rule in ("AQ-FLOW-2", "AQ-LIMIT-3", "AQ-RANGE-5") or case.name == (
        "a message that is too large"
    )


def plays() -> Iterator[object]:
    for case in CASES:
        yield pytest.param(case, RawPeer, id=f"{case.rule}: {case.name}")
        if not long(case):
            yield pytest.param(case, BytewisePeer, id=f"{case.rule}: {case.name}, byte by byte")


@pytest.mark.parametrize(("case", "peer_type"), [*plays()])
def test_a_violation_closes_the_connection(case: Case, peer_type: type[RawPeer]) -> None:
    """AQ-CODE-3: at once, with its code and a reason that begins with the rule."""
    peer = peer_type(case.side, case.config, greet=case.greet)
    peer.poll()
    case.step(peer)
    peer.assert_closed(case.code, case.rule)
    assert peer.closed is not None
    assert len(peer.closed.reason) > len(case.rule) + 10, "the reason says what happened"

    for frames in ((Version(), ConnectionHeaders(())), (RouteTo(0), plain(77, b"x"))):
        peer.stream(*frames, fin=True)
        peer.datagram(*frames)
    peer.raw(b"\xff", fin=True)
    peer.wait(2)
    assert peer.poll() == []
    assert peer.events() == []
    assert peer.core.leftovers() == []
    assert peer.core.channel_count == 0
    assert peer.core.held_bytes == 0


def test_the_table_has_every_violation_the_code_can_find() -> None:
    """AQ-CODE-3: a rule id alone in a string is one that a peer can violate."""
    rules: set[str] = set()
    for path in [*(SOURCES / "wire").glob("*.py"), *(SOURCES / "protocol").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if re.fullmatch(r"AQ-[A-Z]+-[0-9]+", node.value):
                    rules.add(node.value)
    assert rules - {case.rule for case in CASES} == OF_SEVERAL
