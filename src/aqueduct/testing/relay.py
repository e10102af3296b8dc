"""A bad network for real sockets: a UDP relay that loses, delays, reorders and repeats packets.

Put it between a client and a server, in the test's own event loop::

    async with Relay(server.address, Weather(loss=0.2, delay=0.02), seed=1) as relay:
        async with aqueduct.connect(relay.address, trust=aqueduct.dev_trust()) as connection:
            relay.blackout(0.5)  # nothing passes for half a second
            relay.change_address()  # the server sees the client come from another port

or as a process of its own, which prints the address it listens on in one line::

    python -m aqueduct.testing.relay --to 127.0.0.1:4433 --loss 0.2 --delay 0.02 --seed 1

What happens to a packet depends on the seed, its direction and how many packets went that way
before, never on its content: what QUIC encrypts differs from run to run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from random import Random
from types import TracebackType
from typing import Any

COMMAND = "python -m aqueduct.testing.relay"
LOCALHOST = "127.0.0.1"
BUFFER_SIZE = 4 * 1024 * 1024
"""Of each socket: a loss that nobody asked for would spoil the experiment."""
MAX_PACKET = 65_535
PACKETS_PER_TURN = 64

EXAMPLES = f"""\
examples:
  {COMMAND} --to 127.0.0.1:4433 --loss 0.2 --seed 1
  {COMMAND} --to 127.0.0.1:4433 --delay 0.05 --jitter 0.02 --reorder 0.1
  {COMMAND} --to 127.0.0.1:4433 --blackout 2:0.5 --change-address 5 --json

It prints its address when it is ready, and what it did when it is stopped with Ctrl-C."""


class Way(Enum):
    """The two directions through a relay."""

    UP = "up"
    """From the clients to the server."""
    DOWN = "down"
    """From the server to the clients."""


BOTH = (Way.UP, Way.DOWN)


@dataclass(frozen=True, slots=True)
class Weather:
    """How the network behaves; times are seconds, the rest are probabilities."""

    loss: float = 0.0
    delay: float = 0.0
    """The least time a packet takes."""
    jitter: float = 0.0
    """How much longer it may take, drawn for each packet; packets then overtake each other."""
    reorder: float = 0.0
    """A packet is held back by ``reorder_delay`` more, so that others overtake it."""
    reorder_delay: float = 0.02
    duplicate: float = 0.0
    """A packet arrives a second time."""

    def __post_init__(self) -> None:
        for name in ("loss", "reorder", "duplicate"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is a probability, from 0 to 1")
        if min(self.delay, self.jitter, self.reorder_delay) < 0.0:
            raise ValueError("times are not negative")


@dataclass(slots=True)
class Counts:
    """What a relay did with the packets of one direction."""

    passed: int = 0
    lost: int = 0
    duplicated: int = 0
    delayed: int = 0


class Relay:
    """Passes packets between clients and one server, in the weather it is given.

    ``weather`` may be replaced at any time. Each client has a socket of its own towards the
    server, as behind a router that translates addresses.
    """

    def __init__(
        self,
        to: str,
        weather: Weather | None = None,
        *,
        seed: int = 0,
        listen: str = f"{LOCALHOST}:0",
    ) -> None:
        self.weather = weather or Weather()
        self.counts = {way: Counts() for way in Way}
        self._to = split_address(to)
        self._listen = split_address(listen)
        self._random = {way: Random(f"{seed}/{way.value}") for way in Way}
        self._dark_until = dict.fromkeys(Way, 0.0)
        self._drop_next = dict.fromkeys(Way, 0)
        self._upstream: dict[Any, socket.socket] = {}
        self._socket: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def address(self) -> str:
        """Where clients connect to, as ``host:port``."""
        assert self._socket is not None, "the relay is not open"
        host, port = self._socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def clients(self) -> int:
        """How many client addresses have sent something."""
        return len(self._upstream)

    async def open(self) -> None:
        """Begin to listen."""
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
        """Close all sockets; packets under way are lost."""
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

    # -- faults -------------------------------------------------------------------------------

    def blackout(self, seconds: float = float("inf"), ways: Sequence[Way] = BOTH) -> None:
        """Nothing passes for so long; without a time, until `end_blackout`."""
        assert self._loop is not None, "the relay is not open"
        for way in ways:
            self._dark_until[way] = self._loop.time() + seconds

    def end_blackout(self) -> None:
        """Packets pass again."""
        self._dark_until = dict.fromkeys(Way, 0.0)

    def drop_next(self, count: int = 1, way: Way = Way.UP) -> None:
        """Lose the next packets of a direction, whatever the weather."""
        self._drop_next[way] += count

    def change_address(self) -> None:
        """Every client goes on from a new address, as the server sees it; the old ones are gone."""
        assert self._loop is not None, "the relay is not open"
        for client, old in list(self._upstream.items()):
            self._loop.remove_reader(old)
            old.close()
            self._upstream[client] = self._new_upstream(client)

    # -- inside -------------------------------------------------------------------------------

    def _read_clients(self) -> None:
        assert self._socket is not None
        for _ in range(PACKETS_PER_TURN):
            try:
                data, client = self._socket.recvfrom(MAX_PACKET)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                continue  # a client that is gone
            if client not in self._upstream:
                self._upstream[client] = self._new_upstream(client)
            self._pass(Way.UP, client, data)

    def _read_server(self, client: Any, sock: socket.socket) -> None:
        for _ in range(PACKETS_PER_TURN):
            try:
                data = sock.recv(MAX_PACKET)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                # Nobody listens. A client hears of that as it would without a relay: by silence.
                return
            self._pass(Way.DOWN, client, data)

    def _pass(self, way: Way, client: Any, data: bytes) -> None:
        """Decide on one packet. Each takes the same number of draws, so that faults stay put."""
        assert self._loop is not None
        draw = self._random[way].random
        weather, counts = self.weather, self.counts[way]
        lost, late, again = draw(), draw(), draw()
        delays = [weather.delay + weather.jitter * draw() for _ in range(2)]
        dropped = self._drop_next[way] > 0
        self._drop_next[way] -= dropped
        if dropped or lost < weather.loss or self._loop.time() < self._dark_until[way]:
            counts.lost += 1
            return
        if late < weather.reorder:
            counts.delayed += 1
            delays[0] += weather.reorder_delay
        counts.passed += 1
        self._send_later(delays[0], way, client, data)
        if again < weather.duplicate:
            counts.duplicated += 1
            self._send_later(delays[1], way, client, data)

    def _send_later(self, delay: float, way: Way, client: Any, data: bytes) -> None:
        assert self._loop is not None
        if delay > 0.0:
            self._loop.call_later(delay, self._send, way, client, data)
        else:
            self._send(way, client, data)

    def _send(self, way: Way, client: Any, data: bytes) -> None:
        # A full or closed socket loses the packet, as networks do.
        with contextlib.suppress(OSError):
            if way is Way.DOWN:
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


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` or ``[::1]:port``."""
    host, colon, port = address.removeprefix("aqueduct://").rpartition(":")
    if not colon or not port.isdecimal() or not host or int(port) > 65_535:
        raise ValueError(f"{address!r} is not of the form host:port")
    return host.strip("[]"), int(port)


