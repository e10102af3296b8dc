"""The interface of a measured library, and the arguments of its processes."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from bench.network.measures import Manner

HOST = "127.0.0.1"

Json = dict[str, Any]
Closing = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Setting:
    """The arguments of both processes of a pair: files, and the options of the peer."""

    authority: str
    certificate: str
    key: str
    options: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Counted:
    """The messages that a receiver counted one by one, and when the last one arrived."""

    count: int
    total: int
    at: int
    """Nanoseconds of a clock that all processes share."""


class Server:
    """The side that receives and replies. A library with a blocking API blocks."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    async def start(self) -> Json:
        """Listen; return what the client needs to connect."""
        raise NotImplementedError

    async def receive(self, manner: Manner, size: int, count: int) -> Counted:
        raise NotImplementedError

    @property
    def taken(self) -> tuple[int, int]:
        """Return the messages received and acknowledged so far, and their bytes."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Close cleanly."""


class Client:
    """The side that sends messages and requests."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    async def open(self, info: Json) -> None:
        """Connect to what the server's `start` returned."""
        raise NotImplementedError

    async def send(self, manner: Manner, payload: bytes, count: int) -> None:
        raise NotImplementedError

    async def trip(self, payload: bytes) -> bytes:
        """Send a payload and wait for the reply, on the open connection."""
        raise NotImplementedError

    async def deliver(self, payload: bytes) -> None:
        """Send a payload and wait for its ack; many run concurrently."""
        raise NotImplementedError

    async def deliver_alone(self, payload: bytes) -> None:
        """Send a payload alone and wait for its ack, if there is a faster way for that."""
        await self.deliver(payload)

    async def call(self, payload: bytes) -> bytes:
        """Make a call with its own reply channel, where the library has that."""
        raise NotImplementedError

    async def fresh(self, payload: bytes) -> tuple[bytes, Closing]:
        """Request on a new connection; return the reply and how to close, which is not timed."""
        raise NotImplementedError

    async def hold(self, count: int) -> None:
        """Keep this many channels alive, each used once."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close cleanly."""
