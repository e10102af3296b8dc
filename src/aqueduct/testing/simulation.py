"""One run from one seed: two applications on a faulty network, a drain without faults, a check."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from aqueduct.errors import CloseCode
from aqueduct.testing.checkers import Violation, check
from aqueduct.testing.clock import seeded
from aqueduct.testing.endpoint import CoreFailed
from aqueduct.testing.faults import Faults, draw_faults
from aqueduct.testing.pair import Pair
from aqueduct.testing.plan import WorkloadPlan, draw_plan, with_delivery, with_priorities
from aqueduct.testing.record import MessageSent, Record
from aqueduct.testing.workload import Application, WorkloadBudget
from aqueduct.wire.chanid import Side

DRAIN_TURN = 0.05
DRAIN_TIMEOUT = 30.0
"""Virtual seconds after the faults stop within which everything must have ended."""


R = TypeVar("R")


@dataclass
class RunOutcome(Generic[R]):
    """The result of one run, of either protocol."""

    seed: int
    record: R
    violations: list[Violation]
    counts: dict[str, int]
    """The number of messages, and of channels or restarts."""
    virtual_time: float


class Simulation:
    """A run whose plan and faults are drawn from its seed unless the caller gives them."""

    def __init__(
        self, seed: int, *, plan: WorkloadPlan | None = None, faults: Faults | None = None
    ) -> None:
        self.seed = seed
        priorities = seeded(seed, "priorities")
        self.plan = plan or with_delivery(
            with_priorities(draw_plan(seeded(seed, "plan")), priorities), seeded(seed, "delivery")
        )
        if faults is None:
            faults = draw_faults(seeded(seed, "faults"), self.plan.duration)
            if self.plan.priorities:
                room = priorities.choice((0, 200, 1_000, 5_000))
                holds_datagrams = priorities.random() < 0.5
                faults = replace(faults, room=room, holds_datagrams=holds_datagrams)
        client_config, server_config = self.plan.configs
        self.pair = Pair(
            seed,
            faults=faults,
            client=client_config,
            server=server_config,
            accept=False,
            draft=self.plan.draft,
            delivery=self.plan.delivery,
        )
        budget = WorkloadBudget(self.plan.max_channels, self.plan.max_messages)
        self.applications = tuple(
            Application(endpoint, self.plan, seeded(seed, endpoint.side.name), budget)
            for endpoint in self.pair.endpoints
        )
        self.pair.on_input = self._after_input
        server = self.applications[Side.SERVER]
        server.on_client = lambda: self.pair.clock.after(
            self.plan.accept_delay, self._accept_or_refuse, server
        )
        self._random = seeded(seed, "schedule")

    def run(self) -> RunOutcome[Record]:
        """Run the simulation to its end and check it."""
        pair = self.pair
        record = pair.record
        clock = pair.clock
        plan = self.plan
        for application in self.applications:
            clock.after(plan.turn * self._random.random(), self._turn, application)
        if plan.lost_at is not None:
            clock.at(plan.lost_at, self._lose_connection, plan.lost_at)
        if plan.close_at is not None:
            clock.at(plan.close_at, self._close, self._random.choice(self.applications))
        if plan.leave_at is not None:
            clock.at(plan.leave_at, self._leave, self.applications[Side.CLIENT])
            pair.network.before_end = lambda side: self.applications[side].rescue()
        try:
            pair.run(plan.duration)
            pair.calm()
            for application in self.applications:
                clock.after(0.0, self._begin_to_drain, application)
            record.drained = pair.run_until_idle(DRAIN_TIMEOUT)
        except CoreFailed:
            pass
        except Exception as error:  # noqa: BLE001 - any error is a violation
            pair.endpoints[pair.network.active_side].record_fault("an input", error)
        record.leftovers = (pair.client.core.leftovers(), pair.server.core.leftovers())
        sent = [entry for entry in record.entries if isinstance(entry, MessageSent)]
        return RunOutcome(
            self.seed,
            record,
            check(record),
            {"messages": len(sent), "channels": sum(len(entry.attached) for entry in sent)},
            clock.now,
        )

    def _turn(self, application: Application) -> None:
        if application.draining or application.over:
            return
        application.turn()
        self._finish_turn(application)
        pause = self.plan.turn * self._random.expovariate(1.0)
        self.pair.clock.after(pause, self._turn, application)

    def _accept_or_refuse(self, server: Application) -> None:
        server.accept_or_refuse()
        self._finish_turn(server)

    def _begin_to_drain(self, application: Application) -> None:
        if not application.over:
            application.begin_to_drain()
            self._finish_turn(application)
            self._drain(application)

    def _drain(self, application: Application) -> None:
        if application.over or all(each.holds_nothing for each in self.applications):
            return
        application.drain()
        self._finish_turn(application)
        self.pair.clock.after(DRAIN_TURN, self._drain, application)

    def _finish_turn(self, application: Application) -> None:
        application.react()
        self.pair.network.flush(application.endpoint.side)

    def _after_input(self, side: Side) -> None:
        self.applications[side].react()

    def _lose_connection(self, time: float) -> None:
        self.pair.network.kill(CloseCode.IDLE, "the network is down", self._random.random())

    def _close(self, application: Application) -> None:
        if not application.over:
            application.endpoint.close_connection(CloseCode.NO_ERROR, "closed by the plan")
            self._finish_turn(application)

    def _leave(self, client: Application) -> None:
        if not client.over:
            client.leave()
            self._finish_turn(client)


def simulate(seed: int) -> RunOutcome[Record]:
    """Run one seed."""
    return Simulation(seed).run()
