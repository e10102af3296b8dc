"""Ports of networked channels: handles on one side, the protocol core on the other."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from aqueduct.channel.headers import Headers
from aqueduct.channel.ports import NOTHING, Message, Outcome, Parcel, Receipt
from aqueduct.channel.waiting import Waiters
from aqueduct.codec import ChannelHalf, Codec, codec_for, name_of
from aqueduct.errors import (
    AqueductError,
    ChannelCancelled,
    ChannelClosed,
    ChannelLostInTransit,
    EncodeError,
    EndOfChannel,
    ForkedConnectionError,
    LocalProtocolError,
    MessageTooLarge,
    ReceiverClosed,
    WouldBlock,
)
from aqueduct.protocol.connection import Connection as Core
from aqueduct.protocol.events import Delivered, End, ReceiverEnded, SenderEnded, Undelivered
from aqueduct.wire.chanid import describe, is_oneshot
from aqueduct.wire.frames import Message as WireMessage
from aqueduct.wire.frames import MessageRun
from aqueduct.wire.primitives import Headers as Pairs

if TYPE_CHECKING:
    from aqueduct.channel.line import Line, Port

TURN_BYTES = 64 * 1024
"""What one turn of the loop may queue before the loop gets to send it."""

EVERYTHING = 1 << 62
_BATCH = 256
_BATCH_BYTES = 256 * 1024
"""What a receiver takes from the core at a time: enough to be fast, little enough to pace."""


class NetworkSendPort:
    """A sender whose receiver is at the peer."""

    def __init__(self, line: Line, channel: int, kind: Any) -> None:
        self.line = line
        self.core: Core | ForkedCore = line.core
        self.channel = channel
        self.oneshot = is_oneshot(channel)
        self.codec: Codec[Any] | None = codec_for(kind)
        self.ended: SenderEnded | None = None
        self.finished = False
        self.cancelled = False
        self.sent = 0
        self.delivered = 0
        self.undelivered = 0
        self.waiting: deque[Parcel] = deque()
        """What was queued while the channel was local, and has no credit yet."""
        self.room = Waiters()
        self.settled = Waiters()
        self.receipts: dict[tuple[bool, int], Receipt] = {}

    def set_type(self, kind: Any) -> None:
        """What the handle sends, known when somebody claims it."""
        self.codec = codec_for(kind)

    def fork(self) -> None:
        """This is a child process: raise at once what would hang."""
        self.ended = SenderEnded(self.channel, End.CONNECTION)
        self.line.is_forked = True
        self.core = FORKED

    # -- for the handle ---------------------------------------------------------------------------

    def send(self, value: Any, headers: Pairs, receipt: Receipt | None) -> None:
        line = self.line
        if self.waiting:
            raise WouldBlock("messages queued before the channel was sent away go first")
        if self.codec is None and not headers and receipt is None:
            if type(value) is not bytes:
                value = as_bytes(value)
            if self.ended is not None:
                raise self._error()
            try:
                self.core.send(self.channel, value, line.time)
            except MessageTooLarge as error:
                raise line.too_much(error) from None
            line.unflushed += len(value) + 8
        else:
            self._send_any(value, headers, receipt)
        self.sent += 1
        if not line.turn_due:
            line.touch()

    async def wait(self) -> None:
        if self.ended is None:
            await self.room.wait()

    def is_pressed(self) -> bool:
        return self.line.unflushed > TURN_BYTES

    def finish(self) -> None:
        if not self.finished and not self.cancelled:
            self.finished = True
            if not self.waiting:
                self._finish()

    def cancel(self) -> None:
        if not self.finished and not self.cancelled:
            self.cancelled = True
            self._lose(self.waiting)
            self.core.cancel(self.channel, self.line.time)
            self.line.touch()
            self.room.wake_all()

    async def flush(self) -> None:
        while self.ended is None and (
            self.waiting or self.delivered + self.undelivered < self.sent
        ):
            await self.settled.wait()
        if self.ended is not None and self.ended.how is not End.FINISHED:
            if self.delivered + self.undelivered < self.sent or self.ended.how is not End.CANCELLED:
                raise self._error()

    def is_open(self) -> bool:
        return self.ended is None and not self.finished and not self.cancelled

    def abandon(self) -> None:
        self.cancel()

    def statistics(self) -> dict[str, int]:
        return {
            "sent": self.sent,
            "delivered": self.delivered,
            "undelivered": self.undelivered,
            "queued": len(self.waiting),
        }

    # -- for the line -----------------------------------------------------------------------------

    def adopt(self, parcels: deque[Parcel], finished: bool) -> None:
        """Take over what was queued while the channel was local."""
        self.waiting = parcels
        self.finished = finished
        self.pump()

    def pump(self) -> None:
        """Send what waits, as far as there is credit; then wake who wants to send more."""
        while self.waiting:
            parcel = self.waiting[0]
            try:
                self._send_any(parcel.value, parcel.headers, parcel.receipt)
            except WouldBlock:
                return
            except AqueductError:
                self._lose((parcel,))
            else:
                self.sent += 1
            self.waiting.popleft()
            self.line.touch()
        if self.finished and self.ended is None:
            self._finish()
        # All of them: there is one word of room for any number of tasks that wait for it.
        self.room.wake_all()

    def handle_fate(self, event: Delivered | Undelivered) -> None:
        """Acks and nacks."""
        good = isinstance(event, Delivered)
        for start, stop in event.ranges:
            if good:
                self.delivered += stop - start
            else:
                self.undelivered += stop - start
            if self.receipts:
                self._settle(event.reliable, start, stop, good)
        if self.settled and self.delivered + self.undelivered >= self.sent:
            self.settled.wake_all()

    def handle_end(self, event: SenderEnded) -> None:
        """The last word of the core."""
        self.ended = event
        self._lose(self.waiting)
        for receipt in self.receipts.values():
            if not receipt.done():
                receipt.set_result(Outcome.LOST)
        self.receipts.clear()
        self.room.wake_all()
        self.settled.wake_all()

    # -- inside -----------------------------------------------------------------------------------

    def _send_any(self, value: Any, headers: Pairs, receipt: Receipt | None) -> None:
        if self.ended is not None:
            raise self._error()
        if self.codec is None:
            payload = as_bytes(value)
            halves: list[ChannelHalf] = []
        else:
            payload, halves = self.codec.encode(value)
        try:
            sent = self.line.send(self.channel, payload, headers, halves)
        except (MessageTooLarge, LocalProtocolError) as error:
            raise self.line.too_much(error) from None
        if receipt is not None:
            self.receipts[sent.reliable, sent.number] = receipt
        self.line.unflushed += len(payload) + 8
        self.finished = self.finished or self.oneshot

    def _finish(self) -> None:
        self.core.finish(self.channel, self.line.time)
        self.line.touch()

    def _settle(self, reliable: bool, start: int, stop: int, good: bool) -> None:
        outcome = Outcome.DELIVERED if good else Outcome.LOST
        for key in [k for k in self.receipts if k[0] == reliable and start <= k[1] < stop]:
            receipt = self.receipts.pop(key)
            if not receipt.done():
                receipt.set_result(outcome)

    @staticmethod
    def _lose(parcels: Any) -> None:
        for parcel in parcels:
            if parcel.receipt is not None and not parcel.receipt.done():
                parcel.receipt.set_result(Outcome.LOST)
        if isinstance(parcels, deque):
            parcels.clear()

    def error(self) -> AqueductError | None:
        """Why nothing can be sent, if so."""
        if self.ended is not None:
            return self._error()
        if self.finished or self.cancelled:
            return ChannelClosed("this sender was finished or cancelled", channel=self.channel)
        return None

    def _error(self) -> AqueductError:
        ended = self.ended
        assert ended is not None
        name = describe(self.channel)
        if ended.how is End.RECEIVER_CLOSED:
            return ReceiverClosed(f"the peer stopped receiving on {name}", channel=self.channel)
        if ended.how is End.LOST:
            return ChannelLostInTransit(
                f"the message that carried {name} was lost",
                channel=self.channel,
                lineage=ended.lineage,
            )
        if ended.how is End.CONNECTION:
            return self.line.lost(self.channel)
        return ChannelClosed("this sender was finished or cancelled", channel=self.channel)


class NetworkReceivePort:
    """A receiver whose sender is at the peer."""

    def __init__(self, line: Line, channel: int, kind: Any) -> None:
        self.line = line
        self.core: Core | ForkedCore = line.core
        self.channel = channel
        self.oneshot = is_oneshot(channel)
        self.codec: Codec[Any] | None = codec_for(kind)
        self.ended: ReceiverEnded | None = None
        self.closed = False
        self.received = 0
        self.arrived = Waiters()
        self.leftover: deque[Parcel] = deque()
        """What was queued while the channel was local."""
        self._batch: list[WireMessage | MessageRun] = []
        self._rescued: deque[WireMessage | MessageRun] = deque()
        """What was taken from the core because the connection ended, and nobody has asked for."""
        self._failed: AqueductError | None = None
        """What is wrong with the message after the last batch that was handed out."""
        self._run: MessageRun | None = None
        self._next = 0
        self._limit = _BATCH

    def set_type(self, kind: Any) -> None:
        """What the handle receives, known when somebody claims it."""
        self.codec = codec_for(kind)

    def fork(self) -> None:
        """This is a child process: raise at once what would hang."""
        self.ended = ReceiverEnded(self.channel, End.CONNECTION)
        self.line.is_forked = True
        self.core = FORKED

    # -- for the handle ---------------------------------------------------------------------------

    def pop(self) -> Any:
        if self._failed is not None:
            error, self._failed = self._failed, None
            raise error
        run = self._run
        if run is not None:
            at = self._next
            payloads = run.payloads
            if at < len(payloads):
                self._next = at + 1
                self.received += 1
                codec = self.codec
                return payloads[at] if codec is None else codec.decode(payloads[at], no_channels)
        return self._pop_slowly(False)

    def pop_message(self) -> Any:
        return self._pop_slowly(True)

    def pop_many(self, limit: int) -> list[Any]:
        values: list[Any] = []
        while len(values) < limit:
            run = self._run
            if run is not None and self.codec is None and self._next < len(run.payloads):
                stop = min(len(run.payloads), self._next + limit - len(values))
                values += run.payloads[self._next : stop]
                self.received += stop - self._next
                self._next = stop
                continue
            try:
                value = self.pop()
            except AqueductError as error:
                if not values:
                    raise
                self._failed = error  # for the next one who asks
                break
            if value is NOTHING:
                break
            values.append(value)
        return values

    async def wait(self) -> None:
        if self.ended is None and not self.closed:
            await self.arrived.wait()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for entry in (*self._batch, *self._rescued):
            if isinstance(entry, WireMessage):
                self.line.abandon(entry)
        self._batch, self._run = [], None
        self._rescued.clear()
        self.leftover.clear()
        if self.line.tap is not None and self.ended is None:
            self.line.tap.closed(self.channel)
        self.core.close(self.channel, self.line.time)
        self.line.touch()
        self.arrived.wake_all()

    def is_open(self) -> bool:
        if self.closed or (self.oneshot and self.received) or self.line.ended is not None:
            return False
        return self.ended is None or bool(self._batch) or self._has_more()

    def abandon(self) -> None:
        self.close()

    def statistics(self) -> dict[str, int]:
        here = (*self._batch, *self._rescued)
        queued = sum(len(e.payloads) if isinstance(e, MessageRun) else 1 for e in here)
        if self._run is not None:
            queued += len(self._run.payloads) - self._next
        return {"received": self.received, "queued": queued + len(self.leftover)}

    # -- for the line -----------------------------------------------------------------------------

    def handle_readable(self) -> None:
        """The core has messages."""
        self.arrived.wake()

    def handle_end(self, event: ReceiverEnded) -> None:
        """The last word of the core."""
        self.ended = event
        self.arrived.wake_all()

    # -- inside -----------------------------------------------------------------------------------

    def _has_more(self) -> bool:
        return self._run is not None and self._next < len(self._run.payloads)

    def _pop_slowly(self, whole: bool) -> Any:
        if self.closed:
            raise ChannelClosed("this receiver was closed", channel=self.channel)
        if self.leftover:
            parcel = self.leftover.popleft()
            self.received += 1
            return self._present(parcel.value, parcel.headers, self.received - 1, whole)
        while True:
            if self._has_more():
                run = self._run
                assert run is not None
                number, payload = run.first + self._next, run.payloads[self._next]
                self._next += 1
                self.received += 1
                if self.arrived and (self._has_more() or self._batch):
                    self.arrived.wake()
                value = payload if self.codec is None else self.codec.decode(payload, no_channels)
                return self._present(value, (), number, whole)
            self._run = None
            if not self._batch and not self._refill():
                if self.ended is not None:
                    raise self._end()
                return NOTHING
            entry = self._batch.pop()
            if isinstance(entry, MessageRun):
                self._run, self._next = entry, 0
                continue
            self.received += 1
            if whole and self.codec is None and entry.attachments:
                attached = self.line.attached(entry)
                return Message(entry.payload, Headers(entry.headers), entry.number, attached)
            return self._present(self._decode(entry), entry.headers, entry.number, whole)

    def rescue(self) -> list[Port]:
        """The connection is about to end: take what arrived. Returns the ports in it."""
        batch = self.core.take(self.channel, EVERYTHING, self.line.time)
        if batch and self.line.tap is not None:
            self.line.tap.rescued(self.channel, batch)
        self._open_ports(batch)
        self._rescued.extend(batch)
        return [
            self.line.ports[attachment.channel]
            for entry in batch
            if isinstance(entry, WireMessage)
            for attachment in entry.attachments
            if attachment.channel in self.line.ports
        ]

    def _open_ports(self, batch: list[WireMessage | MessageRun]) -> None:
        for entry in batch:
            if isinstance(entry, WireMessage) and entry.attachments:
                self.line.open_ports(entry)

    def _refill(self) -> bool:
        line = self.line
        if self._rescued:
            self._batch = [self._rescued.popleft()]
            if line.tap is not None:
                line.tap.taken(self.channel, self._batch)
            return True
        batch = self.core.take(self.channel, self._limit, line.time)
        if not batch:
            return False
        if line.tap is not None:
            line.tap.taken(self.channel, batch)
        self._open_ports(batch)
        size = sum(entry.size for entry in batch)
        if size > _BATCH_BYTES:
            self._limit = max(1, self._limit // 2)
        elif 4 * size < _BATCH_BYTES:
            self._limit = min(_BATCH, self._limit * 2)
        batch.reverse()
        self._batch = batch
        line.touch()
        return True

    @staticmethod
    def _present(value: Any, headers: Pairs, number: int, whole: bool) -> Any:
        return Message(value, Headers(headers), number) if whole else value

    def _decode(self, message: WireMessage) -> Any:
        """Decode a message with channels; those that nobody claims are closed (AQ-CLOSE-4)."""
        if self.codec is None:
            self.line.abandon(message)
            return message.payload

        claimed: list[int] = []

        def claim(index: int, half: type[ChannelHalf], kind: Any) -> ChannelHalf:
            if not 0 <= index < len(message.attachments):
                raise ValueError(f"there is no attachment {index}")
            handle = self.line.claim(message.attachments[index], half, kind)
            claimed.append(message.attachments[index].channel)
            return handle

        try:
            return self.codec.decode(message.payload, claim)
        except AqueductError:
            for channel in claimed:
                self.line.give_up(channel)
            raise
        finally:
            self.line.abandon(message)

    def _end(self) -> AqueductError:
        ended = self.ended
        assert ended is not None
        name = describe(self.channel)
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
        return self.line.lost(self.channel)


class ForkedCore:
    """Stands in for the core in a child process."""

    def send(self, channel: int, payload: bytes, now: float) -> int:
        raise ForkedConnectionError(FORKED_REASON, channel=channel)

    def take(self, channel: int, limit: int, now: float) -> list[WireMessage | MessageRun]:
        raise ForkedConnectionError(FORKED_REASON, channel=channel)

    def finish(self, channel: int, now: float) -> None:
        """The parent's business."""

    cancel = close = finish


FORKED = ForkedCore()
FORKED_REASON = "this connection was made before fork(); connect again in the child process"


def as_bytes(value: Any) -> bytes:
    """A payload for a channel of bytes."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise EncodeError(
        f"a channel of bytes cannot send {name_of(type(value))}; "
        "give the channel a type: aqueduct.channel(SomeType)"
    )


def no_channels(index: int, half: type[ChannelHalf], kind: Any) -> ChannelHalf:
    """The claim of a message that came without attachments."""
    raise ValueError(f"attachment {index} was not sent")
