"""The seeds of the fuzzer: small inputs for each target that reach every frame and every end.

``python -m tests.fuzz.seeds`` writes them to ``tests/fuzz/corpus/<target>/seed-*``; a test checks
that they exist and are unchanged. What the fuzzer finds is kept beside them as ``found-*``.
"""

import sys
from pathlib import Path

from aqueduct.wire.chanid import Side, channel_id
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
from tests.fuzz import qmux
from tests.fuzz.files import logs, manifests
from tests.fuzz.message_seeds import forged_messages, honest_messages
from tests.fuzz.program import LARGE_NUMBERS, SAME_TURN, Forgery, Op
from tests.fuzz.targets import IN_PAIRS, REPEAT

CORPUS = Path(__file__).resolve().parent / "corpus"

SEQUENCES: dict[str, list[Frame]] = {
    "greeting": [Version(), ConnectionHeaders(((b"lang", b"py"), (b"", b"")))],
    "answer": [Version(), AckVersion(), ConnectionHeaders(())],
    "ack-version": [AckVersion()],
    "route-alone": [RouteTo(0)],
    "plain": [RouteTo(0), *(MessageFrame(n, (), (), b"hello" * n) for n in range(5))],
    "plain-over-127": [
        Version(),
        RouteTo(24),
        *(MessageFrame(n, (), (), b"x" * (n % 3)) for n in range(120, 140)),
    ],
    "plain-over-2-14": [RouteTo(24), *(MessageFrame(n, (), (), b"y") for n in range(16380, 16388))],
    "plain-large": [
        RouteTo(0),
        MessageFrame(0, (), (), bytes(200)),
        MessageFrame(1, (), (), bytes(3000)),
    ],
    "plain-gap": [RouteTo(0), MessageFrame(7, (), (), b"a"), MessageFrame(3, (), (), b"b")],
    "empty-messages": [RouteTo(0), *(MessageFrame(n, (), (), b"") for n in range(4))],
    "headers": [RouteTo(0), MessageFrame(0, ((b"k", b"v"), (b"k", b"")), (), b"with headers")],
    "attachments": [
        RouteTo(3),
        MessageFrame(2**32, (), (Attachment(1, ()), Attachment(300, ((b"t", b"u"),))), b"!"),
        MessageFrame(2**64 - 1, ((b"k", b"v"),), (Attachment(5, ()),), b""),
    ],
    "sender-control": [RouteTo(2), SentUnreliable(3), SentUnreliable(2**40), FinishSender(300)],
    "finish": [RouteTo(0), MessageFrame(0, (), (), b"last"), FinishSender(1)],
    "cancel": [Version(), RouteTo(8), CancelSender()],
    "receiver-control": [
        RouteTo(2**64 - 1),
        AckReliable(((0, 3), (5, 305))),
        AckNackUnreliable((7, 1, 300)),
        AckNackUnreliable((0, 1)),
        Dequeued(65536),
        CloseReceiver(),
    ],
    "forget": [RouteTo(9), ForgetChannel()],
}

BROKEN = {
    "overlong-varint": bytes.fromhex("03 80 00"),
    "varint-of-65-bits": bytes.fromhex("03 FF FF FF FF FF FF FF FF FF 02"),
    "no-such-tag": bytes.fromhex("03 00 0D"),
    "route-twice": bytes.fromhex("03 00 03 00"),
    "message-unrouted": bytes.fromhex("04 00 00 00 00"),
    "version-late": bytes.fromhex("03 00 EF"),
    "wrong-preamble": bytes.fromhex("EF 50 5F A6 60 0F 40 8E 41 51 55 45 44 55 43 55"),
    "long-version": Version().encode()[:16] + b"\x41" + bytes(65),
    "too-large": bytes.fromhex("03 00 04 00 00 00 81 20"),
    "headers-too-large": bytes.fromhex("03 00 04 00 81 02"),
    "five-attachments": bytes.fromhex("03 00 04 00 00 0A 01 00 02 00 03 00 04 00 05 00 00"),
    "attached-twice": bytes.fromhex("03 00 04 00 00 04 01 00 01 00 00"),
    "attachment-cut-off": bytes.fromhex("03 00 04 00 00 01 01 00"),
    "name-without-value": bytes.fromhex("02 02 01 61"),
    "header-cut-off": bytes.fromhex("02 02 05 61"),
    "zero-gap": bytes.fromhex("03 00 08 04 00 01 00 01"),
    "empty-ranges": bytes.fromhex("03 00 09 00"),
    "ranges-past-the-end": bytes.fromhex("03 00 08 0B FF FF FF FF FF FF FF FF FF 01 02"),
    "cut-off": bytes.fromhex("03 00 04 05 00 00 64 61 62 63"),
}


