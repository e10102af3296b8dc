"""A core that records its inputs, for tests of the network between two cores."""

from __future__ import annotations

from itertools import count
from random import Random

from aqueduct.protocol.actions import Action, Room
from aqueduct.protocol.outgoing import Outgoing
from aqueduct.testing.clock import VirtualClock
from aqueduct.testing.faults import Faults
from aqueduct.testing.quic import FakeQuic
from aqueduct.testing.recorder import RecordObserver
from aqueduct.wire.chanid import Side


class FakeCore:
    """Records its inputs, and sends what a test puts in ``actions``."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.streams: dict[int, bytes] = {}
        self.chunks: list[tuple[float, int, bytes]] = []
        self.finished: list[int] = []
        self.resets: list[tuple[int, int]] = []
        self.datagrams: list[tuple[float, bytes]] = []
        self.timers: list[float] = []
        self.rtts: list[float] = []
        self.lost: list[tuple[float, int, bool]] = []
        self.timer: float | None = None
        self.stubborn = False

    def handle_stream_data(self, stream: int, data: bytes, fin: bool, now: float) -> None:
        self.streams[stream] = self.streams.get(stream, b"") + data
        self.chunks.append((now, stream, data))
        if fin:
            self.finished.append(stream)

    def handle_stream_reset(self, stream: int, code: int, now: float) -> None:
        self.resets.append((stream, code))

    def handle_datagram(self, data: bytes, now: float) -> None:
        self.datagrams.append((now, data))

    def handle_timer(self, now: float) -> None:
        self.timers.append(now)
        if not self.stubborn:
            self.timer = None

    def handle_datagram_limit(self, size: int) -> None:
        pass

    def handle_rtt(self, rtt: float, least: float | None = None) -> None:
        self.rtts.append(rtt)

    def handle_connection_lost(self, code: int, reason: str, by_peer: bool, now: float) -> None:
        self.lost.append((now, code, by_peer))

    has_ended = False

    @property
    def output(self) -> Outgoing:
        return Outgoing(1_000)

    def poll_actions(self, room: Room | None = None) -> list[Action]:
        actions, self.actions = self.actions, []
        return actions

    def next_timer(self) -> float | None:
        return self.timer


class DeafObserver(RecordObserver):
    """A recorder that ignores data: fake cores do not send frames."""

    def stream_written(self, stream: int, data: bytes, fin: bool) -> None: ...
    def stream_read(self, stream: int, data: bytes, fin: bool) -> None: ...
    def datagram_written(self, data: bytes) -> None: ...
    def datagram_read(self, data: bytes) -> None: ...
    def reset_read(self, stream: int, code: int) -> None: ...


class FakeWorld:
    """Two fake cores and a network between them."""

    def __init__(self, faults: Faults, seed: int = 0) -> None:
        self.clock = VirtualClock()
        self.client = FakeCore()
        self.server = FakeCore()
        self.network = FakeQuic(
            self.clock,
            Random(seed),
            faults,
            (self.client, self.server),
            [DeafObserver(side, self.clock, [], count()) for side in Side],
            lambda side: None,
        )

    def send(self, *actions: Action) -> None:
        """Send actions of the client."""
        self.client.actions.extend(actions)
        self.network.flush(Side.CLIENT)
