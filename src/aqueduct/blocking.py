"""Channels and connections for threads: the API of `aqueduct` with plain calls instead of awaits.

>>> from aqueduct import blocking
>>> tx, rx = blocking.channel(int)
"""

from aqueduct.api.blocking.connection import (
    ClientConnection,
    Connection,
    Server,
    ServerConnection,
    connect,
    serve,
)
from aqueduct.api.blocking.handles import Channel, Receipt, Receiver, Sender, channel, oneshot

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
