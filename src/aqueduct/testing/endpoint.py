"""One side of a simulated connection: a core whose commands and events are recorded."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from aqueduct.errors import AqueductError, CloseCode
from aqueduct.observe.base import Observer
from aqueduct.protocol.connection import Attach, ConnectionCore, Give, Mode, SentMessage
from aqueduct.protocol.events import Event
from aqueduct.runtime.ports import NOTHING, Message
from aqueduct.runtime.receive_port import NetworkReceivePort
from aqueduct.testing.checkers.rules import SAFE_DATAGRAM_SIZE
from aqueduct.testing.clock import VirtualClock
from aqueduct.testing.record import (
    NO_CHANNEL,
    AttachedChannel,
    CommandCalled,
    CoreFault,
    MessageReceived,
    MessageSent,
    RecordEntry,
    SendFailed,
)
from aqueduct.wire.chanid import ENTRYPOINT, sender_of
from aqueduct.wire.frames import MessageFrame, MessageRun
from aqueduct.wire.primitives import HeaderPairs, headers_size

Result = TypeVar("Result")


class CoreFailed(AqueductError):
    """A core raised an undocumented error."""


class SendCounter:
    """Counts the messages that the application gave a sender."""

    __slots__ = ("sent",)

    def __init__(self) -> None:
        self.sent = 0

    def statistics(self) -> dict[str, int]:
        return {"sent": self.sent}


def stated_mode(headers: HeaderPairs) -> Mode:
    """Return the mode with which the holder of a sender starts, read from its channel's headers."""
    names = [value.decode() for name, value in headers if name == b"aqueduct-mode"]
    return Mode(names[-1]) if names else Mode.ORDERED


def _expected_headers(attach: Attach) -> HeaderPairs:
    """Return the headers of a new channel on the wire."""
    if attach.give is Give.RECEIVER or attach.mode is Mode.ORDERED:
        return attach.headers
    return (*attach.headers, (b"aqueduct-mode", attach.mode.value.encode()))


