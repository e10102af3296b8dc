"""The port of a networked receiver: takes messages from the core, and decodes them."""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from aqueduct.codec import ChannelHalf, Codec, CodecClass, codec_for
from aqueduct.errors import (
    AqueductError,
    ChannelCancelled,
    ChannelClosed,
    ChannelError,
    ChannelLostInTransit,
    DecodeError,
    EndOfChannel,
)
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.protocol.events import End, ReceiverEnded
from aqueduct.runtime.call_headers import INVALID_REQUEST, error_header, error_of
from aqueduct.runtime.headers import Headers
from aqueduct.runtime.ports import (
    FORKED,
    NOTHING,
    Description,
    ForkedCore,
    Message,
    Outcome,
    Parcel,
    discard,
)
from aqueduct.runtime.send_port import NetworkSendPort
from aqueduct.runtime.waiters import Waiters
from aqueduct.wire.chanid import describe, is_oneshot
from aqueduct.wire.frames import MessageFrame, MessageRun
from aqueduct.wire.primitives import HeaderPairs

if TYPE_CHECKING:
    from aqueduct.runtime.connection_driver import ConnectionDriver, Port

EVERYTHING = 1 << 62
_BATCH = 256
_BATCH_BYTES = 256 * 1024
"""How much a receiver takes from the core at a time. Taking grants credit, so a larger batch would
let the peer run further ahead of the application."""


