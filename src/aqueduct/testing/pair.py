"""Two cores that talk over a simulated network: the harness for tests of the protocol.

::

    pair = Pair(seed=1, loss=0.2, delay=0.02)
    pair.run(1)  # the handshake
    pair.client.send(0, b"hello")  # 0 is the entrypoint
    pair.run_until_idle()
    assert pair.server.take(0)[0].payload == b"hello"
    assert pair.violations() == []
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from aqueduct.observe.base import Observer
from aqueduct.protocol.config import Config, Delivery
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.protocol.events import Event, PeerHeaders
from aqueduct.testing.checkers import EVERYTHING_ENDS, Violation, check
from aqueduct.testing.clock import VirtualClock, seeded
from aqueduct.testing.draft import DraftCore
from aqueduct.testing.endpoint import SimulatedEndpoint
from aqueduct.testing.faults import CALM, Faults
from aqueduct.testing.quic import FakeQuic
from aqueduct.testing.record import FrameSent, Record
from aqueduct.testing.recorder import observe_pair
from aqueduct.wire.chanid import Side
from aqueduct.wire.frames import Frame
from aqueduct.wire.primitives import HeaderPairs


class Pair:
    """A client and a server in virtual time.

    ``loss``, ``delay`` and ``jitter`` are short for ``faults=Faults(...)``. The server accepts the
    client unless ``accept`` is False. Everything that happens is in ``record``; ``observers`` of
    the client and of the server are notified as well. The side ``draft``, if any, knows only the
    reference draft.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        loss: float = 0.0,
        delay: float = 0.01,
        jitter: float = 0.0,
        faults: Faults | None = None,
        client: Config | None = None,
        server: Config | None = None,
        headers: HeaderPairs = (),
        accept: bool = True,
        observers: tuple[Sequence[Observer], Sequence[Observer]] = ((), ()),
        draft: Side | None = None,
        delivery: tuple[Delivery, Delivery] | None = None,
    ) -> None:
        if faults is None:
            faults = Faults(delay=delay, jitter=jitter, loss=loss)
        configs = (client or Config(), server or Config())
        if delivery is not None:
            configs = (_with(configs[0], delivery[0]), _with(configs[1], delivery[1]))
        self.clock = VirtualClock()
        self.record = Record(
            limits=(configs[0].limits, configs[1].limits),
            first_limits=configs[0].initial_limits,
            lateness=faults.lateness,
            draft=draft,
            holds_datagrams=faults.holds_datagrams and faults.room > 0,
            quanta=(configs[0].quantum, configs[1].quantum),
        )
        if delivery is not None:  # the checkers know the defaults themselves
            one, other = delivery
            self.record.ack_delays = (one.ack_delay, other.ack_delay)
            self.record.receipt_deadlines = (
                (one.receipt_deadline_min, one.receipt_deadline_max),
                (other.receipt_deadline_min, other.receipt_deadline_max),
            )
        entries = self.record.entries
        self.recorders = observe_pair(self.clock, entries)
        cores = tuple(
            # It has the methods of a core that are called here.
            cast(ConnectionCore, DraftCore(side, headers=headers if side == Side.CLIENT else ()))
            if side == draft
            else ConnectionCore(side, configs[side], headers=headers if side == Side.CLIENT else ())
            for side in Side
        )
        self.client, self.server = (
            SimulatedEndpoint(
                core,
                self.clock,
                entries,
                (self.recorders[core.side], *observers[core.side]),
                knows_draft_only=core.side == draft,
            )
            for core in cores
        )
        self.endpoints = (self.client, self.server)
        self.server.on_accept = self._server_accepted
        self.network = FakeQuic(
            self.clock,
            seeded(seed, "network"),
            faults,
            cores,
            self.recorders,
            self._gather,
            observers,
        )
        if accept:
            self.server.on_event = self._accept
        self.frames: list[FrameSent] = []
        """The frames that either side has sent, in order."""
        for recorder in self.recorders:
            recorder.on_frame = self.frames.append
        self.on_input: Callable[[Side], None] | None = None
        """Called after each input of a side, when its events have been gathered."""
        self.flush()

    @property
    def now(self) -> float:
        """The virtual time."""
        return self.clock.now

    def run(self, seconds: float) -> None:
        """Let ``seconds`` of virtual time pass."""
        self.flush()
        self.clock.run(seconds)

    def run_until_idle(self, limit: float = 60.0) -> bool:
        """Let time pass until nothing is scheduled; return False after ``limit`` seconds."""
        self.flush()
        idle = self.clock.run_until_idle(limit)
        self.record.drained = idle and not self.leftovers()
        return idle

    def flush(self) -> None:
        """Gather the events of both cores, and send what they queued."""
        self.client.gather()
        self.server.gather()
        self.network.flush(Side.CLIENT)
        self.network.flush(Side.SERVER)

    def calm(self) -> None:
        """Turn all faults off. What is already scheduled keeps its delay."""
        self.network.faults = replace(CALM, delay=min(self.network.faults.delay, 0.02))

    def sent(self, side: Side, kind: type[Frame]) -> list[FrameSent]:
        """Return the frames of one kind that a side has sent so far."""
        return [sent for sent in self.frames if sent.side == side and type(sent.frame) is kind]

    def leftovers(self) -> list[str]:
        """Return what either core still holds."""
        return self.client.core.leftovers() + self.server.core.leftovers()

    def violations(self) -> list[Violation]:
        """Return the violations that the checkers find in the run so far.

        Whether everything ends is checked only once nothing is scheduled and nothing is held.
        """
        found = check(self.record)
        if self.record.drained:
            return found
        return [violation for violation in found if violation.checker != EVERYTHING_ENDS]

    def _gather(self, side: Side) -> None:
        self.endpoints[side].gather()
        if self.on_input is not None:
            self.on_input(side)

    def _server_accepted(self) -> None:
        self.recorders[Side.SERVER].release_held()

    def _accept(self, event: Event) -> None:
        if isinstance(event, PeerHeaders):
            self.server.accept()


def _with(config: Config, delivery: Delivery) -> Config:
    """Return a configuration with the times of a delivery."""
    return replace(
        config,
        ack_delay=delivery.ack_delay,
        receipt_deadline_min=delivery.receipt_deadline_min,
        receipt_deadline_max=delivery.receipt_deadline_max,
    )
