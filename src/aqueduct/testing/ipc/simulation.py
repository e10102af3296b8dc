"""One run from one seed: endpoints that crash on a faulty network, a drain without faults, a check.

The drain has three parts: all transfers end, the ids of processed messages expire, and a message
from each endpoint to the next arrives.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from aqueduct.testing.clock import VirtualClock, seeded
from aqueduct.testing.faults import CALM, Faults, draw_faults
from aqueduct.testing.ipc.attackers import Forger, Hoarder
from aqueduct.testing.ipc.checkers import check
from aqueduct.testing.ipc.network import DatagramNetwork
from aqueduct.testing.ipc.peer import Peer
from aqueduct.testing.ipc.plan import NAMES, IpcPlan, draw_plan
from aqueduct.testing.ipc.record import IpcFault, IpcRecord, IpcSent, LifeStarted
from aqueduct.testing.simulation import RunOutcome

DRAIN_TIMEOUT = 60
"""Units of virtual time after the faults stop within which everything must have ended."""
FAREWELL = 1_200
"""The size of the last messages: several PDUs if these are small."""
ROUND_TRIP = 0.02
"""The round-trip time after the faults stop, as a fraction of a unit."""


class IpcSimulation:
    """A run whose plan and faults are drawn from its seed unless the caller gives them."""

    def __init__(
        self, seed: int, *, plan: IpcPlan | None = None, faults: Faults | None = None
    ) -> None:
        self.seed = seed
        self.plan = plan or draw_plan(seeded(seed, "ipc plan"))
        faults = faults or draw_stalls(seeded(seed, "ipc faults"), self.plan)
        self.clock = VirtualClock()
        self.record = IpcRecord(lateness=faults.lateness if faults.late_timer else 0.0)
        self.network = DatagramNetwork(self.clock, seeded(seed, "ipc network"), faults)
        self.network.deaf = self.plan.deaf
        self.peers = [
            Peer(seed, index, name, self.plan, self.clock, self.network, self.record)
            for index, name in enumerate(NAMES[: len(self.plan.configs)])
        ]
        self.forger = Forger(
            self.plan.garbage,
            seeded(seed, "ipc stranger"),
            self.clock,
            self.network,
            self.record,
        )
        self.hoarder = Hoarder(
            self.plan.hoard,
            self.plan.unit,
            seeded(seed, "ipc hoarder"),
            self.clock,
            self.network,
        )
        self._random = seeded(seed, "ipc schedule")
        self._left = self.plan.messages
        self._verbs, self._weights = zip(*self.plan.weights, strict=True)
        for peer in self.peers:
            peer.on_drop = self._report_drop

    def run(self) -> RunOutcome[IpcRecord]:
        """Run the simulation to its end and check it."""
        clock = self.clock
        record = self.record
        try:
            for peer in self.peers:
                peer.begin()
                clock.after(self.plan.turn * self._random.random(), self._turn, peer)
            self.hoarder.start(self.peers)
            clock.run(self.plan.duration)
            self._drain()
        except Exception as error:  # noqa: BLE001 - any error is a violation
            text = f"{type(error).__name__}: {error}"
            record.entries.append(IpcFault(clock.now, "core", 0, text))
        for peer in self.peers:
            peer.end()
        return RunOutcome(
            self.seed,
            record,
            check(record),
            {
                "messages": sum(type(entry) is IpcSent for entry in record.entries),
                "restarts": sum(
                    type(entry) is LifeStarted and entry.life > 1 for entry in record.entries
                ),
            },
            clock.now,
        )

    def _drain(self) -> None:
        clock = self.clock
        unit = self.plan.unit
        faults = self.network.faults
        self.network.faults = replace(CALM, delay=min(faults.delay, ROUND_TRIP / 2 * unit))
        self.network.deaf = ()
        self.forger.quiet = True
        for peer in self.peers:
            peer.draining = True
        clock.run(faults.delay + faults.jitter)
        for _ in range(DRAIN_TIMEOUT):
            clock.run(unit)
            if not any(
                peer.open_sends or peer.untaken or peer.exchange is None for peer in self.peers
            ):
                break
        clock.run(self._time_to_forget())
        names = [peer.name for peer in self.peers]
        for peer, remote in zip(self.peers, [*names[1:], names[0]], strict=True):
            peer.send(remote, FAREWELL, must_arrive=True)
            peer.turn_over()
        clock.run(unit)
        self.hoarder.begins = False
        clock.run(unit + self._time_to_forget())
        for peer in self.peers:
            if peer.exchange is not None:
                self.record.leftovers[peer.name] = peer.exchange.leftovers()
                self.record.processed[peer.name] = peer.exchange.processed
        self.record.drained = True

    def _time_to_forget(self) -> float:
        """Return the time until an abandoned transfer times out and its id expires."""
        longest = max(2 * peer.config.owner_id_lifetime for peer in self.peers)
        return longest + 2 * max(peer.config.receive_timeout for peer in self.peers) + 1e-6

    def _turn(self, peer: Peer) -> None:
        if peer.draining:
            return
        verb = self._random.choices(self._verbs, self._weights)[0]
        others = [each.name for each in self.peers if each is not peer]
        if verb == "send":
            if self._left > 0:
                self._left -= peer.send_something(others)
        elif verb == "change owner":
            peer.change_owner()
        elif verb == "resize":
            peer.resize(peer.life)
        elif verb == "crash":
            peer.crash(peer.life)
        elif verb == "close":
            peer.close()
        elif verb == "unreachable":
            peer.report_unreachable(self._random.choice(others))
        else:
            peer.report_transient_error(self._random.choice(others))
        peer.turn_over()
        self.clock.after(self.plan.turn * self._random.expovariate(1.0), self._turn, peer)

    def _report_drop(self, source: str, remote: str) -> None:
        """Report to some senders that the remote is down, as some transports do."""
        for peer in self.peers:
            if peer.name == source and self._random.random() < 0.3:
                peer.report_transient_error(remote)
                peer.turn_over()


def draw_stalls(random: Random, plan: IpcPlan) -> Faults:
    """Draw the faults; in some runs timers are late by up to a whole timeout."""
    faults = draw_faults(random, plan.duration)
    if random.random() < 0.2:
        faults = replace(faults, late_timer=0.3, lateness=plan.unit * random.choice((0.3, 1.0)))
    return faults


def simulate(seed: int) -> RunOutcome[IpcRecord]:
    """Run one seed."""
    return IpcSimulation(seed).run()
