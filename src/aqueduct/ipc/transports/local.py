"""The transport within one process, for tests and for parts that may become processes later."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Hashable, Sequence
from itertools import count

from aqueduct.errors import BindError, ConnectError
from aqueduct.ipc.address import parse
from aqueduct.ipc.core.events import Transmit
from aqueduct.ipc.transports.base import PduListener

_transports: dict[str, LocalTransport] = {}
_numbers = count(1)


class LocalTransport:
    """Passes PDUs to the endpoint that is registered under a name."""

    max_pdu = 1024 * 1024
    window = 64 * 1024 * 1024
    id_trust: float | None = None
    reports_sent = False

    def __init__(self, name: str, listener: PduListener) -> None:
        if _holder(name) is not None:
            raise BindError(
                f"local://{name} is taken by another endpoint of this process",
                address=f"local://{name}",
            )
        self.address = f"local://{name}"
        self._name = name
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        _transports[name] = self

    async def locate(self, address: str) -> Hashable:
        """Return the name in an address."""
        target = parse(address)
        if target.scheme != "local":
            raise ConnectError(f"an endpoint at {self.address} cannot send to {address}")
        return target.host

    def name(self, remote: Hashable) -> str:
        """Return the address of a name."""
        return f"local://{remote}"

    def send(self, transmits: Sequence[Transmit]) -> None:
        """Deliver PDUs in a later turn of the receiver's event loop."""
        for remote, head, data, _ in transmits:
            other = _holder(str(remote))
            if other is not None:
                # The receiver's loop, in another thread, may be closing.
                with contextlib.suppress(RuntimeError):
                    other._loop.call_soon_threadsafe(other._receive, head + bytes(data), self._name)

    def diagnose(self, remote: Hashable) -> str:
        """Return an explanation if the name is not registered, else ""."""
        if _holder(str(remote)) is not None:
            return ""
        return "no endpoint of this process has this name"

    async def close(self) -> None:
        """Release the name."""
        if _transports.get(self._name) is self:
            del _transports[self._name]

    def _receive(self, pdu: bytes, remote: str) -> None:
        if _transports.get(self._name) is self:
            self._listener.handle_pdus([pdu], remote)


def _holder(name: str) -> LocalTransport | None:
    """Return the transport of a name; release the name if its event loop was closed."""
    transport = _transports.get(name)
    if transport is not None and transport._loop.is_closed():
        del _transports[name]
        return None
    return transport


def open_local(address: str, listener: PduListener) -> LocalTransport:
    """Register a name, or a generated one if the address has none."""
    return LocalTransport(parse(address).host or f"endpoint-{next(_numbers)}", listener)
