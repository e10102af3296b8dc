"""A connection: where the channels of two processes begin and end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from aqueduct.api.handles import handle_for
from aqueduct.errors import (
    AqueductError,
    CloseCode,
    ConnectError,
    Refused,
    TLSError,
    Unauthenticated,
    VersionMismatch,
)
from aqueduct.runtime.connection_driver import Line
from aqueduct.runtime.headers import Headers
from aqueduct.runtime.send_port import NetworkSendPort
from aqueduct.runtime.waiters import Waiters
from aqueduct.transport.quic.bridge import AT_ONCE, FAILED, Bridge
from aqueduct.transport.quic.endpoint import Driver
from aqueduct.transport.udp import Address
from aqueduct.wire.chanid import ENTRYPOINT

if TYPE_CHECKING:
    from aqueduct.observe.trace import Trace

    TraceLike = Trace | str | os.PathLike[str]

T = TypeVar("T")

LINGER = 3.0
"""How long a close waits for what was sent before it to arrive."""


class Connection(Line, Generic[T]):
    """One connection; `entrypoint` is where it begins."""

    entrypoint: Any
    """A `Sender` at the client and a `Receiver` at the server."""
    _owns_trace = False

    def __init__(
        self, driver: Driver, kind: Any, peer: Address, trace: Trace | None = None
    ) -> None:
        super().__init__(driver, handle_for)
        if trace is not None:
            self._record(trace)
        driver.owner = self
        driver.bridge.before_end = self._before_end
        self.peer = peer
        self._ready = self.driver.loop.create_future()
        self._over = self.driver.loop.create_future()
        self._turns = Waiters()
        self._unready = Waiters()
        """Who waits for that; woken within the turn, so that a server's yes leaves with it."""
        self._failure: AqueductError | None = None
        """Why the connection was never made, if it was used before it was."""
        self._told = False
        """Whether somebody heard of that."""
        self._left = False
        """Whether this side closed it."""
        self._unsent: list[NetworkSendPort] = []
        """Senders with unacknowledged messages, which `close` waits for."""
        self.rescued_bytes = 0
        """What was there for the application when the peer went."""
        port = self.open_port(ENTRYPOINT, kind)
        self.entrypoint = handle_for(port, ())
        _live.add(self)

    @property
    def headers(self) -> Headers:
        """The peer's connection headers."""
        return Headers(self.peer_headers or ())

    @property
    def is_open(self) -> bool:
        """Whether the connection lives."""
        return self.ended is None

    @property
    def is_ready(self) -> bool:
        """Whether both sides know each other's headers; an early connection begins without."""
        return self._ready.done() and self._ready.exception() is None

    @property
    def early_data(self) -> bool:
        """Whether the first messages came, or went, before the handshake was done (0-RTT).

        A client knows when the server has answered.
        """
        return self.driver.bridge.quic.early_data_accepted

    async def wait_ready(self) -> None:
        """Until both sides know each other's headers; raises what `connect` would."""
        while not self._ready.done():
            await self._unready.wait()
        try:
            self._ready.result()
        except AqueductError:
            self._told = True
            raise

    async def wait_closed(self) -> None:
        """Until the connection is over."""
        self._check_process()
        await asyncio.shield(self._over)

    async def close(self, code: CloseCode = CloseCode.NO_ERROR, reason: str = "") -> None:
        """Close the connection behind what was sent; open channels end with `ConnectionLost`.

        This waits up to three seconds for the peer to have what was sent, and does not say whether
        that was long enough: `Sender.flush`, called before, is the promise.
        """
        if self.is_forked:
            return  # the parent's business, and its socket
        self._left = True
        deadline = self.driver.loop.time() + LINGER
        try:
            if code not in AT_ONCE:
                with contextlib.suppress(TimeoutError, AqueductError):
                    async with asyncio.timeout_at(deadline):
                        # A server that hears of the end first does not hand the connection to
                        # anybody.
                        await self.wait_ready()
                        await self._wait_sent()
            self.core.close_connection(code, reason, self.driver.now())
            self.driver.touch()  # once: what else is to happen comes with packets and timers
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    while not self.driver.bridge.is_closed():
                        await self._turns.wait()
        finally:
            if not self.driver.bridge.is_closed():
                self._close_now(code, reason)
            self._stop()
            if self._owns_trace and self.tap is not None:
                self._owns_trace = False
                await self.tap.release()

    def _close_now(self, code: CloseCode, reason: str) -> None:
        """Nobody waits any more: the task was cancelled, or the peer is silent."""
        now = self.driver.now()
        self.core.close_connection(code, reason, now)
        self.driver.endpoint.send(self.driver.bridge.flush(now))

    async def _wait_sent(self) -> None:
        """Until QUIC knows that the peer has all that was sent, or the peer does not want it."""
        self.driver.touch()
        while not self.driver.bridge.is_closed():
            await self._turns.wait()
            if self._is_sent():
                return

    def _is_sent(self) -> bool:
        # Called in each turn: scan all ports again only once all pending ones have caught up.
        unsent = self._unsent
        while unsent and not is_behind(unsent[-1]):
            unsent.pop()
        if not unsent:
            unsent = self._unsent = [
                port
                for port in self.ports.values()
                if isinstance(port, NetworkSendPort) and is_behind(port)
            ]
        if not unsent:
            return True  # whatever else is under way, such as credit for a peer that goes on
        bridge = self.driver.bridge
        native = bridge.quic.core
        if native is None or native.bytes_in_flight:
            return False
        return not bridge.statistics()["send_buffer"]

    async def leave(self) -> None:
        """Close it at the end of a block that went well.

        If the server has not said yes to what was sent early, wait for that; raise its no.
        """
        try:
            if not self._told and not self._left and not self.is_forked:
                await self.wait_ready()
        finally:
            await self.close()

    async def drain(self, grace: float = 10.0) -> None:
        """Wait for all channels to end, so long; then close."""
        self._check_process()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while self.is_open and self.core.channel_count:
                    await self._turns.wait()
        await self.close(CloseCode.GOING_AWAY, "drained")

    def statistics(self) -> dict[str, float]:
        """What UDP, QUIC and the core count; times are seconds."""
        driver = self.driver
        native = driver.bridge.quic.core
        return {
            "rtt": (native.smoothed_rtt or 0.0) if native is not None else 0.0,
            "bytes_sent": driver.bytes_sent,
            "bytes_received": driver.bytes_received,
            "packets_sent": driver.packets_sent,
            "packets_received": driver.packets_received,
            "lost_packets": native.loss_total if native is not None else 0,
            "congestion_window": native.congestion_window if native is not None else 0,
            "bytes_in_flight": native.bytes_in_flight if native is not None else 0,
            "channels": self.core.channel_count,
            "held_bytes": self.core.held_bytes,
            **driver.bridge.statistics(),
        }

    def on_headers(self) -> None:
        """The peer's headers came."""
        if not self._ready.done():
            self._ready.set_result(None)
            self._unready.wake_all()
        for port in list(self.ports.values()):
            if isinstance(port, NetworkSendPort):
                port.pump()  # AQ-EARLY-4: what waited for the server's limits

    def on_end(self) -> None:
        """The connection is over."""
        if not self._ready.done():
            self._fail(self._connect_error())
        if not self._over.done():
            self._over.set_result(None)
        self._turns.wake_all()
        _live.discard(self)

    def expect(self, seconds: float, error: AqueductError) -> None:
        """Give up with this error if the connection is not ready by then."""
        timer = self.driver.loop.call_later(seconds, self.fail, error)
        self._ready.add_done_callback(lambda _: timer.cancel())

    def fail(self, error: AqueductError) -> None:
        """The connection is not to be: end it, and tell whoever waits for it or uses it."""
        if not self._ready.done():
            self._fail(error)
            self.driver.abandon(str(error))
            self._stop()

    def lost(self, channel: int | None = None) -> AqueductError:
        """The error for whoever uses a channel of an ended connection: if never made, why not."""
        failure = self._failure
        if failure is None or self._left or self.is_forked:
            return super().lost(channel)
        self._told = True
        return type(failure)(*failure.args)

    def _discard(self, error: AqueductError) -> None:
        """Break the reference cycles of a connection that ended before the application saw it.

        Otherwise the garbage collector frees a flood of them at once, and all clients wait.
        """
        self.driver.owner = None
        self.entrypoint = None
        error.__traceback__ = None

    def forked(self) -> None:
        """This is a child process: the connection belongs to the parent, and must not hang here."""
        self.is_forked = True
        for port in self.ports.values():
            port.fork()

    def _check_process(self) -> None:
        if self.is_forked:
            raise self.lost()

    def turned(self) -> None:
        """The loop's turn is over; whoever waits for the connection to change looks again."""
        super().turned()
        if self._turns:
            self._turns.wake_all()

    def _record(self, trace: Trace) -> None:
        from aqueduct.observe.trace.tap import Tap

        bridge = self.driver.bridge
        # The client chose it, and the server learned it from the first packet: both know it.
        name = bridge.quic.original_destination_connection_id
        self.tap = bridge.tap = Tap(trace, name, self.core.side)

    def _stop(self) -> None:
        self.driver.endpoint.forget(self.driver)
        self.driver.endpoint.released(self.driver)

    def _before_end(self) -> None:
        self.rescued_bytes = self.core.held_bytes
        self.rescue()

    def _fail(self, error: AqueductError) -> None:
        self._failure = error
        self._ready.set_exception(error)
        self._ready.exception()  # nobody has to ask for it
        self._unready.wake_all()

    def _connect_error(self) -> AqueductError:
        assert self.ended is not None
        return connect_error(self.ended.code, self.ended.reason, self.peer, self.driver.bridge)

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        return f"<Connection with {self.peer[0]}:{self.peer[1]}, {state}>"


