"""Test endpoints over TLS, each with a real core that the test drives, and foreign peers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from typing import Any

from aqueduct.ipc.core.events import Arrived, BatchResult, Ended
from aqueduct.ipc.core.exchange import Exchange
from aqueduct.ipc.core.outgoing import OutgoingTransfer
from aqueduct.ipc.core.settings import IpcSettings
from aqueduct.ipc.transports.tcp import TcpLimits, TlsTransport, open_tls
from aqueduct.security import ServerTLS, Trust, make_authority, make_certificate

AUTHORITY = make_authority("tests")
PAIR = make_certificate(["localhost", "127.0.0.1"], AUTHORITY)
TRUST = Trust(authorities=AUTHORITY.certificate)
HERE = "tls://127.0.0.1:0"


class Peer:
    """Takes every message at once, and records the calls of the transport."""

    transport: TlsTransport
    exchange: Exchange

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.arrived: asyncio.Queue[Arrived] = asyncio.Queue()
        self.transient_errors: list[tuple[Hashable, str]] = []
        self.errors: list[tuple[Hashable, Exception]] = []
        self.calls: list[int] = []
        """The number of PDUs in each batch."""
        self.remotes: list[Hashable] = []
        """The remotes of received messages, in order."""
        self.ends: dict[bytes, asyncio.Future[Ended]] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.timer_at = 0.0
        self.closed = False

    async def open(
        self,
        address: str = "tls://",
        *,
        tls: ServerTLS | None = None,
        trust: Trust | None = None,
        limits: TcpLimits | None = None,
        max_pdu: int = 256 * 1024,
        **config: Any,
    ) -> Peer:
        transport = await open_tls(
            address, self, max_pdu=max_pdu, tls=tls, trust=trust, limits=limits
        )
        assert transport.id_trust is not None
        self.transport = transport
        settings = {"max_pdu": max_pdu, "window": transport.window, "id_trust": transport.id_trust}
        self.exchange = Exchange(
            IpcSettings(**(settings | config)), random.Random(), self.loop.time(), reports_sent=True
        )
        return self

    @property
    def accepted(self) -> int:
        """Return the number of accepted connections that are open."""
        return len(self.transport._accepted)

    @property
    def opened(self) -> int:
        """Return the number of connections that this side has opened, or is opening."""
        return sum(1 for route in self.transport._routes.values() if route.connection or route.task)

    @property
    def address(self) -> str:
        return self.transport.address

    async def send(self, to: str | Hashable, payload: bytes) -> Ended:
        remote = await self.transport.locate(to) if isinstance(to, str) else to
        return await self.start(remote, payload)

    def start(self, remote: Hashable, payload: bytes) -> asyncio.Future[Ended]:
        message_id = self.exchange.send(remote, payload, self.loop.time())
        ended = self.ends[message_id] = self.loop.create_future()
        self.pump()
        return ended

    async def close(self) -> None:
        self.closed = True
        if self.timer is not None:
            self.timer.cancel()
        await self.transport.close()

    def pump(self) -> None:
        exchange = self.exchange
        while True:
            for event in exchange.poll_events():
                if isinstance(event, Ended):
                    ended = self.ends.pop(event.message_id)
                    if not ended.done():
                        ended.set_result(event)
                elif isinstance(event, Arrived) and exchange.take(event.message_id):
                    self.take(event)
            transmits = exchange.poll_transmits()
            if not transmits:
                break
            self.transport.send(transmits)
        self.arm()

    def arm(self) -> None:
        until = self.exchange.next_timer()
        if not self.closed and (self.timer is None or until < self.timer_at):
            if self.timer is not None:
                self.timer.cancel()
            self.timer_at = until
            # uvloop rounds down to milliseconds; too early a call would only be repeated.
            self.timer = self.loop.call_at(until + 0.001, self.wake)

    def take(self, message: Arrived) -> None:
        self.arrived.put_nowait(message)

    def wake(self) -> None:
        self.timer = None
        self.exchange.handle_timer(self.loop.time())
        self.pump()

    # Listener

    def handle_pdus(self, pdus: Sequence[bytes], remote: Hashable) -> BatchResult:
        self.calls.append(len(pdus))
        if remote not in self.remotes:
            self.remotes.append(remote)
        result = self.exchange.handle_pdus(pdus, remote, self.loop.time())
        self.pump()
        return result

    def handle_sent(self, sendings: Sequence[OutgoingTransfer]) -> None:
        now = self.loop.time()
        for sending in sendings:
            self.exchange.handle_sent(sending, now)
        self.arm()

    def handle_transient_error(self, remote: Hashable, why: str) -> None:
        self.transient_errors.append((remote, why))
        self.exchange.handle_transient_error(remote, why)

    def handle_unreachable(self, remote: Hashable, error: Exception) -> None:
        self.errors.append((remote, error))
        self.exchange.handle_unreachable(remote, str(error), self.loop.time())
        self.pump()


Start = Callable[..., Awaitable[Peer]]


@contextlib.asynccontextmanager
async def peers() -> AsyncIterator[Start]:
    """Opens endpoints, and checks that they release everything."""
    opened: list[Peer] = []

    async def begin(address: str = "tls://", **options: Any) -> Peer:
        options.setdefault("trust", TRUST)
        if address != "tls://":
            options.setdefault("tls", PAIR)
        peer = await Peer().open(address, **options)
        opened.append(peer)
        return peer

    yield begin
    for peer in opened:
        await peer.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    gc.collect()


async def until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for belongs to the transport
            await asyncio.sleep(0.005)


async def dial(address: str, context: ssl.SSLContext | None = None) -> socket.socket:
    """A blocking socket with which a test talks to an endpoint directly."""
    host, _, port = address.removeprefix("tls://").rpartition(":")

    def connect() -> socket.socket:
        plain = socket.create_connection((host, int(port)), 5)
        return plain if context is None else context.wrap_socket(plain, server_hostname=host)

    return await asyncio.to_thread(connect)


def by_hand() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=AUTHORITY.certificate.decode())
    return context
