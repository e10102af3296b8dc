"""Access to the QUIC transports of connections and servers."""

from __future__ import annotations

from typing import Any

from aqueduct import Connection, Server
from aqueduct.transport.quic.listener import QuicListener
from aqueduct.transport.quic.transport import QuicTransport
from aqueduct.transport.schemes import DualListener


def transport_of(connection: Connection[Any]) -> QuicTransport:
    transport = connection._driver.transport
    assert isinstance(transport, QuicTransport)
    return transport


def listener_of(server: Server[Any]) -> QuicListener:
    listener = server._listener
    if isinstance(listener, DualListener):
        listener = listener.quic
    assert isinstance(listener, QuicListener)
    return listener