def encode(frames: list[Frame]) -> bytes:
    return b"".join([frame.encode() for frame in frames])


def sequences() -> dict[str, bytes]:
    """Return the seeds of `roundtrip`: valid and invalid sequences."""
    return {name: encode(frames) for name, frames in SEQUENCES.items()} | BROKEN


def in_pieces(whole: dict[str, bytes]) -> dict[str, bytes]:
    """Return inputs of `parser` and `records`, which are cut in several ways."""
    seeds = {}
    for at, (name, data) in enumerate(whole.items()):
        cuts = (b"", b"\x01", b"\x02\x03", b"\x05\x00\x07", b"\x10")[at % 5]
        flags = (REPEAT if at % 2 else 0) | (IN_PAIRS if at % 3 else 0)
        seeds[name] = bytes((len(cuts) | flags,)) + cuts + data
    return seeds


# Programs for the connection

SERVER = 0x80
ORDERED, UNORDERED, UNRELIABLE = 0, 1, 2
GIVE_SENDER, ONESHOT, WITH_HEADERS = 1, 2, 4
FIN, LEAVE = 0x10, 0x20

HONEST, SMALL, UNEQUAL, FRAGILE, WAITS_FOR_ACCEPT = 0, 1, 2, 3, 4

ALL = bytes((Op.DELIVER_ALL,))
TURN = bytes((Op.DELIVER_ALL, Op.WAIT, 30, Op.DELIVER_ALL, Op.WAIT, 120, Op.DELIVER_ALL))


def op(code: int, *operands: int) -> bytes:
    return bytes((code, *operands))


def send_message(
    side: int, channel: int, size: int, *attach: int, headers: tuple[int, ...] = ()
) -> bytes:
    shape = len(headers) | len(attach) << 2
    return op(side | Op.SEND_MESSAGE, channel, size, shape, *headers, *attach)


def forge(victim: int, stream: int, *frames: bytes, end: int = 0) -> bytes:
    """Return frames on one of eight streams, four at a time; FIN or LEAVE after the last."""
    parts = []
    for at in range(0, len(frames), 4):
        some = frames[at : at + 4]
        last = end if at + 4 >= len(frames) else 0
        parts.append(op(victim | Op.FORGE_FRAME, stream | last | (len(some) - 1) << 6))
        parts += some
    return b"".join(parts)


def prelude(channel: int) -> bytes:
    return op(Forgery.PRELUDE, 0x80 + channel)


CLIENTS = channel_id(Side.CLIENT, Side.CLIENT, False, 1)
CLIENTS_BACK = channel_id(Side.CLIENT, Side.SERVER, False, 0)
SERVERS = channel_id(Side.SERVER, Side.SERVER, False, 0)


