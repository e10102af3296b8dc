"""A UDP relay that drops, delays, reorders and duplicates the packets of real sockets.

Put it between a client and a server, in the same event loop::

    async with Relay(server.address, Impairments(loss=0.2, delay=0.02), seed=1) as relay:
        async with aqueduct.connect(relay.address, trust=aqueduct.dev_trust()) as connection:
            relay.blackout(0.5)  # drop everything for half a second
            relay.change_address()  # the server sees the client at another port

or run it as a process, which prints its address on one line::

    python -m aqueduct.testing.relay --to 127.0.0.1:4433 --loss 0.2 --delay 0.02 --seed 1

The fate of a packet depends on the seed, its direction and its index in that direction, never on
its contents: the bytes of an encrypted packet differ from run to run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from random import Random
from types import TracebackType
from typing import Any

COMMAND = "python -m aqueduct.testing.relay"
LOCALHOST = "127.0.0.1"
BUFFER_SIZE = 4 * 1024 * 1024
"""Bytes per socket: an overflow would drop packets beyond the configured loss."""
MAX_PACKET = 65_535
PACKETS_PER_TURN = 64

EXAMPLES = f"""\
examples:
  {COMMAND} --to 127.0.0.1:4433 --loss 0.2 --seed 1
  {COMMAND} --to 127.0.0.1:4433 --delay 0.05 --jitter 0.02 --reorder 0.1
  {COMMAND} --to 127.0.0.1:4433 --blackout 2:0.5 --change-address 5 --json

