"""The memory of an idle channel on each side, with 100,000 of them alive."""

import gc
import tracemalloc
from functools import partial

from aqueduct.protocol.connection import Attach, ConnectionCore, Give
from aqueduct.wire.chanid import ENTRYPOINT, Side
from bench.channels import attached
from bench.measure import Benchmark, Sample
from bench.pair import MANY, exchange, greeted, pass_time

CHANNELS = 100_000
PER_MESSAGE = 200


def bytes_per_channel(side: Side, give: Give, used: bool) -> Sample:
    """Return the memory freed with one side, after all channels became idle."""
    pair = list(greeted(MANY))
    gc.collect()
    tracemalloc.start()
    populate(pair[Side.CLIENT], pair[Side.SERVER], give, used)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    pair[side] = ConnectionCore(side)
    gc.collect()
    freed = before - tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return Sample(freed, CHANNELS)


def populate(client: ConnectionCore, server: ConnectionCore, give: Give, used: bool) -> None:
    """Attach channels, pass them to the peer, and send one message or none on each."""
    attach = (Attach(give),) * PER_MESSAGE
    now = 0.0
    for _ in range(0, CHANNELS, PER_MESSAGE):
        made = client.send_message(ENTRYPOINT, b"", now, attach=attach).channels
        exchange(client, server, now)
        assert len(attached(server, now)) == PER_MESSAGE
        sender, receiver = (client, server) if give is Give.RECEIVER else (server, client)
        if used:
            for channel in made:
                sender.send(channel, b"hello", now)
            exchange(client, server, now)
            for channel in made:
                receiver.take(channel, 10, now)
        now = pass_time(client, server, now, 0.1)
        client.poll_events()
        server.poll_events()
    assert client.channel_count == server.channel_count == CHANNELS + 1


def benchmarks() -> list[Benchmark]:
    cases = [
        ("sender", "creator, sender", Side.CLIENT, Give.RECEIVER),
        ("receiver", "peer, receiver", Side.SERVER, Give.RECEIVER),
        ("own-receiver", "creator, receiver", Side.CLIENT, Give.SENDER),
    ]
    return [
        Benchmark(
            f"memory-{name}-{'used' if used else 'unused'}",
            f"idle channel, {what}, {'used once' if used else 'never used'}",
            "bytes",
            partial(bytes_per_channel, side, give, used),
            repeats=False,
        )
        for used in (False, True)
        for name, what, side, give in cases
    ]