class NetworkReceivePort:
    """The port of a receiver whose sender is at the peer."""

    __slots__ = (
        "_batch",
        "_failed",
        "_is_readable",
        "_limit",
        "_passed",
        "_ready_stop",
        "_rescued",
        "arrived",
        "channel",
        "closed",
        "codec",
        "core",
        "driver",
        "ended",
        "has_told_end",
        "leftover",
        "oneshot",
        "ready",
    )

    def __init__(
        self,
        driver: ConnectionDriver,
        channel: int,
        kind: Any,
        codec: CodecClass | None = None,
    ) -> None:
        self.driver = driver
        self.core: ConnectionCore | ForkedCore = driver.core
        self.channel = channel
        self.oneshot = is_oneshot(channel)
        self.codec: Codec[Any] = codec_for(kind, codec)
        self.ended: ReceiverEnded | None = None
        self.closed = False
        self.has_told_end = False
        """Whether the application was told how the channel ended."""
        self.arrived = Waiters()
        self.leftover: deque[Parcel] | None = None
        """Messages queued while the channel was local."""
        self.ready: list[Any] = []
        """Decoded values of messages without headers or attachments, the next one last."""
        self._ready_stop = 0
        """The number of the message after those in `ready`."""
        self._failed: AqueductError | None = None
        """The error of the message after those in `ready`."""
        self._batch: list[MessageFrame | MessageRun] = []
        """Entries taken from the core that follow, the next one last."""
        self._rescued: deque[MessageFrame | MessageRun] | None = None
        """Entries taken from the core when the connection ended."""
        self._is_readable = True
        """Whether the core may have more messages."""
        self._passed = 0
        """Messages returned to the application, or in `ready`."""
        self._limit = _BATCH

    @property
    def received(self) -> int:
        """Return how many messages the application has received."""
        return self._passed - len(self.ready)

    def set_type(self, kind: Any, codec: CodecClass | None = None) -> None:
        """Set the type and codec of the messages, known once the half is claimed."""
        self.codec = codec_for(kind, codec)

    def fork(self) -> None:
        """Make every call in this child process raise instead of waiting."""
        self.ended = ReceiverEnded(self.channel, End.CONNECTION)
        self.core = FORKED
        self._drop()  # the parent's application receives these messages

    # -- for the handle ---------------------------------------------------------------------------

    def pop(self) -> Any:
        return self.ready.pop() if self.ready else self._pop_slowly(False)

    def pop_message(self) -> Any:
        return self._pop_slowly(True)

    def pop_many(self, limit: int) -> list[Any]:
        values: list[Any] = []
        while len(values) < limit:
            if self.ready:
                cut = max(0, len(self.ready) - (limit - len(values)))
                values += self.ready[cut:][::-1]
                del self.ready[cut:]
                continue
            try:
                value = self.pop()
            except AqueductError as error:
                if not values:
                    raise
                if self.ended is None or not isinstance(error, ChannelError | EndOfChannel):
                    self._failed = error  # the next call raises it
                break
            if value is NOTHING:
                break
            values.append(value)
        return values

    def next_size(self) -> int | None:
        if self.closed or self.leftover or self.ready or self._failed is not None:
            return 0
        if not self._batch and not self._refill():
            return None if self.ended is None else 0
        entry = self._batch[-1]
        return entry.size if isinstance(entry, MessageFrame) else max(map(len, entry.payloads))

    async def wait(self) -> None:
        self.driver.check_loop()
        if self.ended is None and not self.closed:
            await self.arrived.wait()
            if self.arrived and (self._is_readable or self.ready or self._batch):
                self.arrived.wake()  # there may be a message for the next task, too

    def close(self) -> None:
        if self.closed:
            return
        self.driver.check_loop()
        self.driver.touch()
        self.closed = True
        self._discard()
        if self.driver.observer is not None and self.ended is None:
            self.driver.observer.receiver_closed(self.channel)
        self.core.close(self.channel, self.driver.time)
        self.driver.forget_port(self)  # the core raises no more events for a closed receiver
        self.arrived.wake_all()

    def was_cancelled(self) -> bool:
        return self.ended is not None and self.ended.how is End.CANCELLED

    def stop(self) -> None:
        """Stop receiving; the application gets what has arrived, and then the end (AQ-DRAIN-1)."""
        if self.ended is None and not self.closed:
            self.driver.core.close(self.channel, self.driver.time, keep_queue=True)
            self.driver.touch()

    def is_handled(self) -> bool:
        """Return whether the application is done with all that arrived.

        It is when it was told of the end, or never received a message.
        """
        if self.closed or self.has_told_end:
            return True
        return not (self.received or self.ready or self._batch or self._rescued or self.leftover)

    def is_open(self) -> bool:
        if self.closed or (self.oneshot and self.received) or self.driver.ended is not None:
            return False
        return self.ended is None or bool(self._batch) or bool(self.ready)

    def abandon(self) -> None:
        self.close()

    def statistics(self) -> dict[str, int]:
        here = (*self._batch, *(self._rescued or ()))
        queued = sum(len(e.payloads) if isinstance(e, MessageRun) else 1 for e in here)
        queued += len(self.ready) + len(self.leftover or ())
        return {"received": self.received, "queued": queued}

    def describe(self) -> Description:
        state = "open"
        if self.closed:
            state = "closed"
        elif self.ended is not None:
            state = self.ended.how.value
        return Description(describe(self.channel), None, state)

    # -- for the connection -----------------------------------------------------------------------

    def handle_readable(self) -> None:
        """Wake a task: the core has messages."""
        self._is_readable = True
        self.arrived.wake()

    def handle_end(self, event: ReceiverEnded) -> None:
        """Wake all tasks: the core has ended this channel."""
        self.ended = event
        if event.how is End.CANCELLED:
            self._discard()  # AQ-CANCEL-5
        self.arrived.wake_all()

    # -- inside -----------------------------------------------------------------------------------

    def _discard(self) -> None:
        """Discard what the application has not received, and end the halves in it (AQ-CLOSE-4)."""
        for entry in (*self._batch, *(self._rescued or ())):
            if isinstance(entry, MessageFrame):
                self.driver.abandon(entry)
        if self.leftover:
            discard(self.leftover)
        self._drop()

    def _drop(self) -> None:
        """Discard messages that were taken from the core and not received."""
        self._passed -= len(self.ready)
        self._batch = []
        self.ready.clear()
        self._rescued = self.leftover = self._failed = None

    def _pop_slowly(self, whole: bool) -> Any:
        if self.closed:
            raise ChannelClosed("this receiver was closed", channel=self.channel)
        if self.leftover:
            parcel = self.leftover.popleft()
            parcel.settle(Outcome.DELIVERED)
            self._passed += 1
            return parcel.message(self._passed - 1) if whole else parcel.take()
        while not self.ready:
            if self._failed is not None:
                error, self._failed = self._failed, None
                raise error
            if not self._batch and not self._refill():
                if self.ended is not None:
                    self.has_told_end = True
                    self.driver.touch()  # for `drain`
                    raise self._end()
                return NOTHING
            entry = self._batch.pop()
            if not isinstance(entry, MessageRun):
                return self._pop_rich(entry, whole)
            self._unroll(entry)
        number = self._ready_stop - len(self.ready)
        return self._present(self.ready.pop(), (), number, whole)

    def _pop_rich(self, entry: MessageFrame, whole: bool) -> Any:
        """Return a message with headers or attachments."""
        self._passed += 1
        error = error_of(entry.headers) if entry.headers else None
        if error is not None:  # AQ-CALL-3
            self.driver.abandon(entry)
            raise error
        if whole and entry.attachments and self.codec.is_identity:
            attached = self.driver.attached(entry)
            return Message(entry.payload, Headers(entry.headers), entry.number, attached)
        claimed: dict[int, ChannelHalf] = {}
        value = self._decode(entry, claimed)
        if not whole:
            return value
        halves = tuple(weakref.ref(half) for half in claimed.values())
        return Message(value, Headers(entry.headers), entry.number, None, halves)

    def _unroll(self, run: MessageRun) -> None:
        """Decode messages without headers or attachments, up to the first malformed one."""
        values, self._failed = self.codec.decode_many(run.payloads)
        done = len(values)
        self.ready[:] = values[::-1]
        self._ready_stop = run.first + done
        self._passed += done
        if self._failed is not None:
            self._passed += 1
            rest = run.payloads[done + 1 :]
            if rest:
                self._batch.append(MessageRun(run.first + done + 1, rest, sum(map(len, rest))))

    def rescue(self) -> list[Port]:
        """Take what has arrived, because the connection ends; return the ports attached to it."""
        batch = self.core.take(self.channel, EVERYTHING, self.driver.time)
        if batch and self.driver.observer is not None:
            self.driver.observer.messages_rescued(self.channel, batch)
        self._open_ports(batch)
        self._rescued = deque(batch)
        return [
            self.driver.ports[attachment.channel]
            for entry in batch
            if isinstance(entry, MessageFrame)
            for attachment in entry.attachments
            if attachment.channel in self.driver.ports
        ]

    def _open_ports(self, batch: list[MessageFrame | MessageRun]) -> None:
        for entry in batch:
            if isinstance(entry, MessageFrame) and entry.attachments:
                self.driver.open_ports(entry)

    def _refill(self) -> bool:
        """Take a batch from the core; return whether there was one."""
        driver = self.driver
        if self._rescued:
            self._batch = [self._rescued.popleft()]
            if driver.observer is not None:
                driver.observer.messages_taken(self.channel, self._batch)
            return True
        if not self._is_readable:
            return False
        driver.check_loop()
        limit = self._limit
        batch = self.core.take(self.channel, limit, driver.time)
        size = count = 0
        for entry in batch:
            size += entry.size
            count += len(entry.payloads) if isinstance(entry, MessageRun) else 1
        self._is_readable = count >= limit  # otherwise the core reports the next message
        if not batch:
            return False
        if driver.observer is not None:
            driver.observer.messages_taken(self.channel, batch)
        self._open_ports(batch)
        if size > _BATCH_BYTES:
            self._limit = max(1, limit // 2)
        elif 4 * size < _BATCH_BYTES:
            self._limit = min(_BATCH, limit * 2)
        batch.reverse()
        self._batch = batch
        driver.touch()
        return True

    @staticmethod
    def _present(value: Any, headers: HeaderPairs, number: int, whole: bool) -> Any:
        return Message(value, Headers(headers), number) if whole else value

    def _decode(self, message: MessageFrame, claimed: dict[int, ChannelHalf]) -> Any:
        """Decode a message with attachments; unclaimed halves are closed (AQ-CLOSE-4).

        ``claimed`` gets the handles by channel, and keeps them alive, so that a decode error does
        not warn that they leaked.
        """
        if self.codec.is_identity:
            self.driver.abandon(message)
            return message.payload

        def claim(index: int, half: type[ChannelHalf], kind: Any) -> ChannelHalf:
            if not 0 <= index < len(message.attachments):
                raise ValueError(f"there is no attachment {index}")
            attachment = message.attachments[index]
            handle = claimed[attachment.channel] = self.driver.claim(attachment, half, kind)
            return handle

        try:
            return self.codec.decode(message.payload, claim)
        except AqueductError as error:
            if isinstance(error, DecodeError):
                error.was_answered = self._answer(message, error)
            for channel in claimed:
                self.driver.give_up(channel)
            raise
        finally:
            self.driver.abandon(message)

    def _answer(self, message: MessageFrame, error: DecodeError) -> bool:
        """Tell the caller why its request is malformed, if the message has a reply (AQ-CALL-4).

        Return whether the caller learns of it; by the end of its senders, if it has sent no other.
        """
        reply: NetworkSendPort | None = None
        for attachment in message.attachments:
            port = self.driver.ports.get(attachment.channel)
            if isinstance(port, NetworkSendPort) and (reply is None or port.oneshot):
                reply = port
                if port.oneshot:
                    break
        if reply is None:
            return bool(message.attachments)
        # Do not disclose an error of the application's own code to the caller.
        text = str(error) if error.__cause__ is None else "the request could not be read"
        try:
            reply.send_error(error_header(INVALID_REQUEST, text))
            reply.finish()
        except AqueductError:
            reply.cancel()  # the caller learns at least that there will be no reply
        return True

    def _end(self) -> AqueductError:
        ended = self.ended
        assert ended is not None
        name = describe(self.channel)
        if ended.how is End.STOPPED:
            return EndOfChannel("this side drains the connection, and everything was received")
        if ended.how is End.FINISHED:
            return EndOfChannel("the channel was finished, and everything was received")
        if ended.how is End.CANCELLED:
            return ChannelCancelled(f"the peer cancelled {name}", channel=self.channel)
        if ended.how is End.LOST:
            return ChannelLostInTransit(
                f"the message that carried {name} was lost",
                channel=self.channel,
                lineage=ended.lineage,
            )
        return self.driver.lost(self.channel)
