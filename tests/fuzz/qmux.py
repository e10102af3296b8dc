"""The fuzzer's target for the framing of TCP: an engine that gets any bytes in any pieces."""

from __future__ import annotations

from aqueduct.errors import RemoteProtocolError
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.protocol.events import ConnectionEnded
from aqueduct.transport.tcp.engine import QmuxEngine
from aqueduct.transport.tcp.records import (
    MAX_INTEGER,
    MAX_RECORD,
    Close,
    Datagram,
    Frame,
    Ignored,
    Parameters,
    Ping,
    RecordReader,
    StreamData,
    StreamLimit,
    StreamReset,
    decode_frame,
    encode_frame,
    encode_integer,
)
from aqueduct.wire.chanid import ENTRYPOINT, Side
from aqueduct.wire.frames import ConnectionHeaders, MessageFrame, RouteTo, Version

PEER = ("192.0.2.1", 1)
STEP = 0.01


def run(pieces: list[bytes]) -> None:
    """Check that an engine takes the bytes, ends for a reason, and holds little."""
    assert frames_in(pieces) == frames_in([b"".join(pieces)]), "the result depends on the cuts"
    play(pieces)


def play(pieces: list[bytes]) -> str:
    """Return why the connection ended, if it did."""
    core = ConnectionCore(Side.SERVER)
    engine = QmuxEngine(core, PEER, 15.0, 5.0)
    engine.start(0.0)
    engine.flush(0.0, 0)
    for piece in pieces:
        engine.receive(piece, STEP)
        while engine.is_behind:
            engine.resume(STEP)
        if core._peer_headers is not None and not core.is_ready and not core.has_ended:
            core.accept((), STEP)
        engine.flush(STEP, 0)
    core.take(ENTRYPOINT, 100, STEP)
    ended = [event for event in core.poll_events() if isinstance(event, ConnectionEnded)]
    assert len(ended) <= 1
    assert bool(ended) == core.has_ended
    if ended and not ended[0].by_peer:
        assert ended[0].reason.startswith("AQ-"), "a violation names its rule"
        assert engine.has_closed or engine.has_ended, "the peer is told, unless it has closed"
    assert engine._reader.held <= MAX_RECORD + 8 or engine.has_ended or engine._has_failed
    return ended[0].reason if ended else ""


def frames_in(pieces: list[bytes]) -> tuple[list[Frame], str]:
    """Return all frames, each of which has to decode from its own encoding, and the broken rule."""
    reader = RecordReader()
    frames: list[Frame] = []
    try:
        for piece in pieces:
            reader.feed(piece)
            while (found := reader.next()) is not None:
                contents, at, end = found
                while at < end:
                    frame, at = decode_frame(contents, at, end)
                    encoded = encode_frame(frame)
                    assert decode_frame(encoded, 0, len(encoded)) == (frame, len(encoded))
                    frames.append(frame)
    except RemoteProtocolError as error:
        return frames, error.rule
    return frames, ""


def record(*frames: Frame) -> bytes:
    """Return a record with these frames."""
    contents = b"".join(map(encode_frame, frames))
    return encode_integer(len(contents)) + contents


def seeds() -> dict[str, bytes]:
    """Return inputs that reach every frame and every end."""
    stated = Parameters(1_000, MAX_INTEGER, MAX_INTEGER, 100, 1_200)
    hello = Version().encode() + ConnectionHeaders(()).encode()
    message = Version().encode() + RouteTo(0).encode() + MessageFrame(0, (), (), b"hi").encode()
    greeting = record(stated, StreamData(2, 0, hello, True))
    return {
        "greeting": greeting,
        "message": greeting + record(StreamData(6, 0, message, False)),
        "message-in-pieces": greeting
        + record(StreamData(6, 0, message[:5], False))
        + record(StreamData(6, 5, message[5:], True)),
        "reset": greeting + record(StreamData(6, 0, b"", False), StreamReset(6, 16, 0)),
        "datagram": greeting + record(Datagram(message)),
        "pings": greeting + record(Ping(1, False), Ping(9, False), Ping(1, True)),
        "wrong-answer": greeting + record(Ping(5, True)),
        "limits": greeting + record(StreamLimit(7), StreamLimit(1_000), Ignored(), Ignored()),
        "ignored": greeting + bytes.fromhex("0b 00 10 3f 05 03 10 15 03 3f 16 3f"),
        "close": greeting + record(Close(8, "bye"), Ping(1, False)),
        "transport-close": greeting + record(Close(8, "bye", by_application=False)),
        "without-lengths": greeting + b"\x03\x0c\x06\x00" + b"\x03\x30\xef\x50",
        "no-parameters": record(Ping(1, False)),
        "parameters-twice": record(stated, stated),
        "small-window": record(Parameters(1, 5, 5, 5, 5)),
        "small-records": record(Parameters(1, MAX_INTEGER, MAX_INTEGER, 5, 5, 9)),
        "wrong-stream": greeting + record(StreamData(10, 0, b"", True)),
        "wrong-offset": greeting + record(StreamData(6, 9, b"", True)),
        "bidirectional": greeting + record(StreamData(0, 0, b"", True)),
        "prohibited": greeting + b"\x02\x01\x06",
        "cut-off": greeting + b"\x04\x0a\x06\x09x",
        "empty-record": greeting + b"\x00",
        "long-record": greeting + b"\x80\x01\x00\x01",
    }
