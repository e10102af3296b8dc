"""A chain of channels, each carried by the previous one, that is lost at its root."""

from functools import partial

from aqueduct.protocol.connection import Attach, ConnectionCore, Give
from aqueduct.protocol.events import End, SenderEnded
from aqueduct.wire.chanid import ENTRYPOINT
from bench.measure import Benchmark, Sample, Stopwatch
from bench.pair import MANY, carry, greeted


def lose_chain(length: int) -> Sample:
    """Close the entrypoint at the peer; the creator learns that each channel is lost."""
    client, server = greeted(MANY)
    hang_chain(client, length)
    client.poll_actions()  # none of it arrives
    server.close(ENTRYPOINT, 0.0)
    actions = server.poll_actions()
    clock = Stopwatch()
    with clock:
        carry(actions, client, 0.0)
        events = client.poll_events()
        client.poll_actions()
    lost = sum(type(event) is SenderEnded and event.how is End.LOST for event in events)
    assert lost == length, f"{lost} of {length} channels were lost"
    return Sample(clock.seconds * 1e6, length)


def hang_chain(client: ConnectionCore, length: int) -> None:
    channel = ENTRYPOINT
    attach = (Attach(Give.RECEIVER),)
    for _ in range(length):
        channel = client.send_message(channel, b"", 0.0, attach=attach).channels[0]


def benchmarks() -> list[Benchmark]:
    return [
        Benchmark(
            f"lost-{length // 1000}k",
            f"chain of {length:,} channels lost, each",
            "µs",
            partial(lose_chain, length),
        )
        for length in (25_000, 50_000, 100_000)
    ]
