"""A simulated endpoint across its restarts, and the application that uses it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from aqueduct.errors import WouldBlock
from aqueduct.ipc.core.events import Arrived, Ended
from aqueduct.ipc.core.exchange import Exchange
from aqueduct.ipc.core.outgoing import OutgoingTransfer
from aqueduct.ipc.core.settings import IpcSettings
from aqueduct.testing.clock import StuckTimer, VirtualClock, seeded
from aqueduct.testing.ipc.network import DatagramNetwork
from aqueduct.testing.ipc.plan import IpcPlan, draw_max_pdu, draw_size
from aqueduct.testing.ipc.record import (
    Cancelled,
    IpcArrived,
    IpcEnded,
    IpcRecord,
    IpcRefused,
    IpcSendFailed,
    IpcSent,
    IpcTaken,
    IpcWithdrawn,
    LifeStarted,
    LifeStopped,
    OwnerIdChanged,
    PduArrived,
    PduSent,
    RemoteFailed,
    Reported,
    Resized,
)

SOON = 0.2
"""The fraction of a unit within which a follow-up action happens."""
RESIZED_AGAIN = 0.7


class Peer:
    """A name on the network, the endpoint that owns it now, and its application."""

    def __init__(
        self,
        seed: int,
        index: int,
        name: str,
        plan: IpcPlan,
        clock: VirtualClock,
        network: DatagramNetwork,
        record: IpcRecord,
    ) -> None:
        self.name = name
        self.life = 0
        self.exchange: Exchange | None = None
        self.draining = False
        self.open_sends: set[bytes] = set()
        self.untaken = 0
        """Messages that the application has neither taken nor refused."""
        self.on_drop: Callable[[str, str], None] = lambda source, name: None
        """Called when a datagram arrives while no endpoint runs."""
        self.config: IpcSettings = plan.configs[index]
        self._seed = seed
        self._plan = plan
        self._reports_sent = plan.reports_sent[index]
        self._clock = clock
        self._network = network
        self._record = record.entries
        self._most_held = record.most_held
        self._random: Random = seeded(seed, name)
        self._max_pdu = self.config.max_pdu
        self._large = self._max_pdu > 1_000
        self._owner = b""
        self._timer: float | None = None
        network.receivers[name] = self.receive

    # Lives

    def begin(self, _: object = None) -> None:
        """Start an endpoint without any state of the previous one."""
        self.life += 1
        rng = seeded(self._seed, f"{self.name}/{self.life}")
        now = self._clock.now
        self.exchange = Exchange(self.config, rng, now, reports_sent=self._reports_sent)
        self._record.append(
            LifeStarted(now, self.name, self.life, self.config, self._reports_sent),
        )
        self._max_pdu = self.config.max_pdu
        self._timer = None
        self.turn_over()

    def crash(self, life: int) -> None:
        """Stop at once and lose all state."""
        if self.exchange is not None and self.life == life and not self.draining:
            self._stop("crashed")

    def close(self) -> None:
        """Close the endpoint, send what that causes, and stop."""
        if self.exchange is not None:
            self.exchange.close(self._clock.now)
            self.turn_over()
            self._stop("closed")

    def end(self) -> None:
        """Record the final statistics: the run is over."""
        if self.exchange is not None:
            self._note_stop("ended")

    def _stop(self, how: str) -> None:
        self._note_stop(how)
        self.exchange = None
        self.open_sends.clear()
        self._clock.after(self._plan.pause * self._random.random(), self.begin, None)

    def _note_stop(self, how: str) -> None:
        assert self.exchange is not None
        counts = self.exchange.statistics
        self._record.append(LifeStopped(self._clock.now, self.name, self.life, how, counts))

    # What the application does

    def send(self, remote: str, size: int, *, must_arrive: bool = False) -> None:
        """Send a message with a unique random payload."""
        exchange = self.exchange
        if exchange is None:
            return
        now = self._clock.now
        payload = self._random.randbytes(size)
        try:
            message = exchange.send(remote, payload, now)
        except WouldBlock as error:
            self._record.append(IpcSendFailed(now, self.name, self.life, str(error)))
            return
        self.open_sends.add(message)
        self._record.append(
            IpcSent(now, self.name, self.life, message, remote, payload, must_arrive),
        )
        if not must_arrive and self._random.random() < self._plan.cancel:
            when = self._plan.unit * self._random.random() ** 2
            self._clock.after(when, self._cancel, (self.life, message))

    def send_something(self, remotes: list[str]) -> int:
        """Send some messages to one of the remotes; return how many."""
        remote = self._random.choice(remotes)
        count = self._random.randint(1, self._plan.burst)
        for _ in range(count):
            self.send(remote, draw_size(self._random, self._max_pdu, self._plan.pdus))
        return count

    def change_owner(self) -> None:
        """Change to a new owner id."""
        if self.exchange is not None:
            self.exchange.change_owner(self._clock.now)

    def resize(self, life: int) -> None:
        """Change the maximum PDU size, and perhaps soon again."""
        if self.exchange is not None and self.life == life and not self.draining:
            self._max_pdu = draw_max_pdu(self._random, self._large)
            self.exchange.resize(self._max_pdu)
            self._record.append(Resized(self._clock.now, self.name, self.life, self._max_pdu))
            if self._random.random() < RESIZED_AGAIN:
                soon = SOON * self._plan.unit * self._random.random()
                self._clock.after(soon, self.resize, life)

    def report_transient_error(self, remote: str) -> None:
        """Report a temporary transport error for a remote."""
        if self.exchange is not None:
            self.exchange.handle_transient_error(remote, "connection refused")
            self._record.append(RemoteFailed(self._clock.now, self.name, self.life, remote))

    def report_unreachable(self, remote: str) -> None:
        """Report that a remote is permanently unreachable."""
        if self.exchange is not None:
            now = self._clock.now
            self._record.append(RemoteFailed(now, self.name, self.life, remote, permanent=True))
            self.exchange.handle_unreachable(remote, "certificate expired", now)

    def _cancel(self, what: tuple[int, bytes]) -> None:
        life, message = what
        if self.exchange is None or self.life != life or message not in self.open_sends:
            return
        self._record.append(Cancelled(self._clock.now, self.name, life, message))
        self.exchange.cancel(message, self._clock.now)
        self.turn_over()

    def _decide(self, what: tuple[int, Arrived]) -> None:
        """Take or refuse a message."""
        life, arrived = what
        self.untaken -= 1
        exchange = self.exchange
        if exchange is None or self.life != life:
            return
        now = self._clock.now
        message = arrived.message_id
        if not self.draining and self._random.random() < self._plan.refuse:
            if exchange.holds(message):
                self._record.append(IpcRefused(now, self.name, life, message))
            exchange.refuse(message)
        elif exchange.take(message):
            source = str(arrived.remote)
            self._record.append(IpcTaken(now, self.name, life, message, source, arrived.payload))
            if self._random.random() < self._plan.crash_after_take:
                soon = SOON * self._plan.unit * self._random.random()
                self._clock.after(soon, self.crash, life)
        else:
            self._record.append(IpcWithdrawn(now, self.name, life, message))
        self.turn_over()

    # What the network and the clock do

    def receive(self, source: str, datagram: bytes) -> None:
        """Handle a datagram from the network."""
        exchange = self.exchange
        if exchange is None:
            self.on_drop(source, self.name)
            return
        now = self._clock.now
        self._record.append(PduArrived(now, self.name, self.life, source, datagram))
        exchange.handle_pdu(datagram, source, now)
        self._note_held(exchange)
        self.turn_over()

    def _note_held(self, exchange: Exchange) -> None:
        held = exchange.leftovers()
        count = held.get("incoming", 0) + held.get("withdrawn", 0)
        size = held.get("bytes received", 0)
        most = self._most_held.get((self.name, self.life), (0, 0))
        self._most_held[self.name, self.life] = max(count, most[0]), max(size, most[1])

    def turn_over(self) -> None:
        """Poll the core after any input: events, PDUs to send, timer."""
        exchange = self.exchange
        if exchange is None:
            return
        now = self._clock.now
        if exchange.owner != self._owner:
            self._owner = exchange.owner
            self._record.append(OwnerIdChanged(now, self.name, self.life, self._owner))
        for event in exchange.poll_events():
            if isinstance(event, Arrived):
                self._record.append(IpcArrived(now, self.name, self.life, event.message_id))
                eager = self.draining or self._random.random() < self._plan.eager
                delay = 0.0 if eager else self._plan.take_delay * self._random.expovariate(1.0)
                self.untaken += 1
                self._clock.after(delay, self._decide, (self.life, event))
            elif isinstance(event, Ended):  # a withdrawn message ends in _decide
                self.open_sends.discard(event.message_id)
                self._record.append(
                    IpcEnded(now, self.name, self.life, event.message_id, event.code, event.exposed)
                )
        self._transmit(exchange, now)
        self._set_timer(exchange)

    def _transmit(self, exchange: Exchange, now: float) -> None:
        for remote, head, data, sending in exchange.poll_transmits():
            pdu = head + data if data else head
            name = str(remote)
            self._record.append(PduSent(now, self.name, self.life, name, pdu))
            if sending is None or not self._reports_sent:
                self._network.carry(self.name, name, pdu)
                continue
            if self.draining or self._random.random() >= self._plan.report_fails:
                self._network.carry(self.name, name, pdu)
            delay = 0.0 if self.draining else self._plan.report_delay * self._random.random()
            self._clock.after(delay, self._report, (self.life, sending))

    def _report(self, what: tuple[int, OutgoingTransfer]) -> None:
        life, sending = what
        if self.exchange is not None and self.life == life:
            now = self._clock.now
            self._record.append(Reported(now, self.name, life, sending.message_id))
            self.exchange.handle_sent(sending, now)
            self.turn_over()

    def _set_timer(self, exchange: Exchange) -> None:
        due = exchange.next_timer()
        waiting = self._timer
        if waiting is not None and waiting <= due:
            return
        self._timer = due
        faults = self._network.faults
        at = due
        if faults.late_timer and self._random.random() < faults.late_timer:
            at += faults.lateness * self._random.random()
        self._clock.at(at, self._timer_due, (self.life, due))

    def _timer_due(self, what: tuple[int, float]) -> None:
        life, wanted = what
        exchange = self.exchange
        if exchange is None or self.life != life or self._timer != wanted:
            return
        self._timer = None
        now = self._clock.now
        if exchange.next_timer() <= now or self._random.random() < (
            self._network.faults.spurious_timer
        ):
            exchange.handle_timer(now)
            if exchange.next_timer() <= now:
                raise StuckTimer(f"the timer stays at {now:.6f}")
        self.turn_over()