class SimulatedEndpoint:
    """Calls the commands of a core at the virtual time, and gathers its events.

    The methods are those of the core without ``now``. What they queue is sent by the next
    ``Pair.run``, as at the end of an iteration of the event loop.
    """

    def __init__(
        self,
        core: ConnectionCore,
        clock: VirtualClock,
        entries: list[RecordEntry],
        observers: Sequence[Observer],
        *,
        knows_draft_only: bool = False,
    ) -> None:
        self.side = core.side
        self.core = core
        self.knows_draft_only = knows_draft_only
        self.events: list[Event] = []
        self.on_event: Callable[[Event], None] | None = None
        self.on_accept: Callable[[], None] | None = None
        self._clock = clock
        self._entries = entries
        self._observers = observers
        self._counters: dict[int, SendCounter] = {}
        self._modes: dict[int, Mode] = {}

    @property
    def now(self) -> float:
        """The virtual time."""
        return self._clock.now

    def accept(self, headers: HeaderPairs = ()) -> None:
        """Accept the client."""
        self._call("accept", NO_CHANNEL, lambda now: self.core.accept(headers, now))
        if self.on_accept is not None:
            self.on_accept()

    def refuse(self, code: CloseCode = CloseCode.REFUSED, reason: str = "") -> None:
        """Refuse the client."""
        self._call("refuse", NO_CHANNEL, lambda now: self.core.refuse(code, reason, now))

    def send(self, channel: int, payload: bytes) -> int:
        """Send a plain message."""
        reliable = self._modes.get(channel) is not Mode.UNRELIABLE
        if not reliable and len(payload) > SAFE_DATAGRAM_SIZE:
            # ``send`` does not return whether the message fitted a datagram.
            return self.send_message(channel, payload).number
        number = self._sending(
            channel, len(payload), (), (), lambda now: self.core.send(channel, payload, now)
        )
        self._count(channel)
        self._entries.append(
            MessageSent(self._clock.now, self.side, channel, number, reliable, payload, (), ())
        )
        self.gather()
        return number

    def send_message(
        self,
        channel: int,
        payload: bytes,
        *,
        headers: HeaderPairs = (),
        attach: Sequence[Attach] = (),
    ) -> SentMessage:
        """Send a message with headers, or with channels attached to it."""
        sent = self._sending(
            channel,
            len(payload),
            headers,
            attach,
            lambda now: self.core.send_message(
                channel, payload, now, headers=headers, attach=attach
            ),
        )
        self._count(channel)
        modes = [self._mode_of(each) for each in attach]
        self._modes.update(zip(sent.channels, modes, strict=True))
        if attach:
            names = [mode.value for mode in modes]
            for observer in self._observers:
                observer.channels_created(channel, sent.number, sent.reliable, sent.channels, names)
        attached = tuple(
            AttachedChannel(
                made,
                each.headers if self.knows_draft_only else _expected_headers(each),
                mode.name,
                each.priority,
            )
            for made, each, mode in zip(sent.channels, attach, modes, strict=True)
        )
        self._entries.append(
            MessageSent(
                self._clock.now,
                self.side,
                channel,
                sent.number,
                sent.reliable,
                payload,
                headers,
                attached,
            )
        )
        self.gather()
        return sent

    def _mode_of(self, attach: Attach) -> Mode:
        """Return the mode in which the sender of a new channel starts, at either side."""
        if self.knows_draft_only and attach.give is Give.SENDER:
            return Mode.ORDERED  # the draft has no header that says it
        return attach.mode

    def set_mode(self, channel: int, mode: Mode) -> None:
        """Set the mode of a sender, before its first message."""
        self._modes[channel] = mode
        self._call("set mode", channel, lambda now: self.core.set_mode(channel, mode), mode.name)

    def set_priority(self, channel: int, priority: int) -> None:
        """Set the priority class of a sender."""
        self._call(
            "set priority",
            channel,
            lambda _: self.core.set_priority(channel, priority),
            str(priority),
        )

    def finish(self, channel: int) -> None:
        """Finish a sender: no more messages follow."""
        self._call("finish", channel, lambda now: self.core.finish(channel, now))

    def cancel(self, channel: int) -> None:
        """Cancel a sender and what it has sent."""
        self._call("cancel", channel, lambda now: self.core.cancel(channel, now))

    def close(self, channel: int) -> None:
        """Close a receiver."""
        for observer in self._observers:
            observer.receiver_closed(channel)
        self._call("close", channel, lambda now: self.core.close(channel, now))

    def stop(self, channel: int) -> None:
        """Stop receiving, and keep what has arrived."""
        self._call("stop", channel, lambda now: self.core.close(channel, now, keep_queue=True))

    def take(self, channel: int, limit: int = 1_000_000) -> list[MessageFrame]:
        """Take up to ``limit`` messages from a receiver's queue.

        Events that this causes wait for the next ``gather``, so that the caller can adopt the
        halves in the messages first.
        """
        now = self._clock.now
        taken = self._guard("take", lambda: self.core.take(channel, limit, now))
        messages = self.record_taken(channel, taken)
        if len(messages) > limit:
            self._entries.append(CoreFault(now, self.side, f"take gave {len(messages)} of {limit}"))
        return messages

    def record_taken(
        self, channel: int, taken: Sequence[MessageFrame | MessageRun]
    ) -> list[MessageFrame]:
        """Record messages that were taken from the core, and return each of them."""
        messages: list[MessageFrame] = []
        for item in taken:
            if isinstance(item, MessageRun):
                messages.extend(item.messages())
            else:
                messages.append(item)
        if messages:
            for observer in self._observers:
                observer.messages_taken(channel, messages)
        for message in messages:
            for attachment in message.attachments:
                self._modes[attachment.channel] = stated_mode(attachment.headers)
        return messages

    def record_prefetch(self, channel: int) -> None:
        """Record that a port prefetches the messages of a receiver."""
        self._entries.append(CommandCalled(self.now, self.side, "prefetch", channel))

    def receive(self, channel: int, port: NetworkReceivePort) -> Message[bytes] | None:
        """Receive one message from a port, or return None if it has none.

        Raises the end of the channel. The next ``gather`` collects the events, as after ``take``.
        """
        message = self._guard("receive", port.pop_message)
        if message is NOTHING:
            return None
        self._entries.append(MessageReceived(self.now, self.side, channel, message.number))
        return cast("Message[bytes]", message)

    def abandon(self, channel: int) -> None:
        """End a half that no application got; the caller's ``gather`` collects the events."""
        if sender_of(channel) == self.side:
            self._entries.append(CommandCalled(self.now, self.side, "cancel", channel))
            self._guard("cancel", lambda: self.core.cancel(channel, self.now))
        else:
            self._entries.append(CommandCalled(self.now, self.side, "close", channel))
            self._guard("close", lambda: self.core.close(channel, self.now))

    def leave(self) -> None:
        """Leave in good order, as a client."""
        self._call("leave", ENTRYPOINT, self.core.leave)

    def close_connection(self, code: CloseCode = CloseCode.NO_ERROR, reason: str = "") -> None:
        """Close the connection."""
        self._call(
            "close connection",
            NO_CHANNEL,
            lambda now: self.core.close_connection(code, reason, now),
            reason,
        )

    def gather(self) -> None:
        """Collect the events of the core; the network calls this after each input."""
        while events := self.core.poll_events():
            for event in events:
                for observer in self._observers:
                    observer.events_raised((event,), self._counters)
                self.events.append(event)
                if self.on_event is not None:
                    self.on_event(event)

    def events_of(self, kind: type[Result]) -> list[Result]:
        """Return the events of one class so far."""
        return [event for event in self.events if isinstance(event, kind)]

    def _count(self, channel: int) -> None:
        counter = self._counters.get(channel)
        if counter is None:
            counter = self._counters[channel] = SendCounter()
        counter.sent += 1

    def _call(
        self, verb: str, channel: int, command: Callable[[float], None], detail: str = ""
    ) -> None:
        now = self._clock.now
        self._entries.append(CommandCalled(now, self.side, verb, channel, detail))
        self._guard(verb, lambda: command(now))
        self.gather()

    def _sending(
        self,
        channel: int,
        size: int,
        headers: HeaderPairs,
        attach: Sequence[Attach],
        command: Callable[[float], Result],
    ) -> Result:
        now = self._clock.now
        try:
            return self._guard("send", lambda: command(now))
        except CoreFailed:
            raise
        except AqueductError as error:
            self._entries.append(
                SendFailed(
                    now,
                    self.side,
                    channel,
                    type(error).__name__,
                    size + headers_size(headers),
                    len(attach),
                    bool(headers) or any(each.headers for each in attach),
                )
            )
            self.gather()
            raise

    def _guard(self, verb: str, command: Callable[[], Result]) -> Result:
        try:
            return command()
        except AqueductError:
            raise
        except Exception as error:
            self.record_fault(verb, error)
            raise CoreFailed(verb) from error

    def record_fault(self, verb: str, error: Exception) -> None:
        """Record an undocumented error of the core, with the line that raised it."""
        frame = traceback.extract_tb(error.__traceback__)[-1]
        line = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
        text = f"{verb} raised {type(error).__name__}: {error} ({line})"
        self._entries.append(CoreFault(self._clock.now, self.side, text))
