"""Receiving: the parser, sets of message numbers, and from bytes to the application."""

from functools import cache, partial
from random import Random

from aqueduct.protocol.connection import ConnectionCore
from aqueduct.wire.chanid import ENTRYPOINT, Side
from aqueduct.wire.frames import MessageRun, RouteTo, message_head
from aqueduct.wire.ranges import RangeSet
from aqueduct.wire.sequence import ParserLimits, SequenceParser
from bench.measure import Benchmark, Sample, Stopwatch
from bench.pair import greeted
from bench.reference import COUNT, PAYLOAD, SPLIT

LARGE_TOTAL = 64 * 2**20
NUMBERS = 50_000
STREAM = 1_000
"""A stream number that the handshake does not use."""


@cache
def chunks(payload: bytes, count: int, chunk_size: int) -> list[bytes]:
    """Return a stream of plain messages on the entrypoint, in chunks as from a transport."""
    parts = [RouteTo(ENTRYPOINT).encode()]
    for number in range(count):
        parts.append(message_head(number, len(payload)))
        parts.append(payload)
    data = b"".join(parts)
    return [data[at : at + chunk_size] for at in range(0, len(data), chunk_size)]


def parse(chunk_size: int) -> Sample:
    pieces = chunks(PAYLOAD, COUNT, chunk_size)
    parser = SequenceParser(ParserLimits(max_message=2**24, max_headers=2**16, max_attachments=256))
    clock = Stopwatch()
    parsed = 0
    with clock:
        for piece in pieces:
            parser.feed(piece)
            while (frame := parser.next()) is not None:
                if type(frame) is MessageRun:
                    parsed += len(frame.payloads)
    assert parsed == COUNT
    return Sample(COUNT, clock.seconds)


def receive(payload: bytes, count: int, chunk_size: int) -> Stopwatch:
    """Run all work of a server for a stream: parse, count credit, queue, take, ack, report."""
    pieces = chunks(payload, count, chunk_size)
    server: ConnectionCore = greeted()[Side.SERVER]
    clock = Stopwatch()
    taken = 0
    with clock:
        for piece in pieces:
            server.handle_stream_data(STREAM, piece, False, 0.0)
            server.poll_events()
            for entry in server.take(ENTRYPOINT, 1_000_000, 0.0):
                if type(entry) is MessageRun:
                    taken += len(entry.payloads)
            server.poll_actions()
    assert taken == count, f"{taken} of {count} messages were taken"
    return clock


def receive_small(chunk_size: int) -> Sample:
    return Sample(COUNT, receive(PAYLOAD, COUNT, chunk_size).seconds)


def take_one_by_one() -> Sample:
    """Take messages one at a time."""
    count = 5_000
    server: ConnectionCore = greeted()[Side.SERVER]
    for piece in chunks(PAYLOAD, count, 16 * 1024):
        server.handle_stream_data(STREAM, piece, False, 0.0)
    clock = Stopwatch()
    with clock:
        for _ in range(count):
            assert server.take(ENTRYPOINT, 1, 0.0)
    return Sample(count, clock.seconds)


def receive_large(size: int) -> Sample:
    clock = receive(bytes(size), LARGE_TOTAL // size, 16 * 1024)
    return Sample(LARGE_TOTAL / 1e6, clock.seconds)


@cache
def shuffled() -> list[int]:
    numbers = list(range(NUMBERS))
    Random(1).shuffle(numbers)
    return numbers


def add_in_random_order() -> Sample:
    numbers = shuffled()
    found = RangeSet()
    clock = Stopwatch()
    with clock:
        for number in numbers:
            found.add_new(number, number + 1)
    assert found == RangeSet([(0, NUMBERS)])
    return Sample(NUMBERS, clock.seconds)


def look_up_in_random_order() -> Sample:
    numbers = shuffled()
    found = RangeSet((number, number + 1) for number in range(0, NUMBERS, 2))
    clock = Stopwatch()
    inside = 0
    with clock:
        for number in numbers:
            if number in found:
                inside += 1
    assert inside == NUMBERS // 2
    return Sample(NUMBERS, clock.seconds)


def benchmarks() -> list[Benchmark]:
    rate, volume, operations = "messages/s", "MB/s", "operations/s"
    return [
        Benchmark(
            "parse-16k",
            "parse 100-byte messages, chunks of 16 KiB",
            rate,
            partial(parse, 16 * 1024),
            SPLIT,
        ),
        Benchmark(
            "receive-16k",
            "receive 100-byte messages, chunks of 16 KiB",
            rate,
            partial(receive_small, 16 * 1024),
            SPLIT,
        ),
        Benchmark(
            "receive-64k",
            "receive 100-byte messages, chunks of 64 KiB",
            rate,
            partial(receive_small, 64 * 1024),
            SPLIT,
        ),
        Benchmark(
            "receive-1200",
            "receive 100-byte messages, chunks of 1,200 bytes",
            rate,
            partial(receive_small, 1200),
            SPLIT,
        ),
        Benchmark(
            "take-one",
            "take 100-byte messages one by one, 5,000 waiting",
            rate,
            take_one_by_one,
        ),
        Benchmark(
            "receive-1k-messages",
            "receive 1-KiB messages, chunks of 16 KiB",
            volume,
            partial(receive_large, 1024),
        ),
        Benchmark(
            "receive-64k-messages",
            "receive 64-KiB messages, chunks of 16 KiB",
            volume,
            partial(receive_large, 64 * 1024),
        ),
        Benchmark("ranges-add", "RangeSet: add, random order", operations, add_in_random_order),
        Benchmark(
            "ranges-contains",
            "RangeSet: look up among 25,000 ranges",
            operations,
            look_up_in_random_order,
        ),
    ]
