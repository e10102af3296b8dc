"""Channels for threads: what `aqueduct` has, with plain calls instead of awaits.

>>> from aqueduct import blocking
>>> tx, rx = blocking.channel(int)
"""

from aqueduct.channel.blocking import (
    Channel,
    Connection,
    Receipt,
    Receiver,
    Sender,
    Server,
    channel,
    connect,
    oneshot,
    serve,
)

__all__ = [
    "Channel",
    "Connection",
    "Receipt",
    "Receiver",
    "Sender",
    "Server",
    "channel",
    "connect",
    "oneshot",
    "serve",
]
