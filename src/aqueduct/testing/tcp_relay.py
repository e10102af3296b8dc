"""A TCP relay that delays, stalls, cuts and half-opens the connections of real sockets.

Put it between a client and a server, in the same event loop::

    async with TcpRelay(server.address, TcpPath(delay=0.02), seed=1) as relay:
        async with aqueduct.connect(f"aqueduct+tcp://{relay.address}", ...) as connection:
            relay.stall(0.5)  # pass nothing for half a second, and then all of it
            relay.cut()  # reset all connections

or run it as a process, which prints its address on one line::

    python -m aqueduct.testing.tcp_relay --to 127.0.0.1:4433 --delay 0.02

TCP ends at the relay on both sides: the kernel acknowledges what the relay has read. So the relay
shows what a program does about a slow, stuck or broken path, and neither packet loss nor the
congestion control of the kernel. The seed decides about jitter and where bytes are split.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from random import Random
from types import TracebackType

from aqueduct.testing.relay import (
    BOTH,
    LOCALHOST,
    Direction,
    address_of,
    interval,
    run_relay,
    say,
    split_address,
    stop_signal,
)

COMMAND = "python -m aqueduct.testing.tcp_relay"
READ_SIZE = 64 * 1024
MAX_ON_PATH = 64 * 1024 * 1024
"""Bytes that a direction of a connection holds by default: what the receive window of TCP bounds on
a real path."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of a socket whose close sends RST."""


@dataclass(frozen=True, slots=True)
class TcpPath:
    """What the relay does to each direction of a connection; times are seconds."""

    delay: float = 0.0
    """The delay of each byte, one way."""
    jitter: float = 0.0
    """The maximum added delay, drawn per read. Bytes stay in order, as TCP keeps them."""
    rate: float = float("inf")
    """Bytes per second."""
    max_write: int = 0
    """Bytes are written in pieces of 1 to this many, whose sizes are drawn; 0 for all at once."""
    max_held: int = MAX_ON_PATH
    """Bytes on the path at once; the relay reads no more meanwhile, so that the sender waits."""

    def __post_init__(self) -> None:
        if min(self.delay, self.jitter, self.max_write) < 0:
            raise ValueError("delay, jitter and max_write must not be negative")
        if self.rate <= 0 or self.max_held <= 0:
            raise ValueError("rate and max_held must be above 0")


@dataclass(slots=True)
class ByteCounts:
    """What the relay did with the bytes of one direction, over all connections."""

    passed: int = 0
    swallowed: int = 0
    cut: int = 0
    """Connections that a limit of `TcpRelay.cut_after` ended."""


