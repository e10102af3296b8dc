"""A channel within one process: the state of two handles until one of them is sent away."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from aqueduct.codec import ChannelHalf
from aqueduct.codec.checks import TypeCheck
from aqueduct.errors import (
    AqueductError,
    ChannelCancelled,
    ChannelClosed,
    EndOfChannel,
    ReceiverClosed,
    WouldBlock,
)
from aqueduct.protocol.modes import Mode, check_mode
from aqueduct.protocol.priorities import DEFAULT_PRIORITY, check_priority
from aqueduct.runtime.encoding import Encoding
from aqueduct.runtime.ports import (
    NOTHING,
    Description,
    Outcome,
    Parcel,
    Receipt,
    discard,
    mode_is_fixed,
)
from aqueduct.runtime.waiters import LocalWaiters
from aqueduct.wire.primitives import HeaderPairs


class LocalChannel:
    """A bounded queue of messages that ends the way a networked channel does."""

    def __init__(
        self,
        capacity: int,
        *,
        oneshot: bool,
        mode: Mode = Mode.ORDERED,
        priority: int = DEFAULT_PRIORITY,
    ) -> None:
        if capacity < 1:
            raise ValueError("a channel has room for at least one message")
        self.capacity = capacity
        self.oneshot = oneshot
        self.mode = check_mode(mode)
        """How the sender will send once the channel is networked."""
        self.priority = check_priority(priority)
        """The priority that the sender has once it is networked."""
        self.queue: deque[Parcel] = deque()
        self.encoding: Encoding | None = None
        """How messages are encoded and decoded, if they are."""
        self.refused: AqueductError | None = None
        """Why a queued message could not be encoded, for the next call of the sender."""
        self.finished = False
        self.cancelled = False
        self.closed = False
        self.sent = 0
        self.taken = 0
        self.check: TypeCheck | None = None
        """The check of the type of its messages."""
        self.when_closed: Callable[[], None] | None = None
        """Called when the receiver is closed before the sender has ended."""
        self.room = LocalWaiters()
        self.arrived = LocalWaiters()
        self.emptied = LocalWaiters()
        self.over = LocalWaiters()
        """Tasks that wait until nothing can be received any more."""

    def wake_all(self) -> None:
        """Wake all waiting tasks: the channel ended, or a port was replaced."""
        self.room.wake_all()
        self.arrived.wake_all()
        self.emptied.wake_all()
        self.over.wake_all()

    def is_over(self) -> bool:
        """Return whether nothing can be received any more."""
        return self.closed or self.cancelled or (self.finished and not self.queue)

    def loop(self) -> asyncio.AbstractEventLoop | None:
        """Return the event loop in which tasks wait for this channel, if any do."""
        waiters = (self.arrived, self.room, self.emptied, self.over)
        return next((loop for one in waiters if (loop := one.loop()) is not None), None)

    def refuse(self, error: AqueductError) -> None:
        """Cancel: a queued message cannot be encoded, and the receiver must not skip it."""
        self.refused = error
        self.finished = False
        self.wake_all()
        self.cancelled = True
        discard(self.queue)

    def raise_refusal(self) -> None:
        """Raise the error of a refused message, once."""
        error, self.refused = self.refused, None
        if error is not None:
            raise error

    def hand_over(self) -> deque[Parcel]:
        """Remove and return the queued messages, for the port that replaces this channel."""
        parcels, self.queue = self.queue, deque()
        return parcels

    def report_close(self) -> None:
        """Call `when_closed`, unless the sender had ended before."""
        if self.when_closed is not None and not self.finished and not self.cancelled:
            self.when_closed()


class LocalSendPort:
    """The port of a sender whose receiver is in this process."""

    def __init__(self, channel: LocalChannel) -> None:
        self.channel = channel
        self.oneshot = channel.oneshot

    @property
    def mode(self) -> Mode:
        return self.channel.mode

    def set_mode(self, mode: Mode) -> None:
        if self.channel.sent:
            raise mode_is_fixed(None)
        self.channel.mode = mode

    @property
    def priority(self) -> int:
        return self.channel.priority

    def set_priority(self, priority: int) -> None:
        self.channel.priority = check_priority(priority)

    def offer(self, value: Any) -> bool:
        try:
            self.send(value, (), None)
        except WouldBlock:
            return False
        return True

    def send(
        self,
        value: Any,
        headers: HeaderPairs,
        receipt: Receipt | None,
        attach: tuple[ChannelHalf, ...] = (),
    ) -> None:
        check = self.channel.check
        if check is not None and type(value) not in check.known:
            check.check(value)
        self._queue(Parcel(value, headers, receipt, attach))

    def send_error(self, headers: HeaderPairs) -> None:
        self._queue(Parcel(None, headers, None))

    def on_close(self, function: Callable[[], None] | None) -> None:
        self.channel.when_closed = function
        if function is not None and self.channel.closed:
            self.channel.report_close()

    def _queue(self, parcel: Parcel) -> None:
        channel = self.channel
        if channel.finished or channel.cancelled:
            channel.raise_refusal()
            raise ChannelClosed("this sender was finished or cancelled")
        if channel.closed:
            raise ReceiverClosed("the receiver was closed")
        if len(channel.queue) >= channel.capacity:
            raise WouldBlock(f"{channel.capacity} messages wait to be received")
        channel.arrived.wake()  # first, because it raises for tasks of another event loop
        if channel.encoding is not None and parcel.failure() is None:
            channel.encoding.pass_through(parcel)
        channel.queue.append(parcel)
        channel.sent += 1
        channel.finished = channel.oneshot

    async def wait(self) -> None:
        await self.channel.room.wait()

    def give_up(self) -> None:
        pass

    def is_pressed(self) -> bool:
        return False

    async def wait_turn(self) -> None:
        pass

    def finish(self) -> None:
        channel = self.channel
        channel.raise_refusal()
        if not channel.cancelled and not channel.closed:
            channel.wake_all()
            channel.finished = True

    def cancel(self) -> None:
        channel = self.channel
        if self.is_open():
            channel.wake_all()
            channel.cancelled = True
            discard(channel.queue)

    async def flush(self) -> None:
        channel = self.channel
        while channel.queue and not channel.closed:
            await channel.emptied.wait()
        if channel.cancelled:
            if channel.taken < channel.sent:
                raise ChannelClosed("this sender was cancelled before everything was taken")
        elif channel.closed and not (channel.finished and channel.taken == channel.sent):
            raise ReceiverClosed("the receiver was closed")

    def is_closed(self) -> bool:
        return self.channel.is_over()

    async def wait_closed(self) -> None:
        channel = self.channel
        if not channel.is_over():
            await channel.over.wait()

    def is_over(self) -> bool:
        """Return whether this half was ended, so that it cannot be sent away."""
        return self.channel.finished or self.channel.cancelled

    def is_open(self) -> bool:
        channel = self.channel
        return not (channel.finished or channel.cancelled or channel.closed)

    def abandon(self) -> None:
        self.cancel()

    def describe(self) -> Description:
        one = self.channel
        return _describe(
            one, cancelled=one.cancelled, receiver_closed=one.closed, finished=one.finished
        )

    def statistics(self) -> dict[str, int]:
        return {"sent": self.channel.sent, "queued": len(self.channel.queue)}


class LocalReceivePort:
    """The port of a receiver whose sender is in this process."""

    def __init__(self, channel: LocalChannel) -> None:
        self.channel = channel
        self.oneshot = channel.oneshot
        self.ready: list[Any] = []

    def pop(self) -> Any:
        parcel = self._take()
        return NOTHING if parcel is None else parcel.take()

    def pop_message(self) -> Any:
        parcel = self._take()
        return NOTHING if parcel is None else parcel.message(self.channel.taken - 1)

    def pop_many(self, limit: int) -> list[Any]:
        first = self._take()
        if first is None:
            return []
        values = [first.take()]
        queue = self.channel.queue
        while len(values) < limit and queue and queue[0].failure() is None:
            parcel = self._take()
            assert parcel is not None
            values.append(parcel.take())
        return values

    def next_size(self) -> int | None:
        channel = self.channel
        is_over = channel.closed or channel.cancelled or channel.finished
        return 0 if channel.queue or is_over else None

    async def wait(self) -> None:
        await self.channel.arrived.wait()

    def close(self) -> None:
        channel = self.channel
        if not channel.closed:
            channel.wake_all()
            channel.closed = True
            discard(channel.queue)
            channel.report_close()

    def is_over(self) -> bool:
        """Return whether this half was ended, so that it cannot be sent away."""
        return self.channel.closed

    def was_cancelled(self) -> bool:
        return self.channel.cancelled

    def is_open(self) -> bool:
        channel = self.channel
        ended = (channel.finished and not channel.queue) or channel.cancelled
        return not (channel.closed or ended)

    def abandon(self) -> None:
        self.close()

    def describe(self) -> Description:
        one = self.channel
        return _describe(one, closed=one.closed, cancelled=one.cancelled, finished=one.finished)

    def statistics(self) -> dict[str, int]:
        return {"received": self.channel.taken, "queued": len(self.channel.queue)}

    def _take(self) -> Parcel | None:
        channel = self.channel
        if channel.closed:
            raise ChannelClosed("this receiver was closed")
        if not channel.queue:
            if channel.cancelled:
                raise ChannelCancelled("the sender cancelled the channel")
            if channel.finished:
                raise EndOfChannel("the channel was finished, and everything was received")
            return None
        channel.room.wake()
        if len(channel.queue) > 1:
            channel.arrived.wake()
        else:
            channel.emptied.wake_all()
            if channel.finished:
                channel.over.wake_all()
        parcel = channel.queue.popleft()
        channel.taken += 1
        parcel.settle(Outcome.DELIVERED)
        return parcel


def _describe(channel: LocalChannel, **states: bool) -> Description:
    """Describe a half by the first of these states that it is in; it is open without one."""
    state = next((name for name, holds in states.items() if holds), "open")
    return Description("local", channel.mode, state.replace("_", " "))
