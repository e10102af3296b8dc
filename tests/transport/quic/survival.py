"""Connections on bad networks, in virtual time: how many survive.

Real QUIC with 1,452-byte packets, short channels both ways, and a network that loses packets or
gives the client another address.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from unittest.mock import patch

from aqueduct.errors import WouldBlock
from aqueduct.protocol.connection import Attach, Give, Mode
from aqueduct.protocol.events import ConnectionEnded
from aqueduct.testing.faults import Faults
from aqueduct.testing.pair import Pair
from aqueduct.wire.chanid import ENTRYPOINT, Side
from aqueduct.wire.frames import MessageFrame
from tests.transport.quic.virtual import RealQuic

LIMIT = 300.0
"""Virtual seconds after which a connection counts as stuck."""
AT_ONCE = 20
"""Channels that are open at a time."""


@dataclass(frozen=True)
class Fate:
    """What became of one connection."""

    seed: int
    done: int
    """Channels that ended normally."""
    seconds: float
    """The virtual time until the end."""
    reason: str | None
    """Why the connection ended, if it did."""


class Visit:
    """One connection: a client that calls and sends on short channels, and its server."""

    def __init__(self, seed: int, faults: Faults, packet: int = 1_452) -> None:
        self.seed = seed
        self.random = Random(f"survival {seed}")
        with (
            patch("aqueduct.testing.pair.FakeQuic", RealQuic),
            patch("tests.transport.quic.virtual.PACKET_SIZES", (packet,)),
        ):
            self.pair = Pair(seed, faults=Faults(delay=faults.delay))
        real: object = self.pair.network
        assert isinstance(real, RealQuic)
        self.network = real
        self.network.shake_hands()
        self.pair.run(0.5)
        self.network.faults = faults
        self.open: set[int] = set()
        self.begun = self.done = 0
        self.wanted = 0
        self.pair.on_input = self._act

    def run(self, channels: int, limit: float = LIMIT) -> Fate:
        """Open channels, and return what became of the connection."""
        self.wanted += channels
        start = self.pair.now
        self._act(Side.CLIENT)
        while self.pair.now - start < limit:
            self.pair.run(0.05)
            if self.done >= self.wanted or self.reason() is not None:
                break
        return Fate(self.seed, self.done, self.pair.now - start, self.reason())

    def reason(self) -> str | None:
        """Why the connection ended, if it did."""
        for endpoint in self.pair.endpoints:
            for ended in endpoint.events_of(ConnectionEnded):
                return ended.reason
        return None

    def _act(self, side: Side) -> None:
        if self.reason() is not None:
            return
        if side == Side.SERVER:
            self._serve()
        else:
            self._ask()

    def _ask(self) -> None:
        client = self.pair.client
        for channel in list(self.open):
            if client.take(channel):
                self.open.discard(channel)
                self.done += 1
        while self.begun < self.wanted and len(self.open) < AT_ONCE:
            self.begun += 1
            size = self.random.choice((10, 300, 1_300, 4_000))
            sent = client.send_message(
                ENTRYPOINT,
                self.random.randbytes(size),
                attach=[Attach(Give.SENDER, oneshot=True), Attach(Give.RECEIVER)],
            )
            answer, data = sent.channels
            self.open.add(answer)
            for _ in range(self.random.randrange(4)):
                client.send(data, self.random.randbytes(self.random.choice((10, 700, 2_000))))
            client.finish(data)

    def _serve(self) -> None:
        server = self.pair.server
        for message in server.take(ENTRYPOINT):
            assert isinstance(message, MessageFrame)
            answer, data = (one.channel for one in message.attachments)
            server.take(data)
            server.send(answer, self.random.randbytes(self.random.choice((10, 900, 3_000))))
        for channel, half in list(server.core._channels.halves.items()):
            if hasattr(half, "take") and channel != ENTRYPOINT:
                server.take(channel)


class Torrent(Visit):
    """Both sides send as much as credit allows, concurrently, on channels that stay open."""

    def __init__(self, seed: int, faults: Faults, mode: Mode, packet: int = 1_452) -> None:
        super().__init__(seed, faults, packet)
        self.mode = mode
        self.payload = bytes(300 if mode is Mode.UNORDERED else 20_000)
        self.left: dict[tuple[Side, int], int] = {}
        self.incoming: tuple[set[int], set[int]] = (set(), set())

    def pour(self, channels: int, messages: int, limit: float = LIMIT) -> Fate:
        """Send messages on channels in both directions."""
        client = self.pair.client
        for _ in range(channels):
            sent = client.send_message(
                ENTRYPOINT, b"%d" % messages, attach=[Attach(Give.SENDER), Attach(Give.RECEIVER)]
            )
            back, there = sent.channels
            self.incoming[Side.CLIENT].add(back)
            client.set_mode(there, self.mode)
            self.left[Side.CLIENT, there] = messages
        return self.run(2 * channels * messages, limit)

    def _act(self, side: Side) -> None:
        if self.reason() is not None:
            return
        endpoint = self.pair.endpoints[side]
        if side == Side.SERVER:
            for message in endpoint.take(ENTRYPOINT):
                assert isinstance(message, MessageFrame)
                back, there = (one.channel for one in message.attachments)
                self.incoming[Side.SERVER].add(there)
                endpoint.set_mode(back, self.mode)
                self.left[side, back] = int(message.payload)
        for channel in self.incoming[side]:
            self.done += len(endpoint.take(channel))
        for sender, left in self.left.items():
            while sender[0] == side and left:
                try:
                    endpoint.send(sender[1], self.payload)
                except WouldBlock:
                    break
                left -= 1
            self.left[sender] = left


def full(seed: int, *, mode: Mode, faults: Faults, packet: int = 1_452) -> Fate:
    """Run a connection whose sides both send more than the network can carry."""
    messages = 200 if mode is Mode.UNORDERED else 10
    return Torrent(seed, faults, mode, packet).pour(8, messages)


def lossy(seed: int, *, loss: float = 0.1, channels: int = 20) -> Fate:
    """Run a connection on a network that loses packets both ways."""
    return Visit(seed, Faults(delay=0.01, loss=loss)).run(channels)


def moving(seed: int, *, changes: int = 10, pause: float = 0.0, hosts: int = 1) -> Fate:
    """Run a client whose address changes repeatedly, on one host or on several.

    Channels are used before, between and after the changes; with a pause the connection is idle.
    """
    visit = Visit(seed, Faults(delay=0.01, loss=0.01))
    fate = visit.run(5)
    for change in range(changes):
        if fate.reason is not None or fate.done < visit.wanted:
            break
        host = f"127.0.0.{1 + change % hosts}" if hosts > 1 else "127.0.0.1"
        visit.network.addresses[Side.CLIENT] = (host, 2_000 + change)
        if pause:
            visit.pair.run(pause)
        fate = visit.run(5, limit=60.0)
    return fate
