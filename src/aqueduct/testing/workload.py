"""The simulated application, which uses every feature of the core in a random order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from aqueduct.errors import AqueductError, LocalProtocolError, MessageTooLarge, WouldBlock
from aqueduct.protocol.connection import Attach, ConnectionCore, Give, Mode
from aqueduct.protocol.events import (
    ConnectionEnded,
    Event,
    PeerHeaders,
    Readable,
    ReceiverEnded,
    SenderEnded,
    Writable,
)
from aqueduct.protocol.priorities import DEFAULT_PRIORITY
from aqueduct.runtime.receive_port import NetworkReceivePort
from aqueduct.testing.endpoint import CoreFailed, SimulatedEndpoint, stated_mode
from aqueduct.testing.plan import WorkloadPlan
from aqueduct.testing.ports import PortDriver
from aqueduct.wire.chanid import ENTRYPOINT, Side, is_oneshot, sender_of
from aqueduct.wire.frames import Attachment
from aqueduct.wire.primitives import HeaderPairs

POOL = Random("payloads").randbytes(16_384)
"""Payloads are slices of this at varying positions, so that misplaced bytes are detected."""

HEADERS: HeaderPairs = ((b"kind", b"test"), (b"kind", b""), (b"", b"\x00\xff"))


@dataclass(slots=True)
class SenderHandle:
    """The state of a sender that the application tracks."""

    channel: int
    mode: Mode
    mode_fixed: bool = False
    sent: int = 0
    open: bool = True
    blocked: bool = False
    hidden: bool = False
    """Whether a port has prefetched the message that carries it."""


@dataclass(slots=True)
class ReceiverHandle:
    """The state of a receiver that the application tracks."""

    channel: int
    eager: bool
    readable: bool = False
    hidden: bool = False
    """Whether a port has prefetched the message that carries it."""
    port: NetworkReceivePort | None = None
    """The port that prefetches its messages, if one does."""


@dataclass(slots=True)
class WorkloadBudget:
    """The channels and messages that both applications may still create."""

    channels: int
    messages: int


class Application:
    """The application of one side, driven by its plan and its RNG."""

    def __init__(
        self,
        endpoint: SimulatedEndpoint,
        plan: WorkloadPlan,
        random: Random,
        budget: WorkloadBudget,
    ) -> None:
        self.endpoint = endpoint
        self.plan = plan
        self.random = random
        self.budget = budget
        self.senders: dict[int, SenderHandle] = {}
        self.receivers: dict[int, ReceiverHandle] = {}
        self.on_client: Callable[[], None] | None = None
        """Called at the server when the headers of the client arrived."""
        self.over = False
        self.draining = False
        self._serial = 0
        self._priorities = Random(f"{endpoint.side.name} {plan.priority_seed}")
        self._ready: dict[int, ReceiverHandle] = {}
        self._operations = [name for name, _ in plan.weights]
        self._weights = [weight for _, weight in plan.weights]
        self._driver = PortDriver(
            endpoint,
            on_taken=lambda attachments: self._adopt(attachments, hidden=True),
            on_discarded=lambda attachment: self._disown(attachment.channel),
        )
        endpoint.on_event = self._learn
        if endpoint.side == Side.CLIENT:
            self._adopt_sender(ENTRYPOINT, Mode.ORDERED)

    @property
    def holds_nothing(self) -> bool:
        """Whether every half of this application has ended."""
        return self.over or not (self.senders or self.receivers)

    def turn(self) -> None:
        """Do a few random operations."""
        for _ in range(self.random.randint(1, self.plan.operations)):
            if self.over:
                return
            (name,) = self.random.choices(self._operations, self._weights)
            if name == "send":
                self._send_somewhere(1)
            elif name == "burst":
                self._send_somewhere(self.random.randint(1, self.plan.burst))
            elif name == "take":
                self._take_somewhere()
            elif name == "close":
                self._close_somewhere()
            elif name == "stop":
                self._stop_somewhere()
            else:
                self._end_somewhere(name)

    def react(self) -> None:
        """Drain the eager receivers that are readable; those of ports over several reactions."""
        slow: dict[int, ReceiverHandle] = {}
        while self._ready and not self.over:
            _, handle = self._ready.popitem()
            while handle.readable and handle.channel in self.receivers:
                self._take(handle, self.random.choice((1, 2, 100)))
                if handle.port is not None and self.random.random() < 0.5:
                    slow[handle.channel] = handle
                    break
        self._ready.update(slow)

    def leave(self) -> None:
        """Leave in good order, as a client."""
        handle = self.senders.get(ENTRYPOINT)
        if handle is not None:
            handle.open = False
        self.endpoint.leave()

    def rescue(self) -> None:
        """Take everything that has arrived, because the connection ends."""
        while readable := [handle for handle in self.receivers.values() if handle.readable]:
            self._take(readable[0], 1_000_000)

    def begin_to_drain(self) -> None:
        """Create nothing new from now on, and start to drain."""
        self.draining = True
        for handle in list(self.receivers.values()):
            if not handle.hidden:
                self._prepare_to_drain(handle)
        self.react()

    def drain(self) -> None:
        """End every sender that is open and not blocked."""
        self.react()
        for handle in list(self.senders.values()):
            if self.over:
                return
            if handle.hidden or not self._may_end(handle):
                continue
            if self.random.random() < 0.3 and self._room_for(handle):
                self._send(handle)
            if self._may_end(handle):
                handle.open = False
                if self.random.random() < self.plan.drain_cancel:
                    self.endpoint.cancel(handle.channel)
                else:
                    self.endpoint.finish(handle.channel)

    def accept_or_refuse(self) -> None:
        """Accept or refuse the client, as the plan says."""
        if self.over:
            return
        if self.plan.refuse:
            self.endpoint.refuse()
        else:
            self._adopt_receiver(ENTRYPOINT)
            self.endpoint.accept()

    def _may_end(self, handle: SenderHandle) -> bool:
        # A peer that knows only the draft gives no credit back: a blocked sender stays blocked.
        return handle.open and (not handle.blocked or self.plan.draft is not None)

    # Events

    def _learn(self, event: Event) -> None:
        if isinstance(event, Readable):
            receiver = self.receivers.get(event.channel)
            if receiver is not None:
                receiver.readable = True
                if receiver.port is not None:
                    receiver.port.handle_readable()
                if not receiver.hidden and (receiver.eager or self.draining):
                    self._ready[event.channel] = receiver
        elif isinstance(event, Writable):
            if event.channel in self.senders:
                self.senders[event.channel].blocked = False
        elif isinstance(event, SenderEnded):
            self.senders.pop(event.channel, None)
        elif isinstance(event, ReceiverEnded):
            self._learn_end(event)
        elif isinstance(event, PeerHeaders):
            if self.on_client is not None:
                self.on_client()
        elif isinstance(event, ConnectionEnded):
            self.over = True

    def _learn_end(self, event: ReceiverEnded) -> None:
        """Forget a receiver, or receive the rest from its port, which then raises the end."""
        receiver = self.receivers.get(event.channel)
        if receiver is None:
            return
        if receiver.port is not None:
            receiver.port.handle_end(event)
            receiver.readable = True
            if not receiver.hidden:
                self._ready[event.channel] = receiver
        else:
            del self.receivers[event.channel]

    # Handles

    def _adopt_sender(self, channel: int, mode: Mode) -> None:
        self.senders[channel] = SenderHandle(channel, mode)

    def _adopt_receiver(self, channel: int) -> None:
        handle = ReceiverHandle(channel, eager=self.random.random() < self.plan.eager)
        self.receivers[channel] = handle
        # A compiled port takes no other core than its own.
        if self.random.random() < self.plan.prefetch and not self.endpoint.knows_draft_only:
            handle.port = self._driver.open(channel)

    def _prepare_to_drain(self, handle: ReceiverHandle) -> None:
        if self.random.random() < self.plan.drain_close:
            self._close(handle)
        elif handle.readable:
            self._ready[handle.channel] = handle

    def _adopt(self, attachments: Sequence[Attachment], *, hidden: bool = False) -> None:
        """Track the halves in messages that were taken; a port shows them later."""
        for attachment in attachments:
            channel = attachment.channel
            if sender_of(channel) == self.endpoint.side:
                self._adopt_sender(channel, stated_mode(attachment.headers))
                self.senders[channel].hidden = hidden
            else:
                self._adopt_receiver(channel)
                self.receivers[channel].hidden = hidden

    def _disown(self, channel: int) -> None:
        """Forget a half in a message that was discarded before the application received it."""
        self.receivers.pop(channel, None)
        if channel in self.senders:
            self.senders[channel].open = False

    def _show(self, channels: list[int]) -> None:
        """Use the halves in messages that the application has received."""
        for channel in channels:
            if channel in self.senders:
                self.senders[channel].hidden = False
            elif channel in self.receivers:
                receiver = self.receivers[channel]
                receiver.hidden = False
                if receiver.readable and receiver.eager:
                    self._ready[channel] = receiver
        for channel in channels:
            if self.random.random() < self.plan.unclaimed:
                self._give_up(channel)
        if self.draining:
            for channel in channels:
                if channel in self.receivers:
                    self._prepare_to_drain(self.receivers[channel])

    def _give_up(self, channel: int) -> None:
        if channel in self.senders:
            self.senders[channel].open = False
            self.endpoint.cancel(channel)
        elif channel in self.receivers:
            self._close(self.receivers[channel])

    # Operations

    def _send_somewhere(self, count: int) -> None:
        open_senders = [
            handle for handle in self.senders.values() if handle.open and not handle.hidden
        ]
        if not open_senders:
            return
        handle = self.random.choice(open_senders[-6:])
        for _ in range(count):
            if not self._room_for(handle):
                return
            made = self._send(handle)
            while made is not None and self.random.random() < self.plan.send_ahead:
                if not self._room_for(made):
                    break
                made = self._send(made)

    def _room_for(self, handle: SenderHandle) -> bool:
        if self.budget.messages <= 0 or not handle.open or handle.channel not in self.senders:
            return False
        return not handle.blocked or self.random.random() < 0.1

    def _send(self, handle: SenderHandle) -> SenderHandle | None:
        """Send one message; return the sender of a channel made for it, or None."""
        if not handle.mode_fixed:
            handle.mode_fixed = True
            if self.random.random() < self.plan.choose_mode or self.endpoint.knows_draft_only:
                handle.mode = self.random.choice(self.plan.modes)
                self.endpoint.set_mode(handle.channel, handle.mode)
        if self.plan.priorities and self._priorities.random() < 0.1:
            self.endpoint.set_priority(handle.channel, self._draw_priority())
        attach = self._draw_attachments()
        headers = HEADERS if self.random.random() < self.plan.headers else ()
        payload = self._draw_payload()
        channels: tuple[int, ...] = ()
        try:
            if attach or headers or self.random.random() < 0.1:
                sent = self.endpoint.send_message(
                    handle.channel, payload, headers=headers, attach=attach
                )
                channels = sent.channels
            else:
                self.endpoint.send(handle.channel, payload)
        except WouldBlock:
            handle.blocked = True
            return None
        except (MessageTooLarge, LocalProtocolError):
            return None
        except CoreFailed:
            raise
        except AqueductError:
            # The checkers decide whether the core was right to raise it.
            handle.open = False
            return None
        handle.blocked = False
        handle.sent += 1
        self.budget.messages -= 1
        if is_oneshot(handle.channel):
            handle.open = False
        return self._keep(channels, attach)

    def _keep(self, channels: tuple[int, ...], attach: list[Attach]) -> SenderHandle | None:
        self.budget.channels -= len(channels)
        sender = None
        for channel, each in zip(channels, attach, strict=bool(channels)):
            if each.give is Give.SENDER:
                self._adopt_receiver(channel)
            else:
                self._adopt_sender(channel, each.mode)
                sender = self.senders[channel]
        return sender

    def _draw_attachments(self) -> list[Attach]:
        if self.draining or self.budget.channels <= 0:
            return []
        if self.random.random() >= self.plan.attach:
            return []
        count = min(self.random.choice((1, 1, 1, 2, 3)), self.budget.channels)
        return [
            Attach(
                give=self.random.choice((Give.SENDER, Give.RECEIVER)),
                oneshot=self.random.random() < self.plan.oneshot,
                headers=HEADERS if self.random.random() < self.plan.headers else (),
                mode=self.random.choice(self.plan.modes),
                priority=self._draw_priority(),
            )
            for _ in range(count)
        ]

    def _draw_priority(self) -> int:
        if not self.plan.priorities:
            return DEFAULT_PRIORITY
        return self._priorities.choice(self.plan.priorities)

    def _draw_payload(self) -> bytes:
        size = self.random.choice(self.plan.sizes)
        if self.random.random() < 0.7:
            size = self.random.randint(0, size)
        if size == 0:
            return b""
        self._serial += 1
        tag = self._serial.to_bytes(4, "big")
        start = self._serial * 37 % 8000
        return (tag + POOL[start : start + max(size - 4, 0)])[:size] if size >= 4 else tag[-size:]

    def _take_somewhere(self) -> None:
        readable = [
            handle for handle in self.receivers.values() if handle.readable and not handle.hidden
        ]
        if readable:
            handle = self.random.choice(readable)
            self._take(handle, self.random.randint(1, self.plan.take_limit))

    def _take(self, handle: ReceiverHandle, limit: int) -> None:
        if handle.port is not None:
            self._receive(handle, handle.port, limit)
            return
        messages = self.endpoint.take(handle.channel, limit)
        if len(messages) < limit:
            handle.readable = False
        # All halves must be adopted before one is used: that raises events about the others.
        attachments = [each for message in messages for each in message.attachments]
        self._adopt(attachments)
        self._show([each.channel for each in attachments])
        self.endpoint.gather()

    def _receive(self, handle: ReceiverHandle, port: NetworkReceivePort, limit: int) -> None:
        """Receive from a port, until its end or the limit."""
        for _ in range(limit):
            try:
                message = self.endpoint.receive(handle.channel, port)
            except CoreFailed:
                raise
            except AqueductError:
                self.receivers.pop(handle.channel, None)  # the end of the channel
                break
            if message is None:
                handle.readable = False
                break
            self._show([each.channel for each in message.attachments])
            self.endpoint.gather()
            if handle.channel not in self.receivers:
                return
        self.endpoint.gather()

    def _spares(self, channel: int) -> bool:
        """Return whether to leave a half open: without the entrypoint little more can happen."""
        return channel == ENTRYPOINT and self.random.random() < self.plan.spare_entrypoint

    def _close_somewhere(self) -> None:
        shown = [handle for handle in self.receivers.values() if not handle.hidden]
        if shown:
            handle = self.random.choice(shown)
            if not self._spares(handle.channel):
                self._close(handle)

    def _stop_somewhere(self) -> None:
        if self.receivers:
            handle = self.random.choice(list(self.receivers.values()))
            if self._spares(handle.channel):
                return
            core: object = self.endpoint.core
            if isinstance(core, ConnectionCore):
                self.endpoint.stop(handle.channel)
            else:
                self._close(handle)  # a peer that knows only the draft cannot stop

    def _close(self, handle: ReceiverHandle) -> None:
        self.receivers.pop(handle.channel, None)
        self.endpoint.close(handle.channel)
        if handle.port is not None:
            handle.port.close()
            self.endpoint.gather()

    def _end_somewhere(self, name: str) -> None:
        shown = [handle for handle in self.senders.values() if not handle.hidden]
        if not shown:
            return
        handle = self.random.choice(shown)
        if handle.open:
            if name == "misuse" or self._spares(handle.channel):
                return
            handle.open = False
        elif name != "misuse":
            return
        # Ending a sender twice is allowed and must change nothing.
        if name == "cancel" or (name == "misuse" and self.random.random() < 0.5):
            self.endpoint.cancel(handle.channel)
        else:
            self.endpoint.finish(handle.channel)