class TcpRelay:
    """Passes the bytes of TCP connections between clients and one server.

    ``path`` may be replaced at any time; bytes on the way keep the delay they have.
    """

    def __init__(
        self,
        to: str,
        path: TcpPath | None = None,
        *,
        seed: int = 0,
        listen: str = f"{LOCALHOST}:0",
    ) -> None:
        self.path = path or TcpPath()
        self.counts = {way: ByteCounts() for way in Direction}
        self.accepted = 0
        """Connections of clients so far."""
        self._to = split_address(to)
        self._listen = split_address(listen)
        self._rngs = {way: Random(f"{seed}/{way.value}") for way in Direction}
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._links: dict[_Link, None] = {}
        self._flowing = {way: asyncio.Event() for way in Direction}
        self._stalls = dict.fromkeys(Direction, 0)
        self._swallowed: frozenset[Direction] = frozenset()
        self._limits: dict[Direction, tuple[int, bool]] = {}
        for flowing in self._flowing.values():
            flowing.set()

    @property
    def address(self) -> str:
        """The address for clients, as ``host:port``."""
        return address_of(self._socket)

    @property
    def connections(self) -> int:
        """The number of connections that are open."""
        return len(self._links)

    async def open(self) -> None:
        """Bind the address for clients and start to relay."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(*self._listen, type=socket.SOCK_STREAM)
        family, _, _, _, where = found[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(where)
            sock.listen(1_024)
        except OSError:
            sock.close()
            raise
        self._socket = sock
        self._accepting = loop.create_task(self._accept(loop, sock))

    async def aclose(self) -> None:
        """Reset all connections and close all sockets."""
        accepting, self._accepting = self._accepting, None
        if accepting is not None:
            accepting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await accepting
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        links = list(self._links)
        self.cut()
        await asyncio.gather(*(link.task for link in links), return_exceptions=True)

    async def __aenter__(self) -> TcpRelay:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    # Faults

    def stall(self, seconds: float = float("inf"), directions: Sequence[Direction] = BOTH) -> None:
        """Pass nothing for ``seconds``, or until `resume`; nothing is lost.

        The relay reads nothing meanwhile either, so the buffers of the sender fill.
        """
        for way in directions:
            self._stalls[way] += 1
            self._flowing[way].clear()
            if seconds < float("inf"):
                asyncio.get_running_loop().call_later(seconds, self._resume, way, self._stalls[way])

    def resume(self, directions: Sequence[Direction] = BOTH) -> None:
        """End all stalls."""
        for way in directions:
            self._resume(way, self._stalls[way])

    def _resume(self, way: Direction, stall: int) -> None:
        if self._stalls[way] == stall:  # a later stall has not replaced this one
            self._flowing[way].set()

    def half_open(self, directions: Sequence[Direction] = BOTH) -> None:
        """Discard what is sent in these directions, also the end of it, until `end_half_open`.

        Both sockets stay open, and the kernel acknowledges what is sent, as behind a middlebox that
        has forgotten the connection. For a host that is gone, `stall`.
        """
        self._swallowed |= frozenset(directions)

    def end_half_open(self) -> None:
        """Pass bytes again. What was discarded is missing, so connections under TLS break."""
        self._swallowed = frozenset()

    def cut(self, *, reset: bool = True) -> None:
        """End all connections on both sides, with RST or else with FIN.

        Bytes on the way are lost.
        """
        for link in list(self._links):
            link.cut(reset)

    def cut_after(
        self, size: int, direction: Direction = Direction.UP, *, reset: bool = True
    ) -> None:
        """Cut each connection once ``size`` bytes of it have passed in this direction."""
        self._limits[direction] = size, reset

    # Connections

    async def _accept(self, loop: asyncio.AbstractEventLoop, listening: socket.socket) -> None:
        while True:
            client, _ = await loop.sock_accept(listening)
            self.accepted += 1
            link = _Link(self, client)
            self._links[link] = None
            link.task.add_done_callback(partial(self._forget, link))

    def _forget(self, link: _Link, _: asyncio.Task[None]) -> None:
        self._links.pop(link, None)

    async def _connect(self) -> socket.socket:
        """Connect to the server."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(*self._to, type=socket.SOCK_STREAM)
        family, _, _, _, where = found[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, where)
        except BaseException:
            sock.close()
            raise
        return sock


class _Link:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(self, relay: TcpRelay, client: socket.socket) -> None:
        self._relay = relay
        self._sockets = [client]
        self.task = asyncio.get_running_loop().create_task(self._run(client))

    def cut(self, reset: bool) -> None:
        """Close both sockets at once, with RST or FIN."""
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                if reset:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                else:
                    sock.shutdown(socket.SHUT_RDWR)
        self.task.cancel()

    async def _run(self, client: socket.socket) -> None:
        """Pass bytes in both directions until both have ended, or one breaks."""
        relay = self._relay
        try:
            server = await relay._connect()
            self._sockets.append(server)
            for sock in self._sockets:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.TaskGroup() as group:
                for way, source, target in (
                    (Direction.UP, client, server),
                    (Direction.DOWN, server, client),
                ):
                    pipe = _Pipe(relay, way, source, target, self.cut)
                    group.create_task(pipe.read())
                    group.create_task(pipe.write())
        except* OSError:
            self.cut(True)  # one side has reset the connection, or there is no server
        finally:
            for sock in self._sockets:
                sock.close()


