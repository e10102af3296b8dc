"""Endpoints for threads: what `aqueduct.ipc` has, with plain calls instead of awaits.

>>> from aqueduct.ipc import blocking
>>> endpoint = blocking.Endpoint("udp://127.0.0.1:0")
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar, overload
from weakref import WeakSet

from aqueduct.background import background, before_stop
from aqueduct.errors import EndpointClosed
from aqueduct.ipc import endpoint as endpoints
from aqueduct.ipc.config import Config
from aqueduct.ipc.endpoint import Message
from aqueduct.ipc.events import Statistics
from aqueduct.quic.tls import ServerTLS, Trust

__all__ = ["Endpoint"]

T = TypeVar("T")

_open: WeakSet[endpoints.Endpoint[Any]] = WeakSet()


class Endpoint(Generic[T]):
    """Sends messages to other endpoints and receives theirs; any thread may use it.

    ::

        with ipc.blocking.Endpoint("udp://127.0.0.1:0") as endpoint:
            endpoint.send("udp://127.0.0.1:5000", b"hello")
            for message in endpoint:
                endpoint.send(message.source, b"thank you")

    See `aqueduct.ipc.Endpoint`, which has the same arguments. ``on_message`` is a plain function
    here, and runs in a thread of its own for each message, several at once.
    """

    @overload
    def __init__(
        self: Endpoint[bytes],
        address: str,
        /,
        *,
        on_message: Callable[[Message[bytes]], object] | None = None,
        tls: ServerTLS | None = None,
        trust: Trust | None = None,
        config: Config | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        address: str,
        type: type[T],
        /,
        *,
        on_message: Callable[[Message[T]], object] | None = None,
        tls: ServerTLS | None = None,
        trust: Trust | None = None,
        config: Config | None = None,
    ) -> None: ...
    def __init__(
        self,
        address: str,
        type: Any = bytes,
        /,
        *,
        on_message: Callable[[Message[Any]], object] | None = None,
        tls: ServerTLS | None = None,
        trust: Trust | None = None,
        config: Config | None = None,
    ) -> None:
        async def in_thread(message: Message[Any]) -> None:
            assert on_message is not None
            await asyncio.to_thread(on_message, message)

        def make() -> endpoints.Endpoint[Any]:
            handler = in_thread if on_message is not None else None
            return endpoints.Endpoint(
                address, type, on_message=handler, tls=tls, trust=trust, config=config
            )

        self._background = background()
        self._endpoint = self._background.do(make)

    def open(self) -> None:
        """Be there; ``with`` does it."""
        self._background.run(self._endpoint.open())
        _open.add(self._endpoint)

    def close(self) -> None:
        """End it: what is being sent fails, what was not taken is refused."""
        self._background.run(self._endpoint.close())

    def __enter__(self) -> Endpoint[T]:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Where others send to."""
        return self._endpoint.address

    def statistics(self) -> Statistics:
        """Counts since it was opened."""
        return self._background.do(self._endpoint.statistics)

    def send(self, to: str, message: T, *, timeout: float | None = None) -> None:
        """Send a message, and return when its receiver has taken it.

        Raises what `aqueduct.ipc.Endpoint.send` raises.
        """
        self._background.run(self._endpoint.send(to, message, timeout=timeout))

    def receive(self, timeout: float | None = None) -> Message[T]:
        """The next message; `EndpointClosed` once closed, `TimeoutError` if none comes in time."""
        return self._background.run(self._endpoint.receive(), timeout)

    def __iter__(self) -> Iterator[Message[T]]:
        while True:
            try:
                message = self.receive()
            except EndpointClosed:
                return
            yield message


async def _close_all() -> None:
    """Close every endpoint that was left open: the program ends."""
    await asyncio.gather(*(endpoint.close() for endpoint in list(_open)))


before_stop(_close_all)