def honest_programs() -> dict[str, bytes]:
    """Return programs of two honest sides: each way to send, and each way to end."""
    programs = {
        "handshake": ALL,
        "early": op(Op.SEND, 0, 100) + op(Op.SEND_MANY, 0, 200, 50) + TURN,
        "accept-late": bytes((WAITS_FOR_ACCEPT,))
        + op(Op.SEND_MANY, 0, 20, 9)
        + TURN
        + op(Op.ACCEPT)
        + TURN
        + op(SERVER | Op.TAKE, 0, 4),
        "refuse": bytes((WAITS_FOR_ACCEPT,)) + TURN + op(Op.REFUSE) + ALL,
        "close-connection": TURN + op(Op.SEND, 0, 9) + op(Op.CLOSE_CONNECTION) + ALL,
        "connection-lost": TURN + op(SERVER | Op.LOSE_CONNECTION) + op(Op.SEND, 0, 1),
        "byte-by-byte": op(Op.SEND, 0, 20)
        + b"".join(op(Op.DELIVER, n % 3, 1) + op(SERVER | Op.DELIVER, 0, 3) for n in range(40)),
        "window": bytes((SMALL,))
        + ALL
        + op(Op.SEND_MANY, 0, 100, 30)
        + TURN
        + op(SERVER | Op.TAKE, 0, 3)
        + TURN
        + op(Op.SEND_MANY, 0, 0x90, 5)
        + op(SERVER | Op.TAKE, 0, 0)
        + TURN,
        "connection-window": bytes((SMALL,))
        + ALL
        + send_message(0, 0, 4, 0, 0, headers=(3,))
        + send_message(0, 0, 4, 0, 0)
        + b"".join(op(Op.SEND_MANY, n, 0x86, 1) for n in range(5))
        + TURN
        + b"".join(op(SERVER | Op.TAKE, n, 0) for n in range(5))
        + TURN,
        "too-large": bytes((SMALL,)) + ALL + op(Op.SEND, 0, 0xFF) + op(Op.SEND, 0, 0xB0) + ALL,
        "oneshot-call": ALL
        + send_message(0, 0, 30, GIVE_SENDER | ONESHOT)
        + TURN
        + op(SERVER | Op.TAKE, 0, 1)
        + op(SERVER | Op.SEND, 1, 40)
        + TURN
        + op(Op.TAKE, 1, 0)
        + TURN,
        "oneshot-unreliable": ALL
        + send_message(0, 0, 30, ONESHOT | UNRELIABLE << 3)
        + op(Op.SEND, 1, 9)
        + TURN,
        "server-makes-channels": ALL
        + send_message(0, 0, 5, GIVE_SENDER)
        + TURN
        + op(SERVER | Op.TAKE, 0, 0)
        + send_message(SERVER, 1, 9, GIVE_SENDER | WITH_HEADERS, 0)
        + TURN
        + op(Op.TAKE, 1, 0)
        + op(Op.SEND_MANY, 2, 50, 9)
        + TURN,
        "lost-chain": ALL
        + send_message(0, 0, 5, 0, 0)
        + send_message(0, 1, 5, 0, GIVE_SENDER)
        + send_message(0, 3, 5, 0)
        + op(SERVER | Op.CLOSE, 0)
        + op(Op.DELIVER, 3, 0)
        + TURN,
        "lost-datagram-with-channel": ALL
        + op(Op.SET_MODE, 0, UNRELIABLE)
        + send_message(0, 0, 5, 0)
        + op(Op.DROP_DATAGRAM, 0)
        + op(Op.SEND_MANY, 1, 7, 3)
        + TURN
        + TURN,
        "rtt": op(Op.ROUND_TRIP_TIME, 200) + op(SERVER | Op.ROUND_TRIP_TIME, 40) + TURN,
        "unordered-reordered": ALL
        + op(Op.SET_MODE, 0, UNORDERED)
        + op(Op.SEND_MANY, 0, 10, 12)
        + b"".join(op(Op.DELIVER, 13 * n, 0) for n in range(12))
        + op(SERVER | Op.TAKE, 0, 5)
        + TURN,
        "unreliable-lossy": ALL
        + op(Op.SET_MODE, 0, UNRELIABLE)
        + op(Op.SEND_MANY, 0, 0x88, 6)
        + op(Op.DROP_DATAGRAM, 1)
        + op(Op.DELIVER, 1, 0)
        + op(Op.WAIT, 30)
        + op(Op.SEND, 0, 0x99)
        + TURN
        + op(SERVER | Op.TAKE, 0, 0)
        + TURN,
        "unreliable-window": bytes((SMALL,))
        + ALL
        + op(Op.SET_MODE, 0, UNRELIABLE)
        + op(Op.SEND_MANY, 0, 100, 40)
        + TURN,
        "packed": bytes((SMALL,))
        + ALL
        + op(Op.SEND_MANY, 0, 9, 5)
        + send_message(0, 0, 9, headers=(3,))
        + send_message(0, 0, 9, 0, GIVE_SENDER)
        + op(Op.SEND_MANY, 0, 0, 5)
        + send_message(0, 0, 9, 0)
        + TURN
        + op(SERVER | Op.TAKE, 0, 7)
        + TURN
        + op(SERVER | Op.CLOSE, 0)
        + TURN,
        "one-turn": ALL
        + op(SAME_TURN | Op.SET_MODE, 0, UNRELIABLE)
        + op(SAME_TURN | Op.SEND_MANY, 0, 9, 5)
        + op(SAME_TURN | Op.SEND_MESSAGE, 0, 5, 2 << 2, ORDERED << 3, UNRELIABLE << 3)
        + op(SAME_TURN | Op.SEND_MANY, 2, 9, 5)
        + op(SAME_TURN | Op.SEND_MANY, 1, 9, 5)
        + op(SAME_TURN | Op.CANCEL, 2)
        + op(Op.CANCEL, 1)
        + TURN,
        "late-timers": ALL + op(Op.SEND_MANY, 0, 5, 3) + ALL + op(Op.WAIT_LATE, 99) + TURN,
    }
    for mode_name, mode in (("ordered", 0), ("unordered", 1), ("unreliable", 2)):
        for end_name, end in (("finish", Op.FINISH), ("cancel", Op.CANCEL)):
            programs[f"{mode_name}-{end_name}"] = (
                ALL
                + send_message(0, 0, 10, mode << 3, headers=(3,))
                + op(Op.SEND_MANY, 1, 60, 5)
                + op(Op.DELIVER, 0, 30)
                + op(Op.SEND_MANY, 1, 60, 3)
                + op(end, 1)
                + TURN
                + op(SERVER | Op.TAKE, 0, 0)
                + op(SERVER | Op.TAKE, 1, 0)
                + TURN
            )
        programs[f"{mode_name}-close"] = (
            ALL
            + send_message(0, 0, 10, mode << 3)
            + op(Op.SEND_MANY, 1, 60, 5)
            + TURN
            + op(SERVER | Op.TAKE, 0, 0)
            + op(Op.SEND_MANY, 1, 60, 5)
            + op(Op.DELIVER, 0, 70)
            + op(SERVER | Op.CLOSE, 1)
            + TURN
        )
    with_settings = (
        "accept-late",
        "refuse",
        "window",
        "connection-window",
        "too-large",
        "packed",
        "unreliable-window",
    )
    return {
        name: program if name in with_settings else bytes((HONEST,)) + program
        for name, program in programs.items()
    }


