"""The targets of the fuzzer: functions that take any bytes, and raise only for a bug."""

from collections.abc import Callable, Iterator
from itertools import cycle

from aqueduct.errors import RemoteProtocolError
from aqueduct.wire.frames import Frame, MessageFrame, MessageRun
from aqueduct.wire.ranges import MAX_RANGES_SIZE
from aqueduct.wire.sequence import ParserLimits, SequenceParser
from tests.fuzz import files, messages, program, qmux

LIMITS = ParserLimits(max_message=4096, max_headers=256, max_attachments=4)

MAX_HELD = max(LIMITS.max_message, LIMITS.max_headers, LIMITS.max_version, MAX_RANGES_SIZE) + 10
"""The largest varbytes, or all those of a message, and an incomplete varint."""

CUTS = 15
"""The maximum of cuts in an input of `parser`: the low half of its first byte."""

REPEAT = 0x10
"""The bit of the first byte that repeats the cuts."""

IN_PAIRS = 0x20
"""The bit of the first byte that feeds two pieces before polling frames."""


def parser(data: bytes) -> None:
    """Check that bytes in pieces give the same frames or error as in one piece.

    The first byte is the number of cuts that follow, a byte each; the rest is the sequence.
    """
    pieces = list(cut(data))
    whole = parse([b"".join(pieces)])
    at_once = 2 if data and data[0] & IN_PAIRS else 1
    assert parse(pieces, at_once) == whole, "the result depends on the cuts"


def roundtrip(data: bytes) -> None:
    """Check that decoded frames encode to the same bytes, which decode to the same frames."""
    frames, error = parse([data])
    encoded = b"".join([frame.encode() for frame in frames])
    assert data.startswith(encoded), "the same frames have two encodings"
    again, error_again = parse([encoded])
    assert again == frames
    if error is None:
        assert (encoded, error_again) == (data, None)
    for frame in frames:
        if isinstance(frame, MessageFrame):
            check_size(frame)


def connection(data: bytes) -> None:
    """Run a program for two cores, the network and a forger: see `program`."""
    program.run(data)


def ipc(data: bytes) -> None:
    """Decode a PDU, and run a program for two endpoints and a forger: see `messages`."""
    messages.run(data)


def records(data: bytes) -> None:
    """Hand a server of the TCP transport any bytes, cut as for `parser`: see `qmux`."""
    qmux.run(list(cut(data)))


def log(data: bytes) -> None:
    """Open a log of a partition: see `files`."""
    files.open_log(data)


def manifest(data: bytes) -> None:
    """Open a manifest of a partition: see `files`."""
    files.open_manifest(data)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "parser": parser,
    "roundtrip": roundtrip,
    "connection": connection,
    "ipc": ipc,
    "records": records,
    "log": log,
    "manifest": manifest,
}


def cut(data: bytes) -> Iterator[bytes]:
    """Return the pieces of an input of `parser`."""
    first = data[0] if data else 0
    start = 1 + (first & CUTS)
    sizes = data[1:start]
    body = data[start:]
    if first & REPEAT and any(sizes):
        pos = 0
        for size in cycle(sizes):
            yield body[pos : pos + size]
            pos += size
            if pos >= len(body):
                return
    for size in sizes:
        yield body[:size]
        body = body[size:]
    yield body


def parse(pieces: list[bytes], at_once: int = 1) -> tuple[list[Frame], str | None]:
    """Return all frames, with runs as messages, and the broken rule, if any."""
    frames: list[Frame] = []
    reader = SequenceParser(LIMITS)
    try:
        for at in range(0, len(pieces), at_once):
            for piece in pieces[at : at + at_once]:
                before = reader.held
                reader.feed(piece)
                assert reader.held == before + len(piece)
            while (frame := reader.next()) is not None:
                if isinstance(frame, MessageRun):
                    assert frame.payloads
                    assert frame.size == sum(map(len, frame.payloads))
                    frames.extend(frame.messages())
                else:
                    frames.append(frame)
            assert reader.held <= MAX_HELD, f"{reader.held} bytes are held"
        reader.finish()
    except RemoteProtocolError as error:
        return frames, error.rule
    return frames, None


def check_size(message: MessageFrame) -> None:
    """Check that the size for flow control is the contents of the three varbytes."""
    bare = MessageFrame(message.number, (), (), b"")
    overhead = len(bare.encode())
    # Each of the three length prefixes grows from one byte to two or three.
    assert 0 <= len(message.encode()) - overhead - message.size <= 6
