"""Choose the transport for an address by its scheme.

============================================ =======================================
address                                      transport
============================================ =======================================
``host:port`` or ``aqueduct://host:port``    `aqueduct.transport.quic`
``aqueduct+tcp://host:port``                 `aqueduct.transport.tcp`
``memory://name``                            `aqueduct.transport.memory`
============================================ =======================================

This is the only module outside a transport's folder that opens connections with it: another
transport is added here.
"""

from __future__ import annotations

from aqueduct.errors import BindError, ConnectError, TLSError
from aqueduct.protocol.config import Config
from aqueduct.security import ServerTLS, Trust
from aqueduct.transport import memory
from aqueduct.transport.address import QUIC_SCHEME, TCP_SCHEME
from aqueduct.transport.base import Connector, Listener, MakeCore, OnTransport
from aqueduct.transport.quic.connector import QuicConnector
from aqueduct.transport.quic.listener import listen as listen_on_quic
from aqueduct.transport.settings import QuicSettings
from aqueduct.transport.tcp.connector import TcpConnector
from aqueduct.transport.tcp.listener import listen as listen_on_tcp

__all__ = ["QuicSettings", "connector_for", "listen"]


def connector_for(
    address: str, *, trust: Trust, options: QuicSettings | None, early_data: bool
) -> Connector:
    """Return the connector for an address; raise `ConnectError` if it is malformed."""
    if address.startswith(memory.SCHEME):
        return memory.MemoryConnector(address)
    if address.startswith(TCP_SCHEME):
        return TcpConnector(address, trust, options or QuicSettings())
    return QuicConnector(address, trust, options or QuicSettings(), early_data)


async def listen(
    address: str,
    *,
    tls: ServerTLS,
    options: QuicSettings | None,
    config: Config,
    make_core: MakeCore,
    on_transport: OnTransport,
    early_data: bool,
) -> Listener:
    """Listen on an address; raise `BindError` if it is malformed or cannot be bound."""
    chosen = options or QuicSettings()
    if address.startswith(memory.SCHEME):
        return memory.listen(address, chosen.handshake_timeout, make_core, on_transport)
    try:
        if address.startswith(TCP_SCHEME):
            return await listen_on_tcp(address, tls, chosen, config, make_core, on_transport)
        listener = await listen_on_quic(
            address,
            tls,
            chosen,
            config,
            make_core,
            on_transport,
            early_data=early_data,
        )
    except ConnectError as error:  # the address is malformed, or the host is unknown
        if isinstance(error, TLSError):
            raise
        raise BindError(f"cannot listen on {address}: {error}", address=address) from None
    if address.startswith(QUIC_SCHEME):
        listener.address = QUIC_SCHEME + listener.address
    return listener
