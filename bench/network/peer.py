"""What each library has to do, and what both its processes are told."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from bench.network.measures import Manner

HOST = "127.0.0.1"

Json = dict[str, Any]
Closing = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Setting:
    """What both processes of a pair know from the start: files, and the options of this peer."""

    authority: str
    certificate: str
    key: str
    options: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Counted:
    """What a receiver counted, one object at a time, and when it had the last."""

    count: int
    total: int
    at: int
    """Nanoseconds of the clock that all processes of a machine share."""


class Server:
    """The side that receives and answers. A library with a blocking API simply blocks."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    async def start(self) -> Json:
        """Listen; returns what the client needs to know."""
        raise NotImplementedError

    async def receive(self, manner: Manner, size: int, count: int) -> Counted:
        raise NotImplementedError

    @property
    def taken(self) -> tuple[int, int]:
        """How many messages, and bytes in them, were received and acknowledged so far."""
        raise NotImplementedError

    async def stop(self) -> None:
        """End cleanly."""


class Client:
    """The side that sends and asks."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    async def open(self, info: Json) -> None:
        """Connect to what the server's `start` returned."""
        raise NotImplementedError

    async def send(self, manner: Manner, payload: bytes, count: int) -> None:
        raise NotImplementedError

    async def trip(self, payload: bytes) -> bytes:
        """Send it and wait until it comes back, on the open connection."""
        raise NotImplementedError

    async def deliver(self, payload: bytes) -> None:
        """Send it and wait until its receiver has acknowledged it; many at a time."""
        raise NotImplementedError

    async def deliver_alone(self, payload: bytes) -> None:
        """The same while there is no other, where that can be done in a shorter way."""
        await self.deliver(payload)

    async def call(self, payload: bytes) -> bytes:
        """The same as a call of its own, where that is something else."""
        raise NotImplementedError

    async def fresh(self, payload: bytes) -> tuple[bytes, Closing]:
        """The same on a new connection; returns the answer and how to close, which is not timed."""
        raise NotImplementedError

    async def hold(self, count: int) -> None:
        """Keep so many channels alive, each used once."""
        raise NotImplementedError

    async def close(self) -> None:
        """End cleanly."""
