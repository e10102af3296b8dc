"""A client and a server core that talk without a network, in virtual time."""

from aqueduct.protocol.actions import Action, ResetStream, SendDatagram, WriteStream
from aqueduct.protocol.config import Config, Limits
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.protocol.events import PeerHeaders
from aqueduct.wire.chanid import Side

MANY = Config(
    limits=Limits(max_channels=1_000_000, channel_window=2**20, connection_window=2**28),
    max_streams=1_000_000,
    max_forgets=1_000_000,
)
"""Limits for benchmarks with more channels than the default allows."""


def greeted(config: Config | None = None) -> tuple[ConnectionCore, ConnectionCore]:
    """A client and a server after the handshake."""
    client = ConnectionCore(Side.CLIENT, config)
    server = ConnectionCore(Side.SERVER, config)
    exchange(client, server, 0.0)
    assert any(isinstance(event, PeerHeaders) for event in server.poll_events())
    server.accept((), 0.0)
    exchange(client, server, 0.0)
    client.poll_events()
    return client, server


def exchange(client: ConnectionCore, server: ConnectionCore, now: float) -> None:
    """Pass the output of both sides to each other until there is none."""
    while True:
        from_client = client.poll_actions()
        carry(from_client, server, now)
        from_server = server.poll_actions()
        carry(from_server, client, now)
        if not from_client and not from_server:
            return


def carry(actions: list[Action], to: ConnectionCore, now: float) -> None:
    """Perform the actions of one side."""
    for action in actions:
        if type(action) is WriteStream:
            to.handle_stream_data(action.stream, action.data, action.fin, now)
        elif type(action) is SendDatagram:
            to.handle_datagram(action.data, now)
        elif type(action) is ResetStream:
            to.handle_stream_reset(action.stream, action.code, now)
        else:
            raise RuntimeError(f"a core closed the connection: {action}")


def pass_time(client: ConnectionCore, server: ConnectionCore, now: float, seconds: float) -> float:
    """Pass all output, run the timers, and return the new time."""
    until = now + seconds
    exchange(client, server, now)
    while True:
        timers = [timer for core in (client, server) if (timer := core.next_timer()) is not None]
        due = min(timers, default=until)
        if due >= until:
            return until
        now = max(due, now)
        client.handle_timer(now)
        server.handle_timer(now)
        exchange(client, server, now)
