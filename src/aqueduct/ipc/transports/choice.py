"""Which transport an address asks for."""

from __future__ import annotations

from aqueduct.ipc.address import parse
from aqueduct.ipc.transports.base import Listener, Transport
from aqueduct.ipc.transports.local import open_local
from aqueduct.ipc.transports.tcp import MAX_PDU, open_tls
from aqueduct.ipc.transports.udp import open_udp
from aqueduct.security import ServerTLS, Trust


async def open_transport(
    address: str, listener: Listener, max_pdu: int, tls: ServerTLS | None, trust: Trust | None
) -> Transport:
    """The transport of an endpoint at an address; ``max_pdu`` is 0 where nobody asks for one."""
    scheme = parse(address).scheme
    if scheme == "udp":
        return await open_udp(address, listener)
    if scheme == "tls":
        return await open_tls(address, listener, max_pdu=max_pdu or MAX_PDU, tls=tls, trust=trust)
    return open_local(address, listener)
