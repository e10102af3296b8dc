"""Channels for threads: what `aqueduct` has, with plain calls instead of awaits.

>>> from aqueduct import blocking
>>> tx, rx = blocking.channel(int)
"""

from aqueduct.api.blocking import (
    Channel,
    ClientConnection,
    Connection,
    Receipt,
    Receiver,
    Sender,
    Server,
    ServerConnection,
    channel,
    connect,
    oneshot,
    serve,
)

__all__ = [
    "Channel",
    "ClientConnection",
    "Connection",
    "Receipt",
    "Receiver",
    "Sender",
    "Server",
    "ServerConnection",
    "channel",
    "connect",
    "oneshot",
    "serve",
]
