"""PDUs within one process: for tests, and for parts of a program that may move apart later."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Hashable, Sequence
from itertools import count

from aqueduct.errors import ConnectError
from aqueduct.ipc.address import parse
from aqueduct.ipc.core.events import Transmit
from aqueduct.ipc.transports.base import PduListener

_transports: dict[str, LocalTransport] = {}
_numbers = count(1)


class LocalTransport:
    """Hands PDUs to whoever has the name that they are for."""

    max_pdu = 1024 * 1024
    window = 64 * 1024 * 1024
    id_trust: float | None = None
    reports_sent = False

    def __init__(self, name: str, listener: PduListener) -> None:
        if _holder(name) is not None:
            raise ConnectError(f"local://{name} is taken by another endpoint of this process")
        self.address = f"local://{name}"
        self._name = name
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        _transports[name] = self

    async def locate(self, address: str) -> Hashable:
        """The name in an address."""
        place = parse(address)
        if place.scheme != "local":
            raise ConnectError(f"an endpoint at {self.address} cannot send to {address}")
        return place.host

    def name(self, remote: Hashable) -> str:
        """The address of a name."""
        return f"local://{remote}"

    def send(self, transmits: Sequence[Transmit]) -> None:
        """Hand PDUs over, in a later turn of the other's loop."""
        for remote, head, data, _ in transmits:
            other = _holder(str(remote))
            if other is not None:
                # The other's loop may end just now, in its thread.
                with contextlib.suppress(RuntimeError):
                    other._loop.call_soon_threadsafe(other._receive, head + bytes(data), self._name)

    def diagnose(self, remote: Hashable) -> str:
        """Whether anybody has the name."""
        return "" if _holder(str(remote)) is not None else "nobody in this process has that name"

    async def close(self) -> None:
        """Give the name up."""
        if _transports.get(self._name) is self:
            del _transports[self._name]

    def _receive(self, pdu: bytes, remote: str) -> None:
        if _transports.get(self._name) is self:
            self._listener.handle_pdus([pdu], remote)


def _holder(name: str) -> LocalTransport | None:
    """Who has a name; one that was forgotten has it no longer than its loop is there."""
    transport = _transports.get(name)
    if transport is not None and transport._loop.is_closed():
        del _transports[name]
        return None
    return transport


def open_local(address: str, listener: PduListener) -> LocalTransport:
    """Take a name, or one that is free where none is given."""
    return LocalTransport(parse(address).host or f"endpoint-{next(_numbers)}", listener)