class _Pipe:
    """One direction of a connection."""

    def __init__(
        self,
        relay: TcpRelay,
        way: Direction,
        source: socket.socket,
        target: socket.socket,
        cut: Callable[[bool], None],
    ) -> None:
        self._relay, self._way, self._source, self._target = relay, way, source, target
        self._cut = cut
        self._held: deque[tuple[float, bytes]] = deque()
        """What is on the way, with the times when it is due; no bytes for the end."""
        self._size = self._passed = 0
        self._free_at = 0.0
        """When the path has carried what is on it, at its rate."""
        self._changed = asyncio.Event()

    async def read(self) -> None:
        """Read until the end, as fast as the path takes it."""
        loop = asyncio.get_running_loop()
        relay, rng = self._relay, self._relay._rngs[self._way]
        while True:
            await relay._flowing[self._way].wait()
            while self._size >= relay.path.max_held:
                await self._wait()
            data = await loop.sock_recv(self._source, READ_SIZE)
            path, now = relay.path, loop.time()
            self._free_at = max(self._free_at, now) + len(data) / path.rate
            due = self._free_at + path.delay + path.jitter * rng.random()
            if self._held:
                due = max(due, self._held[-1][0])
            self._held.append((due, data))
            self._size += len(data)
            self._changed.set()
            if not data:
                return

    async def write(self) -> None:
        """Write what is due, until the end."""
        loop = asyncio.get_running_loop()
        relay, way = self._relay, self._way
        while True:
            while not self._held:
                await self._wait()
            due, data = self._held[0]
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            await relay._flowing[way].wait()
            if way in relay._swallowed:
                relay.counts[way].swallowed += len(data)
                if not data:
                    await loop.create_future()  # the other side learns nothing of the end
            elif data:
                await self._pass(loop, data)
            else:
                self._target.shutdown(socket.SHUT_WR)
                return
            self._held.popleft()
            self._size -= len(data)
            self._changed.set()

    async def _pass(self, loop: asyncio.AbstractEventLoop, data: bytes) -> None:
        """Write bytes, up to where the connection is to be cut."""
        relay = self._relay
        counts, rng = relay.counts[self._way], relay._rngs[self._way]
        limit, reset = relay._limits.get(self._way, (0, False))
        if limit:
            data = data[: max(0, limit - self._passed)]
        most, at = relay.path.max_write, 0
        while at < len(data):
            size = rng.randint(1, most) if most else len(data)
            piece = data[at : at + size]
            await loop.sock_sendall(self._target, piece)
            at += size
            self._passed += len(piece)
            counts.passed += len(piece)
        if limit and self._passed >= limit:
            counts.cut += 1
            self._cut(reset)

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()


# The command line


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description="Relays TCP connections to a server, and delays what they carry.",
        epilog="It prints its address when it is ready, and byte counts when it is stopped.",
    )
    none = TcpPath()
    parser.add_argument("--to", required=True, metavar="HOST:PORT", help="server")
    parser.add_argument(
        "--listen", default=f"{LOCALHOST}:0", metavar="HOST:PORT", help="for clients"
    )
    parser.add_argument("--delay", type=float, default=none.delay, help="seconds, one way")
    parser.add_argument("--jitter", type=float, default=none.jitter, help="maximum seconds added")
    parser.add_argument("--rate", type=float, default=none.rate, help="bytes per second")
    parser.add_argument(
        "--max-held", type=int, default=none.max_held, help="bytes on the path (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--stall",
        type=interval,
        action="append",
        default=[],
        metavar="START:LENGTH",
        help="seconds from the start in which nothing passes; may be repeated",
    )
    return parser


async def relay_until_stopped(options: argparse.Namespace) -> None:
    """Run a relay until SIGINT or SIGTERM."""
    path = TcpPath(options.delay, options.jitter, options.rate, max_held=options.max_held)
    loop = asyncio.get_running_loop()
    stop = stop_signal()
    async with TcpRelay(options.to, path, seed=options.seed, listen=options.listen) as relay:
        for start, length in options.stall:
            loop.call_later(start, relay.stall, length)
        say(json.dumps({"address": relay.address}))
        await stop.wait()
    say(json.dumps({way.value: asdict(relay.counts[way]) for way in Direction}))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return run_relay(make_parser(), relay_until_stopped, arguments)


if __name__ == "__main__":
    sys.exit(main())
