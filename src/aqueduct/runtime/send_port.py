"""The port of a networked sender: encodes values, and passes the payloads to the core."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aqueduct.codec import ChannelHalf, Codec, CodecClass, codec_for
from aqueduct.errors import (
    AqueductError,
    ChannelClosed,
    ChannelLostInTransit,
    LocalProtocolError,
    MessageTooLarge,
    ReceiverClosed,
    WouldBlock,
)
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.protocol.events import Delivered, End, SenderEnded, Undelivered
from aqueduct.protocol.modes import Mode
from aqueduct.protocol.priorities import DEFAULT_PRIORITY, check_priority
from aqueduct.runtime.call_headers import error_of
from aqueduct.runtime.ports import (
    FORKED,
    Description,
    ForkedCore,
    Outcome,
    Parcel,
    Receipt,
    discard,
    mode_is_fixed,
)
from aqueduct.runtime.waiters import Waiters
from aqueduct.wire.chanid import ENTRYPOINT, describe, is_oneshot
from aqueduct.wire.primitives import HeaderPairs

if TYPE_CHECKING:
    from aqueduct.runtime.connection_driver import ConnectionDriver

_LEAST = {Mode.ORDERED: 64, Mode.UNORDERED: 1_024, Mode.UNRELIABLE: 128}
"""Bytes that a message counts for in a turn at least, by its CPU time: 256 unordered messages, each
with its own stream, or 4,000 short ordered ones take some milliseconds."""
MAX_UNSETTLED = 8_192
"""Unacknowledged unordered messages of one sender; each has its own stream. The receiver can end
them all with one frame, and more of them would block the event loop for tens of milliseconds."""

RECONNECT_HINT = (
    "the server is about to stop, or wants no more on this connection: connect again, "
    "to another server if there is one; other channels go on until they end"
)
"""What a client can do when the server closes the entrypoint."""


class NetworkSendPort:
    """The port of a sender whose receiver is at the peer."""

    __slots__ = (
        "_ending",
        "_forgone",
        "_has_begun",
        "_is_raw",
        "_is_unordered",
        "_least",
        "_over",
        "_refusal_raised",
        "_refused",
        "_send_plain",
        "_when_closed",
        "cancelled",
        "channel",
        "codec",
        "core",
        "delivered",
        "driver",
        "ended",
        "finished",
        "mode",
        "oneshot",
        "priority",
        "receipts",
        "room",
        "sent",
        "settled",
        "undelivered",
        "waiting",
    )

    def __init__(
        self,
        driver: ConnectionDriver,
        channel: int,
        kind: Any,
        codec: CodecClass | None = None,
        mode: Mode = Mode.ORDERED,
    ) -> None:
        self.driver = driver
        self.core: ConnectionCore | ForkedCore = driver.core
        self.channel = channel
        self.oneshot = is_oneshot(channel)
        self.mode = mode
        """The mode of the core's sender, also after that has ended."""
        self._has_begun = False
        """Whether a message was sent while the channel was local."""
        self.priority = driver.core.priority_of(channel)
        self.codec: Codec[Any] = codec_for(kind, codec)
        self._is_raw = self.codec.is_identity
        self.ended: SenderEnded | None = None
        self.finished = False
        self.cancelled = False
        self.sent = 0
        self.delivered = 0
        self.undelivered = 0
        self.waiting: deque[Parcel] | None = None
        """Messages queued while the channel was local, until there is credit for them."""
        self._send_plain: Callable[[bytes, float], int] | None = None
        """Fast path of the core for payloads only, set once a message was sent."""
        self._least = 0
        """The mode's entry in `_LEAST`, set once a message was sent."""
        self._is_unordered = False
        """Whether the mode is UNORDERED, set once a message was sent."""
        self._ending = False
        """Whether a reliable message was nacked: the core reports the end of the channel next."""
        self._refused: AqueductError | None = None
        """Why a message that was queued while the channel was local cannot be sent."""
        self._refusal_raised = False
        """Whether a call has raised it."""
        self._forgone = 0
        """Unreliable messages that were lost; `flush` does not raise for them."""
        self._when_closed: Callable[[], None] | None = None
        self.room = Waiters()
        self.settled = Waiters()
        self._over: Waiters | None = None
        """Tasks that wait for the end of the receiver."""
        self.receipts: dict[tuple[bool, int], Receipt] = {}

    def set_type(self, kind: Any, codec: CodecClass | None = None) -> None:
        """Set the type and codec of the messages, known once the half is claimed."""
        self.codec = codec_for(kind, codec)
        self._is_raw = self.codec.is_identity

    def fork(self) -> None:
        """Make every call in this child process raise instead of waiting."""
        self.core = FORKED
        self.ended = SenderEnded(self.channel, End.CONNECTION)
        self.waiting = None  # the parent sends it
        self._send_plain = None

    # -- for the handle ---------------------------------------------------------------------------

    def set_mode(self, mode: Mode) -> None:
        self.driver.check_loop()
        if self.sent or self._has_begun:
            raise mode_is_fixed(self.channel)
        if self.ended is None:
            self.driver.core.set_mode(self.channel, mode)
        self.mode = mode

    def set_priority(self, priority: int) -> None:
        self.driver.check_loop()
        self.priority = check_priority(priority)
        self.core.set_priority(self.channel, priority)

    def offer(self, value: Any) -> bool:
        driver = self.driver
        if driver.unflushed > driver.part_end or self.waiting:
            return False
        if not driver.turn_due:
            driver.touch()
        send = self._send_plain
        try:
            if send is None:
                self._send_any(value, (), None)
            elif self._is_raw and type(value) is bytes:
                send(value, driver.time)
                size = len(value)
                driver.unflushed += (size if size > self._least else self._least) + 8
            else:
                payload, halves = self.codec.encode(value)
                if halves:
                    self._send_payload(payload, (), None, halves)
                else:
                    send(payload, driver.time)
                    size = len(payload)
                    driver.unflushed += (size if size > self._least else self._least) + 8
        except WouldBlock:
            return False
        except MessageTooLarge:
            if driver.peer_headers is not None:
                raise
            return False  # AQ-EARLY-4: wait for the server's limits
        self.sent += 1
        return True

    def send(
        self,
        value: Any,
        headers: HeaderPairs,
        receipt: Receipt | None,
        attach: tuple[ChannelHalf, ...] = (),
    ) -> None:
        if self.waiting:
            if self.finished:
                raise self._closed()
            raise WouldBlock("messages queued before the channel was sent away go first")
        self.driver.check_loop()
        self.driver.touch()
        self._send_any(value, headers, receipt, attach)
        self.sent += 1

    def send_error(self, headers: HeaderPairs) -> None:
        if self.ended is not None:
            raise self.end_error()
        if self.waiting:
            raise WouldBlock("messages queued before the channel was sent away go first")
        self.driver.touch()
        self.driver.send(self.channel, b"", headers, [])
        self.sent += 1
        self.finished = self.finished or self.oneshot

    def on_close(self, function: Callable[[], None] | None) -> None:
        self._when_closed = function
        self._report_close()

    async def wait(self) -> None:
        self.driver.check_loop()
        if self.ended is None:
            try:
                await self.room.wait()
            finally:
                self.give_up()

    def give_up(self) -> None:
        # Other channels must not wait for connection credit behind a message that is not sent.
        if not self.room and not self.waiting and self.core.give_up(self.channel):
            self.driver.touch()

    def is_pressed(self) -> bool:
        driver = self.driver
        return driver.unflushed > driver.part_end

    async def wait_turn(self) -> None:
        if self.oneshot or self.priority < DEFAULT_PRIORITY or self.ended is not None:
            await asyncio.sleep(0)  # one message, or a more urgent one
        else:
            await self.driver.wait_turn()

    def finish(self) -> None:
        if self._refused is not None and not self._refusal_raised:
            raise self._refusal(self._refused)
        if self.is_open():
            self.driver.check_loop()
            self.driver.touch()
            self.finished = True
            if not self.waiting:
                self._finish()

    def cancel(self) -> None:
        if self.is_open():
            self.driver.check_loop()
            self.driver.touch()
            self.cancelled = True
            self._lose_waiting()
            self.core.cancel(self.channel, self.driver.time)
            self.room.wake_all()

    async def flush(self) -> None:
        self.driver.check_loop()
        while (
            self.ended is None
            and self._refused is None
            and (self.waiting or self._ending or self.delivered + self.undelivered < self.sent)
        ):
            await self.settled.wait()
        if self._refused is not None:
            raise self._refusal(self._refused)
        if self.cancelled and self.delivered + self._forgone < self.sent:
            raise ChannelClosed(
                "this sender was cancelled before everything had arrived", channel=self.channel
            )
        if self.ended is not None and self.ended.how not in (End.FINISHED, End.CANCELLED):
            raise self.end_error()

    def is_closed(self) -> bool:
        return self.ended is not None

    async def wait_closed(self) -> None:
        self.driver.check_loop()
        while self.ended is None:
            if self._over is None:
                self._over = Waiters()
            await self._over.wait()

    def is_open(self) -> bool:
        return self.ended is None and not self.finished and not self.cancelled

    def abandon(self) -> None:
        self.cancel()

    def statistics(self) -> dict[str, int]:
        return {
            "sent": self.sent,
            "delivered": self.delivered,
            "undelivered": self.undelivered,
            "queued": len(self.waiting or ()),
        }

    def describe(self) -> Description:
        state = "open"
        if self.ended is not None:
            state = self.ended.how.value
        elif self.cancelled:
            state = "cancelled"
        elif self.finished:
            state = "finished"
        return Description(describe(self.channel), self.mode, state)

    # -- for the connection -----------------------------------------------------------------------

    def adopt(self, parcels: deque[Parcel], finished: bool, has_begun: bool) -> None:
        """Take over the messages queued while the channel was local."""
        self.waiting = parcels
        self._has_begun = has_begun
        self.finished = finished
        self.driver.pump(self)

    def pump(self) -> None:
        """Send queued messages while there is credit, then wake the tasks that wait to send."""
        while self.waiting:
            parcel = self.waiting[0]
            try:
                if parcel.headers and error_of(parcel.headers) is not None:
                    self.driver.send(self.channel, b"", parcel.headers, [])
                else:
                    self._send_any(parcel.value, parcel.headers, parcel.receipt, parcel.attach)
            except WouldBlock:
                return
            except AqueductError as error:
                self._refuse(error)
                return
            self.sent += 1
            self.waiting.popleft()
            self.driver.touch()
        if self.finished and self.ended is None:
            self._finish()
        # Wake all tasks: the core reports room once, however many of them wait for it.
        self.room.wake_all()

    def _refuse(self, error: AqueductError) -> None:
        """Cancel: the next queued message cannot be sent, and the peer must not skip it."""
        self._refused = error
        self._send_plain = None
        self.finished = False
        self.cancel()
        self.settled.wake_all()

    def handle_fate(self, event: Delivered | Undelivered) -> None:
        """Count acks or nacks, and settle receipts."""
        was_full = self._is_full()
        good = isinstance(event, Delivered)
        if event.reliable and not good:
            self._ending = True
        for start, stop in event.ranges:
            if good:
                self.delivered += stop - start
            else:
                self.undelivered += stop - start
                if not event.reliable and not self.cancelled:
                    self._forgone += stop - start
            if self.receipts:
                self._settle(event.reliable, start, stop, good)
        if self.settled and self.delivered + self.undelivered >= self.sent:
            self.settled.wake_all()
        if was_full and not self._is_full():
            self.pump()

    def handle_end(self, event: SenderEnded) -> None:
        """Fail what waits: the core has ended this channel."""
        self.ended = event
        self._send_plain = None
        self._lose_waiting()
        for receipt in self.receipts.values():
            if not receipt.done():
                receipt.set_result(Outcome.LOST)
        self.receipts.clear()
        self.room.wake_all()
        self.settled.wake_all()
        if self._over is not None:
            self._over.wake_all()
        self._report_close()

    # -- inside -----------------------------------------------------------------------------------

    def _send_any(
        self,
        value: Any,
        headers: HeaderPairs,
        receipt: Receipt | None,
        attach: tuple[ChannelHalf, ...] = (),
    ) -> None:
        if self._refused is not None:
            raise self._refusal(self._refused)
        if self.ended is not None:
            raise self.end_error()
        if self._is_full():
            raise WouldBlock(f"{MAX_UNSETTLED} unordered messages have not been acknowledged")
        payload, halves = self.codec.encode(value)
        if attach:
            halves = [half._to_attach() for half in attach]
        if self.waiting and self.mode is Mode.UNRELIABLE:
            # A local channel has taken these messages, so they wait for credit instead of
            # displacing each other.
            self.driver.core.check_room(self.channel, len(payload))
        self._send_payload(payload, headers, receipt, halves)

    def _send_payload(
        self,
        payload: bytes,
        headers: HeaderPairs,
        receipt: Receipt | None,
        halves: list[ChannelHalf],
    ) -> None:
        try:
            if halves or headers or receipt is not None:
                sent = self.driver.send(self.channel, payload, headers, halves)
                if receipt is not None:
                    self.receipts[sent.reliable, sent.number] = receipt
            elif self._send_plain is not None:
                self._send_plain(payload, self.driver.time)
            else:
                send = self.driver.core.plain_sender(self.channel)
                send(payload, self.driver.time)
                if not self.oneshot and self.mode is not Mode.UNORDERED:
                    self._send_plain = send
        except (MessageTooLarge, LocalProtocolError) as error:
            raise self.driver.limit_error(error) from None
        if not self._least:
            self._least = _LEAST[self.mode]
            self._is_unordered = self.mode is Mode.UNORDERED
        self.driver.unflushed += max(len(payload), self._least) + 8
        self.finished = self.finished or self.oneshot

    def _is_full(self) -> bool:
        """Return whether an unordered sender has to wait for acks."""
        return self._is_unordered and self.sent - self.delivered - self.undelivered >= MAX_UNSETTLED

    def _report_close(self) -> None:
        """Call `_when_closed` if the receiver has ended before this sender."""
        if self._when_closed is None or self.ended is None or self.finished or self.cancelled:
            return
        if self.ended.how in (End.RECEIVER_CLOSED, End.LOST, End.CONNECTION):
            self._when_closed()

    def _finish(self) -> None:
        self.core.finish(self.channel, self.driver.time)
        self.driver.touch()

    def _settle(self, reliable: bool, start: int, stop: int, good: bool) -> None:
        outcome = Outcome.DELIVERED if good else Outcome.LOST
        if stop - start <= len(self.receipts):
            keys = [(reliable, number) for number in range(start, stop)]
        else:
            keys = [k for k in self.receipts if k[0] == reliable and start <= k[1] < stop]
        for key in keys:
            receipt = self.receipts.pop(key, None)
            if receipt is not None and not receipt.done():
                receipt.set_result(outcome)

    def _lose_waiting(self) -> None:
        if self.waiting is not None:
            waiting, self.waiting = self.waiting, None
            self.sent += len(waiting)
            self.undelivered += len(waiting)
            discard(waiting)

    def _refusal(self, error: AqueductError) -> AqueductError:
        self._refusal_raised = True
        return error

    def _closed(self) -> ChannelClosed:
        return ChannelClosed("this sender was finished or cancelled", channel=self.channel)

    def end_error(self) -> AqueductError:
        """Return the error for the use of this sender after its receiver has ended."""
        ended = self.ended
        assert ended is not None
        name = describe(self.channel)
        if ended.how is End.RECEIVER_CLOSED:
            closed = ReceiverClosed(f"the peer stopped receiving on {name}", channel=self.channel)
            if self.channel == ENTRYPOINT:  # AQ-DRAIN-1
                closed.hint = RECONNECT_HINT
            return closed
        if ended.how is End.LOST:
            return ChannelLostInTransit(
                f"the message that carried {name} was lost",
                channel=self.channel,
                lineage=ended.lineage,
            )
        if ended.how is End.CONNECTION:
            return self.driver.lost(self.channel)
        return self._closed()
