"""The lifetime of channels: from the message that carries one to its end or its loss."""

from functools import partial

from aqueduct.protocol.connection import Attach, ConnectionCore, Give
from aqueduct.protocol.events import End, SenderEnded
from aqueduct.wire.chanid import ENTRYPOINT
from aqueduct.wire.frames import MessageFrame
from bench.measure import Benchmark, Sample, Stopwatch
from bench.pair import MANY, carry, exchange, greeted, pass_time

BATCH = 50
COUNT = 5_000


def attached(server: ConnectionCore, now: float) -> list[int]:
    """Take the messages of the entrypoint; return the channels in them."""
    return [
        attachment.channel
        for entry in server.take(ENTRYPOINT, 1_000_000, now)
        if type(entry) is MessageFrame
        for attachment in entry.attachments
    ]


def lives() -> Sample:
    """Attach a channel, send one message on it and finish; the peer drains it."""
    client, server = greeted()
    attach = (Attach(Give.RECEIVER),)
    clock = Stopwatch()
    now = 0.0
    with clock:
        for _ in range(0, COUNT, BATCH):
            for _ in range(BATCH):
                sent = client.send_message(ENTRYPOINT, b"here", now, attach=attach)
                client.send(sent.channels[0], b"one message", now)
                client.finish(sent.channels[0], now)
            exchange(client, server, now)
            for channel in attached(server, now):
                server.take(channel, 10, now)
            now = pass_time(client, server, now, 0.030)
            server.poll_events()
            client.poll_events()
    assert client.channel_count == server.channel_count == 1, "a channel lives on"
    return Sample(COUNT, clock.seconds)


def calls() -> Sample:
    """Send a request with a oneshot channel, reply on it, and take the reply."""
    client, server = greeted()
    attach = (Attach(Give.SENDER, oneshot=True),)
    clock = Stopwatch()
    now = 0.0
    answers = 0
    with clock:
        for _ in range(0, COUNT, BATCH):
            asked = [
                client.send_message(ENTRYPOINT, b"question", now, attach=attach).channels[0]
                for _ in range(BATCH)
            ]
            exchange(client, server, now)
            for channel in attached(server, now):
                server.send(channel, b"answer", now)
            exchange(client, server, now)
            for channel in asked:
                answers += len(client.take(channel, 10, now))
            now = pass_time(client, server, now, 0.030)
            server.poll_events()
            client.poll_events()
    assert answers == COUNT
    assert client.channel_count == server.channel_count == 1, "a channel lives on"
    return Sample(COUNT, clock.seconds)


def lose_chain(length: int) -> Sample:
    """Lose a chain of channels, each carried by the previous one, at its root."""
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
        Benchmark("channels", "channel created, used once, ended, both sides", "channels/s", lives),
        Benchmark("calls", "question with a oneshot for its answer", "calls/s", calls),
        *(
            Benchmark(
                f"lost-{length // 1000}k",
                f"chain of {length:,} channels lost, each",
                "µs",
                partial(lose_chain, length),
            )
            for length in (25_000, 50_000, 100_000)
        ),
    ]
