"""Choose the transport for an address by its scheme.

============================================ =======================================
address                                      transport
============================================ =======================================
``host:port`` or ``aqueduct://host:port``    `aqueduct.transport.quic`
============================================ =======================================

This is the only module outside a transport's folder that names it: another transport is added
here.
"""

from __future__ import annotations

from aqueduct.protocol.config import Config
from aqueduct.security import ServerTLS, Trust
from aqueduct.transport.base import Connector, Listener, MakeCore, OnTransport
from aqueduct.transport.quic.connector import QuicConnector
from aqueduct.transport.quic.endpoint import QuicOptions
from aqueduct.transport.quic.listener import listen as listen_on_quic

__all__ = ["QuicOptions", "connector_for", "listen"]


def connector_for(
    address: str, *, trust: Trust, options: QuicOptions | None, early_data: bool
) -> Connector:
    """Return the connector for an address; raise `ConnectError` if it is malformed."""
    return QuicConnector(address, trust, options or QuicOptions(), early_data)


async def listen(
    address: str,
    *,
    tls: ServerTLS,
    options: QuicOptions | None,
    config: Config,
    make_core: MakeCore,
    on_transport: OnTransport,
    early_data: bool,
) -> Listener:
    """Listen on an address; raise `ConnectError` if it is malformed or in use."""
    return await listen_on_quic(
        address,
        tls,
        options or QuicOptions(),
        config,
        make_core,
        on_transport,
        early_data=early_data,
    )
