"""The interface of a measured library, and the arguments of its processes."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from bench.network.measures import Manner

HOST = "127.0.0.1"
PROBE_PAUSE = 0.002
"""Seconds between two probes."""

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


def probe() -> bytes:
    """Return a message of 100 bytes that begins with the time of a clock that processes share."""
    return time.monotonic_ns().to_bytes(8) + bytes(92)


def sent_at(payload: bytes) -> int:
    """Return the time at the beginning of such a message."""
    return int.from_bytes(payload[:8])


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

    probes: tuple[str, ...] = ("message",)
    """The kinds of probes that the library has, see `PROBES`."""

    async def probe(self, kind: str, count: int) -> list[int]:
        """Return the nanoseconds that each of a few small things took to the other application."""
        raise NotImplementedError

    async def start_bulk(self, channels: int) -> None:
        """Send on other channels of the connection, as much as they take, until `stop_bulk`."""
        raise NotImplementedError

    async def stop_bulk(self) -> int:
        """Stop that; return the bytes sent."""
        raise NotImplementedError

    async def hold(self, count: int) -> None:
        """Keep this many channels alive, each used once."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close cleanly."""
