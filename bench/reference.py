"""Reference figures: the cost of length-prefixed messages in Python without a protocol.

The bare loops do the least that any framing in Python has to do: a head of a tag, a number and a
length by ``struct``, joined and cut apart again. They have no channels, no acks, no flow control,
and their input never comes in pieces. msgspec, a serializer written in C, is measured only where
it is installed; nothing here depends on it.
"""

import struct
from importlib import import_module
from importlib.util import find_spec

from bench.measure import Benchmark, Sample, Stopwatch

HEAD = struct.Struct("<BQI")
PAYLOAD = bytes(range(100))
COUNT = 100_000
BATCH = 500


def join_frames() -> Sample:
    """Join heads and payloads in batches."""
    clock = Stopwatch()
    pack = HEAD.pack
    payload = PAYLOAD
    with clock:
        for first in range(0, COUNT, BATCH):
            chunks: list[bytes] = []
            for number in range(first, first + BATCH):
                chunks.append(pack(4, number, len(payload)))
                chunks.append(payload)
            b"".join(chunks)
    return Sample(COUNT, clock.seconds)


def split_frames() -> Sample:
    """Split the same batches into numbers and payloads."""
    data = b"".join([HEAD.pack(4, number, len(PAYLOAD)) + PAYLOAD for number in range(BATCH)])
    clock = Stopwatch()
    unpack = HEAD.unpack_from
    head_size = HEAD.size
    with clock:
        for _ in range(COUNT // BATCH):
            messages = []
            pos = 0
            end = len(data)
            while pos < end:
                _, number, size = unpack(data, pos)
                pos += head_size
                messages.append((number, data[pos : pos + size]))
                pos += size
    return Sample(COUNT, clock.seconds)


def msgspec_encode() -> Sample:
    """Encode batches of (number, payload) as one MessagePack array each."""
    encode = import_module("msgspec.msgpack").Encoder().encode
    clock = Stopwatch()
    with clock:
        for first in range(0, COUNT, BATCH):
            encode([(number, PAYLOAD) for number in range(first, first + BATCH)])
    return Sample(COUNT, clock.seconds)


def msgspec_decode() -> Sample:
    """Decode the same arrays to lists of (number, payload)."""
    msgpack = import_module("msgspec.msgpack")
    data = msgpack.Encoder().encode([(number, PAYLOAD) for number in range(BATCH)])
    decode = msgpack.Decoder(list[tuple[int, bytes]]).decode
    clock = Stopwatch()
    with clock:
        for _ in range(COUNT // BATCH):
            decode(data)
    return Sample(COUNT, clock.seconds)


JOIN = Benchmark(
    "reference-join",
    "reference: a bare loop joins 100-byte frames",
    "messages/s",
    join_frames,
    uses_core=False,
)
SPLIT = Benchmark(
    "reference-split",
    "reference: a bare loop splits 100-byte frames",
    "messages/s",
    split_frames,
    uses_core=False,
)


def benchmarks() -> list[Benchmark]:
    found = [JOIN, SPLIT]
    if find_spec("msgspec") is not None:
        found += [
            Benchmark(
                "reference-msgspec-encode",
                "reference: msgspec encodes MessagePack",
                "messages/s",
                msgspec_encode,
                uses_core=False,
            ),
            Benchmark(
                "reference-msgspec-decode",
                "reference: msgspec decodes MessagePack",
                "messages/s",
                msgspec_decode,
                uses_core=False,
            ),
        ]
    return found