def message(number: int, size: int, *channels: int) -> bytes:
    return op(Forgery.MESSAGE, number, len(channels) << 1, size, *channels)


def forged_frames() -> dict[str, bytes]:
    """Return programs with each frame on each kind of channel, from either side."""
    programs = {}
    for name, kind, operands in (
        ("version", Forgery.VERSION, (0,)),
        ("ack-version", Forgery.ACK_VERSION, ()),
        ("headers", Forgery.CONNECTION_HEADERS, (1, 2, 65, 66)),
        ("message", Forgery.MESSAGE, (0, 3, 10, 9)),
        ("sent-unreliable", Forgery.SENT_UNRELIABLE, (5,)),
        ("finish", Forgery.FINISH_SENDER, (1,)),
        ("cancel", Forgery.CANCEL_SENDER, ()),
        ("acks", Forgery.ACK_RELIABLE, (1, 0, 1, 1, 1)),
        ("decisions", Forgery.ACK_NACK_UNRELIABLE, (1, 1, 1)),
        ("close", Forgery.CLOSE_RECEIVER, ()),
        ("forget", Forgery.FORGET_CHANNEL, ()),
        ("dequeued", Forgery.DEQUEUED, (3,)),
    ):
        for channel in (0, CLIENTS, CLIENTS_BACK, SERVERS):
            victim = SERVER if channel in (0, CLIENTS) else 0
            programs[f"forged-{name}-{channel}"] = (
                TURN
                + send_message(0, 0, 9, 0, GIVE_SENDER)
                + forge(victim, 0, prelude(channel), op(kind, *operands), end=FIN)
                + TURN
                + forge(victim ^ SERVER, 1, prelude(channel), op(kind, *operands))
                + TURN
            )
    return programs


