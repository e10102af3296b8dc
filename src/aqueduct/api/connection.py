"""The connection that users hold."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Awaitable, Callable, Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, Self, TypeVar

from aqueduct.api.handles import handle_for
from aqueduct.codec import CodecClass
from aqueduct.errors import (
    AqueductError,
    CloseCode,
    ConnectError,
    GoingAway,
    HandshakeFailed,
    Refused,
    TLSError,
    Unauthenticated,
    VersionMismatch,
)
from aqueduct.observe.base import ObservedConnection, Observer, ObserverFactory
from aqueduct.runtime.closing import Closing
from aqueduct.runtime.connection_driver import ConnectionDriver
from aqueduct.runtime.headers import Headers
from aqueduct.security import CERTIFICATE_HINT, CERTIFICATE_NEEDED, TRUST_HINT
from aqueduct.settings import check_type
from aqueduct.transport.address import Address, format_address
from aqueduct.transport.base import Transport
from aqueduct.transport.settings import QuicSettings

if TYPE_CHECKING:
    from aqueduct.observe.trace import Trace

    TraceLike = Trace | str | os.PathLike[str]

T = TypeVar("T")


class Connection(Generic[T]):
    """One connection; `entrypoint` is the channel that it begins with.

    `connect` and `Server` make connections. Use one in ``async with``, or call `close`. A client
    that reaches the end of its ``async with`` finishes its entrypoint, so that the server's
    ``async for`` ends. If the block raises, the server gets `ConnectionLost` behind what was sent.
    """

    entrypoint: Any
    """A `Sender` at the client and a `Receiver` at the server."""

    def __init__(
        self,
        transport: Transport,
        kind: Any,
        observers: Sequence[ObserverFactory] = (),
        codec: CodecClass | None = None,
    ) -> None:
        self._driver = ConnectionDriver(
            transport, kind, handle_for, connect_error, observers, codec
        )
        self.entrypoint = self._driver.entrypoint

    @property
    def headers(self) -> Headers:
        """The peer's connection headers."""
        return Headers(self._driver.peer_headers or ())

    @property
    def peer(self) -> Address:
        """The peer's address when the connection began."""
        return self._driver.transport.peer

    @property
    def is_open(self) -> bool:
        """Whether the connection has not ended."""
        return self._driver.ended is None

    @property
    def is_ready(self) -> bool:
        """Whether both sides have each other's headers; with early data that may come later."""
        return self._driver.is_ready

    @property
    def early_data(self) -> bool:
        """Whether the first messages came, or went, before the handshake was complete (0-RTT).

        A client knows when the server has answered.
        """
        return self._driver.transport.early_data_accepted

    async def wait_ready(self) -> None:
        """Wait until both sides have each other's headers; raise what `connect` would."""
        await self._driver.wait_ready()

    async def wait_closed(self) -> None:
        """Wait until the connection has ended."""
        self._driver.check_process()
        await asyncio.shield(self._driver.over)

    async def close(self, code: CloseCode = CloseCode.NO_ERROR, reason: str = "") -> None:
        """Close the connection behind what was sent; open channels end with `ConnectionLost`.

        To end the server's ``async for``, finish the entrypoint before. This waits up to three
        seconds for the peer to have what was sent, and does not say whether that was long enough:
        call `Sender.flush` before, which raises if it was not delivered.
        """
        await Closing(self._driver).close(code, reason)

    async def drain(self, grace: float = 10.0) -> None:
        """End the entrypoint, wait up to ``grace`` seconds for all channels to end, then close.

        A client finishes its entrypoint. A server stops receiving on it: the client gets
        `ReceiverClosed`, and the server's ``async for`` ends after what has arrived. Channels that
        are open go on until they end or the time is over. An idle connection closes at once.
        """
        await Closing(self._driver).drain(grace)

    def statistics(self) -> dict[str, float]:
        """Return counters of the transport and of the protocol; times are seconds."""
        return self._driver.statistics()

    def _discard(self, error: AqueductError) -> None:
        """Break the reference cycles of a connection that ended before the application saw it.

        Otherwise the garbage collector frees a flood of them at once, and all clients wait.
        """
        self.entrypoint = None
        self._driver.discard(error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await Closing(self._driver).leave(failed=error is not None)

    def __repr__(self) -> str:
        state = "closed" if not self.is_open else "open" if self.is_ready else "connecting"
        return f"<{type(self).__name__} peer={format_address(self.peer)} {state}>"


class Closable(Protocol):
    """What `Opening` opens: closed at the end of an ``async with`` block."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""


C = TypeVar("C", bound=Closable)


class Opening(Generic[C]):
    """What `connect` and `serve` return: opens when it is awaited or entered with ``async with``.

    Any other use raises, or warns if there was none, and says what to write.
    """

    _call = ""

    def __init__(self, open_: Callable[[], Awaitable[C]]) -> None:
        self._open = open_
        self._opened: C | None = None
        self._was_used = False

    def __await__(self) -> Generator[Any, None, C]:
        self._was_used = True
        return self._open().__await__()

    async def __aenter__(self) -> C:
        self._was_used = True
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._opened is not None:
            await self._opened.__aexit__(kind, error, trace)

    if not TYPE_CHECKING:  # type checkers report these uses by themselves

        def __enter__(self) -> NoReturn:
            self._was_used = True
            raise TypeError(self._advice())

        def __exit__(self, *_: object) -> None:
            """Exist, so that ``with`` calls `__enter__`, which raises."""

        def __getattr__(self, name: str) -> NoReturn:
            self._was_used = True
            raise AttributeError(f"{name!r} is missing: {self._advice()}")

    def __del__(self) -> None:
        if not self.__dict__.get("_was_used", True):
            text = f"never opened: {self._advice()}"
            warnings.warn(text, RuntimeWarning, stacklevel=1, source=self)

    def _advice(self) -> str:
        return (
            f"{self._call}(...) opens nothing by itself; write "
            f"`async with {self._call}(...) as it:` or `it = await {self._call}(...)`"
        )


def connect_error(code: int, reason: str, transport: Transport) -> AqueductError:
    """Return the error for a connection that ended before it was ready."""
    where = format_address(transport.peer)
    if code == CloseCode.TRANSPORT:  # AQ-CODE-4
        return HandshakeFailed(f"cannot connect to {where}: {reason}")
    if transport.is_established:
        kinds: dict[int, type[ConnectError]] = {
            CloseCode.VERSION_MISMATCH: VersionMismatch,
            CloseCode.REFUSED: Refused,
            CloseCode.UNAUTHENTICATED: Unauthenticated,
            CloseCode.GOING_AWAY: GoingAway,  # AQ-DRAIN-2
        }
        kind = kinds.get(code)
        if kind is not None:
            hint = "connect to another server, or try again later" if kind is GoingAway else ""
            hint = CERTIFICATE_HINT if reason == CERTIFICATE_NEEDED else hint
            return kind(f"{where} said: {reason or kind.__name__}", hint=hint)
        return ConnectError(f"{where} closed the connection with code {code:#x}: {reason}")
    if transport.is_trust_failure(code):
        return TLSError(
            f"no trust between us and {where}: {reason or 'TLS failed'}", hint=TRUST_HINT
        )
    if transport.is_foreign(code):
        return ConnectError(
            f"{where} is not a server of Aqueduct: it speaks another protocol ({reason})",
            hint="check host and port",
        )
    return HandshakeFailed(f"cannot connect to {where}: {reason or f'code {code:#x}'}")


def open_trace(trace: TraceLike | None) -> Trace | None:
    """Return the recorder for a directory or a `Trace`, if any was given."""
    if trace is None:
        return None
    from aqueduct.observe.trace.writer import acquire

    try:
        return acquire(trace)
    except OSError as error:
        raise type(error)(f"cannot record in {trace}: {error.strerror or error}") from None


async def close_trace(trace: Trace | None) -> None:
    """Release a recorder that `open_trace` returned."""
    if trace is not None:
        from aqueduct.observe.trace.writer import release

        await asyncio.get_running_loop().run_in_executor(None, release, trace)


def with_trace(
    observers: Sequence[ObserverFactory], trace: Trace | None
) -> tuple[ObserverFactory, ...]:
    """Return the factories of observers, and one that records in the trace, if any."""
    if trace is None:
        return tuple(observers)
    from aqueduct.observe.trace.observer import TraceObserver

    def record(connection: ObservedConnection) -> Observer:
        return TraceObserver(trace, connection)

    return (*observers, record)


def check_arguments(address: object, options: object) -> None:
    """Raise `TypeError` if an argument of `connect` or `serve` has the wrong type."""
    if not isinstance(address, str):
        raise TypeError(f"an address is a string such as 'host:port', not {address!r}")
    check_type("options", options, QuicSettings, "aqueduct.QuicSettings(…)")