It prints its address when it is ready, and its packet counts when it is stopped with Ctrl-C."""


class Direction(Enum):
    """A direction through the relay."""

    UP = "up"
    """From the clients to the server."""
    DOWN = "down"
    """From the server to the clients."""


BOTH = (Direction.UP, Direction.DOWN)


@dataclass(frozen=True, slots=True)
class Impairments:
    """What the relay does to packets; times are seconds, the rest are probabilities."""

    loss: float = 0.0
    delay: float = 0.0
    """The minimum delay of a packet."""
    jitter: float = 0.0
    """The maximum added delay, drawn per packet; packets then overtake each other."""
    reorder: float = 0.0
    """A packet is delayed by another ``reorder_delay``, so that others overtake it."""
    reorder_delay: float = 0.02
    duplicate: float = 0.0
    """A packet arrives twice."""

    def __post_init__(self) -> None:
        for name in ("loss", "reorder", "duplicate"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is a probability and must be between 0 and 1")
        if min(self.delay, self.jitter, self.reorder_delay) < 0.0:
            raise ValueError("delay, jitter and reorder_delay must not be negative")


@dataclass(slots=True)
class PacketCounts:
    """What the relay did with the packets of one direction."""

    passed: int = 0
    lost: int = 0
    duplicated: int = 0
    delayed: int = 0


class Relay:
    """Passes packets between clients and one server, and impairs them on the way.

    ``impairments`` may be replaced at any time. Each client has its own socket towards the server,
    as behind a NAT.
    """

    def __init__(
        self,
        to: str,
        impairments: Impairments | None = None,
        *,
        seed: int = 0,
        listen: str = f"{LOCALHOST}:0",
    ) -> None:
        self.impairments = impairments or Impairments()
        self.counts = {way: PacketCounts() for way in Direction}
        self._to = split_address(to)
        self._listen = split_address(listen)
        self._rngs = {way: Random(f"{seed}/{way.value}") for way in Direction}
        self._dark_until = dict.fromkeys(Direction, 0.0)
        self._drop_next = dict.fromkeys(Direction, 0)
        self._upstream: dict[Any, socket.socket] = {}
        self._socket: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def address(self) -> str:
        """The address for clients, as ``host:port``."""
        return address_of(self._socket)

    @property
    def clients(self) -> int:
        """The number of client addresses seen."""
        return len(self._upstream)

    async def open(self) -> None:
        """Bind the address for clients and start to relay."""
        self._loop = asyncio.get_running_loop()
        self._to = await self._resolve(*self._to)
        listen = await self._resolve(*self._listen)
        sock = _udp_socket(self._to[0])
        try:
            sock.bind(listen)
        except OSError:
            sock.close()
            raise
        self._socket = sock
        self._loop.add_reader(sock, self._read_clients)

    def close(self) -> None:
        """Close all sockets. Delayed packets are dropped."""
        for sock in (self._socket, *self._upstream.values()):
            if sock is not None and self._loop is not None:
                self._loop.remove_reader(sock)
                sock.close()
        self._socket = None
        self._upstream.clear()

    async def __aenter__(self) -> Relay:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Faults

    def blackout(
        self, seconds: float = float("inf"), directions: Sequence[Direction] = BOTH
    ) -> None:
        """Drop all packets for ``seconds``, or until `end_blackout`."""
        assert self._loop is not None, "the relay is not open"
        for direction in directions:
            self._dark_until[direction] = self._loop.time() + seconds

    def end_blackout(self) -> None:
        """End all blackouts."""
        self._dark_until = dict.fromkeys(Direction, 0.0)

    def drop_next(self, count: int = 1, direction: Direction = Direction.UP) -> None:
        """Drop the next ``count`` packets of a direction."""
        self._drop_next[direction] += count

    def change_address(self) -> None:
        """Give every client a new source address towards the server; the old ones are closed."""
        assert self._loop is not None, "the relay is not open"
        for client, old in list(self._upstream.items()):
            self._loop.remove_reader(old)
            old.close()
            self._upstream[client] = self._new_upstream(client)

    # Packets

    def _read_clients(self) -> None:
        assert self._socket is not None
        for _ in range(PACKETS_PER_TURN):
            try:
                data, client = self._socket.recvfrom(MAX_PACKET)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                continue  # an ICMP error: a client has closed its socket
            if client not in self._upstream:
                self._upstream[client] = self._new_upstream(client)
            self._pass(Direction.UP, client, data)

    def _read_server(self, client: Any, sock: socket.socket) -> None:
        for _ in range(PACKETS_PER_TURN):
            try:
                data = sock.recv(MAX_PACKET)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                # An ICMP error: nothing listens at the server's address. The client gets no answer.
                return
            self._pass(Direction.DOWN, client, data)

    def _pass(self, way: Direction, client: Any, data: bytes) -> None:
        """Decide the fate of one packet.

        Each packet takes the same number of draws, so that its fate depends on its index alone.
        """
        assert self._loop is not None
        draw = self._rngs[way].random
        impairments, counts = self.impairments, self.counts[way]
        lost, late, again = draw(), draw(), draw()
        delays = [impairments.delay + impairments.jitter * draw() for _ in range(2)]
        dropped = self._drop_next[way] > 0
        self._drop_next[way] -= dropped
        if dropped or lost < impairments.loss or self._loop.time() < self._dark_until[way]:
            counts.lost += 1
            return
        if late < impairments.reorder:
            counts.delayed += 1
            delays[0] += impairments.reorder_delay
        counts.passed += 1
        self._send_later(delays[0], way, client, data)
        if again < impairments.duplicate:
            counts.duplicated += 1
            self._send_later(delays[1], way, client, data)

    def _send_later(self, delay: float, way: Direction, client: Any, data: bytes) -> None:
        assert self._loop is not None
        if delay > 0.0:
            self._loop.call_later(delay, self._send, way, client, data)
        else:
            self._send(way, client, data)

    def _send(self, way: Direction, client: Any, data: bytes) -> None:
        # A full or closed socket drops the packet, as a network does.
        with contextlib.suppress(OSError):
            if way is Direction.DOWN:
                if self._socket is not None:
                    self._socket.sendto(data, client)
            elif client in self._upstream:
                self._upstream[client].send(data)

    def _new_upstream(self, client: Any) -> socket.socket:
        assert self._loop is not None
        sock = _udp_socket(self._to[0])
        sock.connect(self._to)
        self._loop.add_reader(sock, self._read_server, client, sock)
        return sock

    async def _resolve(self, host: str, port: int) -> tuple[str, int]:
        assert self._loop is not None
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        where = found[0][4]
        return str(where[0]), int(where[1])


def _udp_socket(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.setblocking(False)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_SIZE)
    return sock


def address_of(sock: socket.socket | None) -> str:
    """Return the address that the socket of a relay is bound to, as ``host:port``."""
    assert sock is not None, "the relay is not open"
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[::1]:port``; raise ValueError if it is neither."""
    scheme, mark, where = address.rpartition("://")
    if mark and scheme not in ("aqueduct", "aqueduct+quic", "aqueduct+tcp"):
        raise ValueError(f"{address!r} does not begin with a scheme of Aqueduct")
    host, colon, port = where.rpartition(":")
    if not colon or not port.isdecimal() or not host or int(port) > 65_535:
        raise ValueError(f"{address!r} is not of the form host:port")
    return host.strip("[]"), int(port)