def forged_rules() -> dict[str, bytes]:
    """Return programs of a forger that breaks one rule, which names the seed."""
    last = 0xE0 + LARGE_NUMBERS.index(2**64 - 1)
    acks = op(Forgery.ACK_RELIABLE, 0, 0, 2)
    to_server = {
        "finish-3": [op(Forgery.FINISH_SENDER, 5), op(Forgery.SENT_UNRELIABLE, 1)],
        "finish-4": [op(Forgery.FINISH_SENDER, 5), message(7, 1)],
        "finish-4-late": [message(7, 1), op(Forgery.FINISH_SENDER, 5)],
        "cancel-3": [op(Forgery.FINISH_SENDER, 5), op(Forgery.CANCEL_SENDER)],
        "send-2": [op(Forgery.RUN, 0, 9, 20), message(3, 1)],
        "frame-9": [message(0, 1, 0)],
        "unreliable-1": [op(Forgery.SENT_UNRELIABLE, last), op(Forgery.SENT_UNRELIABLE, last)],
        "ended": [op(Forgery.RUN, 0, 9, 20), op(Forgery.FINISH_SENDER, 9), message(9, 1)],
        "forgotten": [op(Forgery.RUN, 0, 9, 20), op(Forgery.FORGET_CHANNEL), message(9, 1)],
    }
    programs = {
        name: TURN + forge(SERVER, 2, prelude(CLIENTS), *frames) + TURN
        for name, frames in to_server.items()
    }
    raw = {
        "range-1": "03 00 08 01 01",
        "range-2": "03 00 08 02 00 00",
        "range-3": "03 00 09 01 00",
        "range-4": "03 00 08 0B FF FF FF FF FF FF FF FF FF 01 02",
        "sequence-9": "EF 50 5F A6 60 0F 40 8E 41 51 55 45 44 55 43 54 41",
        "varint-3": "03 FF FF FF FF FF FF FF FF FF 02",
    }
    for name, text in raw.items():
        data = bytes.fromhex(text)
        programs[name] = TURN + op(Op.FORGE_BYTES, 0, len(data)) + data
    oneshot = channel_id(Side.CLIENT, Side.CLIENT, True, 0)
    sent = TURN + op(Op.SEND_MANY, 0, 9, 4)
    programs |= {
        "send-6": TURN + forge(SERVER, 2, prelude(oneshot), message(0, 1), message(1, 1)),
        "send-7": TURN
        + forge(SERVER, 2, prelude(0), message(0, 1, 16), message(1, 1, 16))
        + op(SERVER | Op.TAKE, 0, 0),
        "stream-4": TURN
        + forge(SERVER, 0, prelude(0), op(Forgery.SENT_UNRELIABLE, 1))
        + forge(SERVER, 1, prelude(0), op(Forgery.SENT_UNRELIABLE, 1)),
        "stream-5": sent + forge(0, 0, prelude(0), acks) + forge(0, 1, prelude(0), acks),
        "stream-6": TURN + op(Op.FORGE_BIDIRECTIONAL),
        "ack-2": sent + forge(0, 0, prelude(0), acks, acks, op(Forgery.ACK_RELIABLE, 0, 0, 9)),
        "flow-5": sent
        + forge(0, 0, prelude(0), op(Forgery.DEQUEUED, 18), op(Forgery.DEQUEUED, 36)),
        "flow-2": TURN
        + forge(SERVER, 0, prelude(0), *(message(n, 0xF7) for n in range(17)), end=FIN),
        "decisions": TURN
        + op(Op.SET_MODE, 0, UNRELIABLE)
        + op(Op.SEND_MANY, 0, 9, 9)
        + op(Op.WAIT, 30)
        + forge(0, 0, prelude(0), op(Forgery.ACK_NACK_UNRELIABLE, 2, 1, 3))
        + TURN,
        "forget-3": TURN
        + send_message(0, 0, 9, 0)
        + op(Op.SEND_MANY, 1, 9, 3)
        + op(Op.FINISH, 1)
        + TURN
        + op(SERVER | Op.TAKE, 0, 0)
        + TURN
        + forge(SERVER, 0, prelude(CLIENTS), op(Forgery.FORGET_CHANNEL))
        + op(SERVER | Op.TAKE, 1, 0),
        "flow-5-nacked": TURN
        + op(Op.SET_MODE, 0, UNRELIABLE)
        + op(Op.SEND_MANY, 0, 9, 3)
        + op(Op.WAIT, 30)
        + forge(
            0, 0, prelude(0), op(Forgery.DEQUEUED, 18), op(Forgery.ACK_NACK_UNRELIABLE, 0, 1, 3)
        ),
        "limits": op(Op.FORGE_FRAME, FIN | 1 << 6)
        + op(Forgery.VERSION, 0)
        + op(Forgery.CONNECTION_HEADERS, 4, 17)
        + b"\x0echannel-window\x01\x09"
        + TURN
        + op(Op.SEND_MANY, 0, 5, 5),
        "limit-1": op(Op.FORGE_FRAME, FIN | 1 << 6)
        + op(Forgery.VERSION, 0)
        + op(Forgery.CONNECTION_HEADERS, 4, 16)
        + b"\x0echannel-window\x00",
        "version-4": op(SERVER | Op.FORGE_FRAME, 0) + op(Forgery.VERSION, 0xFF),
        "connection-4": TURN + forge(SERVER, 0, op(Forgery.CONNECTION_HEADERS, 0)),
        "datagrams": TURN
        + op(SERVER | Op.FORGE_DATAGRAM, 0x80)
        + prelude(0)
        + message(3, 9)
        + op(Forgery.RUN, 0, 3, 7)
        + op(SERVER | Op.FORGE_DATAGRAM, 0x40)
        + prelude(0)
        + op(Forgery.CANCEL_SENDER),
        "reset": TURN
        + forge(SERVER, 3, prelude(0), op(Forgery.SENT_UNRELIABLE, 4))
        + op(SERVER | Op.FORGE_RESET, 3)
        + op(SERVER | Op.CLOSE, 0)
        + TURN,
        "bytes": op(SERVER | Op.FORGE_BYTES, 0, 38)
        + Version().encode()
        + RouteTo(0).encode()
        + bytes(8),
        "large": TURN
        + b"".join(
            forge(SERVER, n, prelude(8 * n + 8), op(Forgery.LARGE_MESSAGE, 0, 0, 0xF7))
            for n in range(6)
        ),
    }
    return {f"forged-{name}": bytes((HONEST,)) + program for name, program in programs.items()}