# -- the command line -----------------------------------------------------------------------------


def _address(text: str) -> str:
    try:
        split_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _blackout(text: str) -> tuple[float, float]:
    try:
        start, length = (float(part) for part in text.split(":"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form START:LENGTH") from None
    return start, length


def make_parser() -> argparse.ArgumentParser:
    """What the command takes."""
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description="Relays UDP packets to a server, as badly as it is told to.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--to", type=_address, required=True, metavar="HOST:PORT", help="server")
    parser.add_argument(
        "--listen", type=_address, default=f"{LOCALHOST}:0", metavar="HOST:PORT", help="for clients"
    )
    fine = Weather()
    parser.add_argument("--loss", type=float, default=fine.loss, help="probability")
    parser.add_argument("--delay", type=float, default=fine.delay, help="seconds")
    parser.add_argument("--jitter", type=float, default=fine.jitter, help="seconds more, at most")
    parser.add_argument("--reorder", type=float, default=fine.reorder, help="probability")
    parser.add_argument(
        "--reorder-delay", type=float, default=fine.reorder_delay, help="seconds (%(default)s)"
    )
    parser.add_argument("--duplicate", type=float, default=fine.duplicate, help="probability")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--blackout",
        type=_blackout,
        action="append",
        default=[],
        metavar="START:LENGTH",
        help="seconds from the start in which nothing passes; may be repeated",
    )
    parser.add_argument(
        "--change-address",
        type=float,
        action="append",
        default=[],
        metavar="SECONDS",
        help="when clients come from new addresses; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="address and counts as JSON")
    return parser


async def relay_until_stopped(options: argparse.Namespace) -> None:
    """Run a relay until the process is told to stop."""
    weather = Weather(
        loss=options.loss,
        delay=options.delay,
        jitter=options.jitter,
        reorder=options.reorder,
        reorder_delay=options.reorder_delay,
        duplicate=options.duplicate,
    )
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with Relay(options.to, weather, seed=options.seed, listen=options.listen) as relay:
        for start, length in options.blackout:
            loop.call_later(start, relay.blackout, length)
        for moment in options.change_address:
            loop.call_later(moment, relay.change_address)
        _say(json.dumps({"address": relay.address}) if options.json else relay.address)
        await stop.wait()
        counts = {way.value: asdict(relay.counts[way]) for way in Way}
    if options.json:
        _say(json.dumps(counts))
        return
    for way, numbers in counts.items():
        _say(f"{way}: " + ", ".join(f"{number} {name}" for name, number in numbers.items()))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    try:
        asyncio.run(relay_until_stopped(options))
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        sys.stderr.write(f"relay: cannot listen on {options.listen}: {error.strerror}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