# The command line


def _address(text: str) -> str:
    try:
        split_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def interval(text: str) -> tuple[float, float]:
    """Parse ``START:LENGTH``, in seconds."""
    try:
        start, length = (float(part) for part in text.split(":"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form START:LENGTH") from None
    return start, length


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description="Relays UDP packets to a server, and drops, delays or duplicates some.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--to", type=_address, required=True, metavar="HOST:PORT", help="server")
    parser.add_argument(
        "--listen", type=_address, default=f"{LOCALHOST}:0", metavar="HOST:PORT", help="for clients"
    )
    none = Impairments()
    parser.add_argument("--loss", type=float, default=none.loss, help="probability")
    parser.add_argument("--delay", type=float, default=none.delay, help="seconds")
    parser.add_argument("--jitter", type=float, default=none.jitter, help="maximum seconds added")
    parser.add_argument("--reorder", type=float, default=none.reorder, help="probability")
    parser.add_argument(
        "--reorder-delay", type=float, default=none.reorder_delay, help="seconds (%(default)s)"
    )
    parser.add_argument("--duplicate", type=float, default=none.duplicate, help="probability")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--blackout",
        type=interval,
        action="append",
        default=[],
        metavar="START:LENGTH",
        help="seconds from the start in which all packets are dropped; may be repeated",
    )
    parser.add_argument(
        "--change-address",
        type=float,
        action="append",
        default=[],
        metavar="SECONDS",
        help="seconds from the start when clients get new addresses; may be repeated",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the address and the counts as JSON"
    )
    return parser


async def relay_until_stopped(options: argparse.Namespace) -> None:
    """Run a relay until SIGINT or SIGTERM."""
    impairments = Impairments(
        loss=options.loss,
        delay=options.delay,
        jitter=options.jitter,
        reorder=options.reorder,
        reorder_delay=options.reorder_delay,
        duplicate=options.duplicate,
    )
    loop = asyncio.get_running_loop()
    stop = stop_signal()
    async with Relay(options.to, impairments, seed=options.seed, listen=options.listen) as relay:
        for start, length in options.blackout:
            loop.call_later(start, relay.blackout, length)
        for moment in options.change_address:
            loop.call_later(moment, relay.change_address)
        say(json.dumps({"address": relay.address}) if options.json else relay.address)
        await stop.wait()
        counts = {way.value: asdict(relay.counts[way]) for way in Direction}
    if options.json:
        say(json.dumps(counts))
        return
    for way, numbers in counts.items():
        say(f"{way}: " + ", ".join(f"{number} {name}" for name, number in numbers.items()))


def stop_signal() -> asyncio.Event:
    """Return an event that SIGINT and SIGTERM set."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def run_relay(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace], Coroutine[Any, Any, None]],
    arguments: Sequence[str] | None,
) -> int:
    """Run the command of a relay until it is stopped, and return the exit code."""
    options = parser.parse_args(arguments)
    try:
        asyncio.run(run(options))
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        name = parser.prog.rpartition(".")[2]
        sys.stderr.write(f"{name}: cannot listen on {options.listen}: {error.strerror}\n")
        return 1
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return run_relay(make_parser(), relay_until_stopped, arguments)


if __name__ == "__main__":
    sys.exit(main())
