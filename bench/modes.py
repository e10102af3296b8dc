"""The cost of a message in each mode, from one application to the other."""

from functools import partial

from aqueduct.protocol.connection import Mode
from aqueduct.wire.chanid import ENTRYPOINT
from aqueduct.wire.frames import MessageRun
from aqueduct.wire.primitives import HeaderPairs
from bench.measure import Benchmark, Sample, Stopwatch
from bench.pair import exchange, greeted, pass_time
from bench.reference import PAYLOAD

BATCH = 200
HEADERS: HeaderPairs = ((b"content-type", b"application/json"), (b"trace", b"0123456789abcdef"))


def both_ways(mode: Mode, headers: HeaderPairs, count: int) -> Sample:
    """Send, receive, take, ack and settle, in batches with 30 ms of virtual time between them."""
    client, server = greeted()
    client.set_mode(ENTRYPOINT, mode)
    clock = Stopwatch()
    now = 0.0
    taken = 0
    with clock:
        for _ in range(0, count, BATCH):
            for _ in range(BATCH):
                if headers:
                    client.send_message(ENTRYPOINT, PAYLOAD, now, headers=headers)
                else:
                    client.send(ENTRYPOINT, PAYLOAD, now)
            exchange(client, server, now)
            for entry in server.take(ENTRYPOINT, 1_000_000, now):
                taken += len(entry.payloads) if type(entry) is MessageRun else 1
            now = pass_time(client, server, now, 0.030)
            server.poll_events()
            client.poll_events()
    assert taken == count, f"{taken} of {count} messages were taken"
    return Sample(count, clock.seconds)


def benchmarks() -> list[Benchmark]:
    rate = "messages/s"
    return [
        Benchmark(
            "ordered",
            "100-byte messages, both sides: ORDERED",
            rate,
            partial(both_ways, Mode.ORDERED, (), 100_000),
        ),
        Benchmark(
            "unordered",
            "both sides: UNORDERED, a stream each",
            rate,
            partial(both_ways, Mode.UNORDERED, (), 10_000),
        ),
        Benchmark(
            "unreliable",
            "both sides: UNRELIABLE, in datagrams",
            rate,
            partial(both_ways, Mode.UNRELIABLE, (), 20_000),
        ),
        Benchmark(
            "headers",
            "both sides: ORDERED, two headers each",
            rate,
            partial(both_ways, Mode.ORDERED, HEADERS, 20_000),
        ),
    ]
