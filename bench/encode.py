"""Encoding: frames alone, and messages through a connection."""

from aqueduct.wire.chanid import ENTRYPOINT
from aqueduct.wire.frames import message_head
from bench.measure import Benchmark, Sample, Stopwatch
from bench.pair import carry, greeted, pass_time
from bench.reference import BATCH, COUNT, JOIN, PAYLOAD

LARGE_TOTAL = 64 * 2**20


def encode_frames() -> Sample:
    """Join heads and payloads in batches, as for a stream."""
    clock = Stopwatch()
    payload = PAYLOAD
    with clock:
        for first in range(0, COUNT, BATCH):
            chunks: list[bytes] = []
            for number in range(first, first + BATCH):
                chunks.append(message_head(number, len(payload)))
                chunks.append(payload)
            b"".join(chunks)
    return Sample(COUNT, clock.seconds)


def send_in_batches(payload: bytes, count: int, batch: int) -> Stopwatch:
    """Time send and poll; then let the receiver take all and return credit, untimed."""
    client, server = greeted()
    clock = Stopwatch()
    now = 0.0
    for _ in range(0, count, batch):
        with clock:
            for _ in range(batch):
                client.send(ENTRYPOINT, payload, now)
            actions = client.poll_actions()
        carry(actions, server, now)
        server.take(ENTRYPOINT, batch, now)
        now = pass_time(client, server, now, 0.030)
        server.poll_events()
        client.poll_events()
    return clock


def send_small() -> Sample:
    return Sample(COUNT, send_in_batches(PAYLOAD, COUNT, BATCH).seconds)


def send_1_kib() -> Sample:
    count = LARGE_TOTAL // 1024
    return Sample(LARGE_TOTAL / 1e6, send_in_batches(bytes(1024), count, 256).seconds)


def send_64_kib() -> Sample:
    count = LARGE_TOTAL // 65536
    return Sample(LARGE_TOTAL / 1e6, send_in_batches(bytes(65536), count, 8).seconds)


def benchmarks() -> list[Benchmark]:
    rate, volume = "messages/s", "MB/s"
    return [
        Benchmark("encode-frames", "encode 100-byte MESSAGE frames", rate, encode_frames, JOIN),
        Benchmark("send", "send 100-byte messages on a channel", rate, send_small, JOIN),
        Benchmark("send-1k", "send 1-KiB messages", volume, send_1_kib),
        Benchmark("send-64k", "send 64-KiB messages", volume, send_64_kib),
    ]