def forged_limits() -> dict[str, bytes]:
    """Return programs of a forger that exceeds the low limits of a victim."""
    part = op(Forgery.PARTIAL_MESSAGE, 0, 0, 0xF7)
    partial = b"".join(forge(SERVER, n % 8, prelude(0), part, end=LEAVE) for n in range(36))
    channels = [op(Forgery.MANY_CHANNELS, n, 0, n + 1, 16) for n in range(17)]
    gaps = [message(2 * n, 1) for n in range(6)]
    empties = [message(9 - 2 * n, 0) for n in range(5)]
    ghosts = b"".join(
        forge(0, n % 8, prelude(8 * n + 8), op(Forgery.CLOSE_RECEIVER), end=FIN) for n in range(6)
    )
    streams = [forge(SERVER, n, prelude(0)) for n in range(16)]
    return {
        "small-limit-3": bytes((SMALL,)) + TURN + partial,
        "small-limit-4": bytes((SMALL,)) + TURN + forge(SERVER, 0, prelude(0), *channels),
        "small-sequence-8": bytes((SMALL,))
        + TURN
        + forge(SERVER, 0, prelude(0), op(Forgery.MANY_CHANNELS, 0, 0, 1, 17)),
        "fragile-limit-5": bytes((FRAGILE,)) + TURN + b"".join(streams),
        "fragile-limit-6": bytes((FRAGILE,)) + TURN + forge(SERVER, 0, prelude(0), *gaps),
        "fragile-limit-6-empty": bytes((FRAGILE,)) + TURN + forge(SERVER, 0, prelude(0), *empties),
        "fragile-limit-6-acks": bytes((FRAGILE,))
        + TURN
        + op(Op.SEND_MANY, 0, 1, 20)
        + forge(0, 0, prelude(0), op(Forgery.ACK_RELIABLE, 3, 0, 1, 1, 1, 1, 1, 1, 1)),
        "fragile-limit-7": bytes((FRAGILE,)) + TURN + ghosts,
        "fragile-connection-3": bytes((FRAGILE,))
        + forge(SERVER, 0, prelude(0), op(Forgery.LARGE_MESSAGE, 0, 0, 0x90)),
    }


def forged_programs() -> dict[str, bytes]:
    frames = {name: bytes((HONEST,)) + each for name, each in forged_frames().items()}
    return frames | forged_rules() | forged_limits()


def generate() -> dict[str, dict[str, bytes]]:
    """Return all seeds, by target and name."""
    return {
        "parser": in_pieces(sequences()),
        "roundtrip": sequences(),
        "connection": honest_programs() | forged_programs(),
        "ipc": honest_messages() | forged_messages(),
        "records": in_pieces(qmux.seeds()),
        "log": logs(),
        "manifest": manifests(),
    }


def main() -> int:
    for target, seeds in generate().items():
        directory = CORPUS / target
        directory.mkdir(parents=True, exist_ok=True)
        for stale in directory.glob("seed-*"):
            stale.unlink()
        for name, data in seeds.items():
            (directory / f"seed-{name}").write_bytes(data)
        print(f"{target}: {len(seeds)} seeds, {sum(map(len, seeds.values()))} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