def is_behind(port: NetworkSendPort) -> bool:
    """Return whether this sender has unsent or unacknowledged messages."""
    if port.ended is not None:
        return False
    return port.delivered + port.undelivered < port.sent or not port.is_open()


_live: weakref.WeakSet[Connection[Any]] = weakref.WeakSet()


TRUST_ADVICE = (
    "Check the server's certificate, its name, and what trust= says; "
    "for development use tls=dev_tls() and trust=dev_trust()"
)
"""The command line says it in words of its own."""


class HandshakeFailed(ConnectError):
    """QUIC gave up before both sides knew each other, as it may when packets are lost."""


def connect_error(code: int, reason: str, peer: Address, bridge: Bridge) -> AqueductError:
    """Why a connection could not be made, in the words of its class."""
    where = f"{peer[0]}:{peer[1]}"
    if code == CloseCode.INTERNAL and reason.startswith(FAILED):
        return HandshakeFailed(f"cannot connect to {where}: {reason}")
    if bridge.connected:
        kinds: dict[int, type[ConnectError]] = {
            CloseCode.VERSION_MISMATCH: VersionMismatch,
            CloseCode.REFUSED: Refused,
            CloseCode.UNAUTHENTICATED: Unauthenticated,
        }
        kind = kinds.get(code)
        if kind is not None:
            return kind(f"{where} said: {reason or kind.__name__}")
        return ConnectError(f"{where} closed the connection with code {code:#x}: {reason}")
    if 0x100 <= code <= 0x1FF:
        return TLSError(
            f"no trust between us and {where}: {reason or 'TLS failed'}. {TRUST_ADVICE}"
        )
    return HandshakeFailed(f"cannot connect to {where}: {reason or f'code {code:#x}'}")


def open_trace(trace: TraceLike | None) -> Trace | None:
    """The recorder that a caller named, if any."""
    if trace is None:
        return None
    from aqueduct.observe.trace.writer import acquire

    try:
        return acquire(trace)
    except OSError as error:
        raise type(error)(f"cannot record in {trace}: {error.strerror or error}") from None


async def close_trace(trace: Trace | None) -> None:
    """The recorder that `open_trace` gave is not needed any more."""
    if trace is not None:
        from aqueduct.observe.trace.writer import release

        await asyncio.get_running_loop().run_in_executor(None, release, trace)


async def close_all() -> None:
    """Close every connection on this loop: the program ends."""
    loop = asyncio.get_running_loop()
    await asyncio.gather(*(one.close() for one in list(_live) if one.driver.loop is loop))


def _after_fork() -> None:
    for connection in list(_live):
        connection.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
