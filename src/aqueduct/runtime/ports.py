"""What a handle calls: the port of a local or networked channel, replaced when a half moves."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import decimal
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from aqueduct.codec import ChannelHalf
from aqueduct.errors import (
    AqueductError,
    ChannelClosed,
    ChannelError,
    ChannelMoved,
    ForkedConnectionError,
    LocalProtocolError,
)
from aqueduct.protocol.modes import Mode
from aqueduct.runtime.call_headers import error_of
from aqueduct.runtime.headers import Headers
from aqueduct.runtime.unrolled import Unrolled
from aqueduct.runtime.waiters import is_foreign
from aqueduct.wire.chanid import describe
from aqueduct.wire.frames import MessageFrame, MessageRun
from aqueduct.wire.primitives import HeaderPairs

if TYPE_CHECKING:
    from aqueduct.runtime.connection_driver import ConnectionDriver

T = TypeVar("T")


class Outcome(Enum):
    """Whether one message was delivered."""

    DELIVERED = "delivered"
    LOST = "lost"


Receipt = asyncio.Future[Outcome]
"""Awaits the outcome of one message."""


@dataclass(frozen=True, slots=True)
class Message(Generic[T]):
    """A received message: payload, headers, number, and the channel halves attached to it."""

    payload: T
    headers: Headers
    number: int
    _attached: Attached | None = field(default=None, repr=False, compare=False)
    """Holds the attachments of a message of `bytes` until `attachments` claims them."""
    _halves: tuple[weakref.ref[ChannelHalf], ...] | None = field(
        default=(), repr=False, compare=False
    )
    """The halves in a typed message, kept by its payload; None if it never left this process."""

    @property
    def attachments(self) -> tuple[Any, ...]:
        """The halves attached to a message of `bytes`, as halves of `bytes`.

        The caller must end each of them. A typed message has its halves in its fields, and none
        here. Halves that were not claimed are closed when the message is garbage collected.
        """
        return () if self._attached is None else self._attached.halves()


class Attached(Protocol):
    """The halves attached to a message, claimed on first use."""

    def halves(self) -> tuple[Any, ...]:
        """Return their handles, the same ones each time."""


class Unclaimed:
    """The halves of a message of `bytes`: claimed on first use, closed if never used."""

    __slots__ = ("_driver", "_halves", "_message")

    def __init__(self, driver: ConnectionDriver, message: MessageFrame) -> None:
        self._driver = driver
        self._message = message
        self._halves: tuple[ChannelHalf, ...] | None = None

    def halves(self) -> tuple[ChannelHalf, ...]:
        """Return their handles, the same ones each time."""
        if self._halves is None:
            attachments = self._message.attachments
            self._halves = tuple(self._driver.claim(one, None, bytes) for one in attachments)
        return self._halves

    def __del__(self) -> None:
        loop = self._driver.loop
        if self._halves is None and not loop.is_closed():
            loop.call_soon_threadsafe(self._driver.abandon, self._message)


class Held:
    """The halves attached to a message that never left this process."""

    __slots__ = ("_halves",)

    def __init__(self, halves: tuple[ChannelHalf, ...]) -> None:
        self._halves = halves

    def halves(self) -> tuple[ChannelHalf, ...]:
        """Return their handles."""
        return self._halves


def end_half(half: ChannelHalf) -> None:
    """Cancel a sender or close a receiver on behalf of an application that does not use it."""
    port: SendPort | ReceivePort = half._to_attach()._port  # type: ignore[attr-defined]
    port.abandon()


def abandon_on_its_loop(port: Any) -> None:
    """Abandon a port, on the event loop of its channel if tasks of another one wait there."""
    driver = getattr(port, "driver", None)
    loop = port.channel.loop() if driver is None else driver.loop
    if driver is None and (loop is None or not is_foreign(loop)):
        port.abandon()
    elif loop is not None and not loop.is_closed():
        loop.call_soon_threadsafe(port.abandon)


_AS_THEY_ARE = (
    bytes,
    bytearray,
    memoryview,
    datetime.datetime,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    uuid.UUID,
)
"""Classes of values that are not converted in the search for halves."""


def halves_in(value: Any) -> list[Any]:
    """Return the halves in a value, wherever a codec would find them.

    The value need not be one that a codec can encode: a local channel carries any object.
    """
    found: list[ChannelHalf] = []

    def collect(other: Any) -> None:
        if isinstance(other, ChannelHalf):
            found.append(other)

    with contextlib.suppress(Exception):  # such as keys that no format has; what was found counts
        msgspec.to_builtins(value, builtin_types=_AS_THEY_ARE, enc_hook=collect)
    return found


@dataclass(slots=True)
class Parcel:
    """A message that is queued in a port."""

    value: Any
    headers: HeaderPairs
    receipt: Receipt | None
    attach: tuple[ChannelHalf, ...] = ()
    """The halves that a message of `bytes` carries."""
    error: AqueductError | None = None
    """Why a message that was encoded could not be decoded."""

    def message(self, number: int) -> Message[Any]:
        """Return it as a received message; raise the error that it may be instead."""
        self._check()
        held = Held(self.attach) if self.attach else None
        return Message(self.value, Headers(self.headers), number, held, None)

    def take(self) -> Any:
        """Return the value alone; end the halves that came with it (AQ-CLOSE-4)."""
        self._check()
        for half in self.attach:
            end_half(half)
        return self.value

    def failure(self) -> AqueductError | None:
        """Return the error that is received instead of a value, if any."""
        return error_of(self.headers) if self.error is None and self.headers else self.error

    def _check(self) -> None:
        error = self.failure()
        if error is not None:
            raise error

    def settle(self, outcome: Outcome) -> None:
        """Set the receipt, if the sender asked for one."""
        if self.receipt is not None and not self.receipt.done():
            self.receipt.set_result(outcome)


class _Discarding(threading.local):
    """The queues of messages that this thread is discarding."""

    def __init__(self) -> None:
        self.queues: Unrolled[deque[Parcel]] = Unrolled(_settle_all)


def _settle_all(parcels: deque[Parcel]) -> None:
    while parcels:
        parcel = parcels.popleft()
        parcel.settle(Outcome.LOST)
        for half in (*parcel.attach, *halves_in(parcel.value)):
            port = half._to_attach()._port
            if port.is_open():
                abandon_on_its_loop(port)


_discarding = _Discarding()


def discard(parcels: deque[Parcel]) -> None:
    """Discard messages as lost, and end the halves in them (AQ-CLOSE-4).

    The channel of such a half may hold more messages with halves.
    """
    _discarding.queues.add(parcels)


HALF_TWICE = "a message cannot hold a half twice, nor both halves of a channel"

NOTHING = object()
"""Returned by `pop` if no message is available."""


class Description(NamedTuple):
    """What the `repr` of a handle shows of its port."""

    channel: str
    mode: Mode | None
    """None if only the peer knows it, since the sender chooses the mode."""
    state: str


class SendPort(Protocol):
    """The port of a sender."""

    oneshot: bool

    @property
    def mode(self) -> Mode:
        """How it sends, or will send once the channel is networked."""

    def set_mode(self, mode: Mode) -> None:
        """Choose how to send; raise after the first message."""

    @property
    def priority(self) -> int:
        """The priority class of the messages."""

    def set_priority(self, priority: int) -> None:
        """Change it for what has not left; raise `TypeError` or `ValueError` if it is none."""

    def offer(self, value: Any) -> bool:
        """Queue a message without headers; return False if the caller has to wait or to yield.

        This is the hot path.
        """

    def send(
        self,
        value: Any,
        headers: HeaderPairs,
        receipt: Receipt | None,
        attach: tuple[ChannelHalf, ...] = (),
    ) -> None:
        """Queue a message; raise `WouldBlock` without credit."""

    async def wait(self) -> None:
        """Wait until `send` is worth a retry, or the port was replaced."""

    def send_error(self, headers: HeaderPairs) -> None:
        """Queue a message that is an error; raise `WouldBlock` without credit."""

    def on_close(self, function: Callable[[], None] | None) -> None:
        """Call a function if the receiver is closed or lost, or the connection ends, too early.

        That is before this sender has finished or cancelled.
        """

    def give_up(self) -> None:
        """Leave the queue for connection credit after `WouldBlock`."""

    def is_pressed(self) -> bool:
        """Return whether this turn of the loop has queued enough: the sender should yield."""

    async def wait_turn(self) -> None:
        """Wait until another turn of the loop has room for this sender."""

    def finish(self) -> None:
        """End the channel after the messages sent so far."""

    def cancel(self) -> None:
        """Abort the channel."""

    async def flush(self) -> None:
        """Wait until everything sent so far was delivered; raise if the receiver has ended."""

    def is_closed(self) -> bool:
        """Return whether the receiver has ended."""

    async def wait_closed(self) -> None:
        """Wait until it is worth asking `is_closed` again, or the port was replaced."""

    def is_open(self) -> bool:
        """Return whether it can still send."""

    def abandon(self) -> None:
        """Cancel, because the handle was garbage collected."""

    def describe(self) -> Description:
        """Return what `repr` shows."""

    def statistics(self) -> dict[str, int]:
        """Return counters."""


class ReceivePort(Protocol):
    """The port of a receiver."""

    oneshot: bool
    ready: list[Any]
    """Decoded values that `pop` would return, the next one last; a handle may pop them itself."""

    def pop(self) -> Any:
        """Return the next value, or NOTHING; raise at the end of the channel."""

    def pop_message(self) -> Any:
        """Return the next `Message`, or NOTHING; raise at the end of the channel."""

    def pop_many(self, limit: int) -> list[Any]:
        """Return up to ``limit`` values, possibly none; raise at the end of the channel."""

    def next_size(self) -> int | None:
        """Bytes that `pop` would decode; 0 for the end, None if there is no message."""

    async def wait(self) -> None:
        """Wait until `pop` is worth a retry, or the port was replaced."""

    def close(self) -> None:
        """Stop receiving."""

    def was_cancelled(self) -> bool:
        """Return whether the sender has cancelled the channel."""

    def is_open(self) -> bool:
        """Return whether a message may still come."""

    def abandon(self) -> None:
        """Close, because the handle was garbage collected."""

    def describe(self) -> Description:
        """Return what `repr` shows."""

    def statistics(self) -> dict[str, int]:
        """Return counters."""


class MovedPort:
    """The port of a half that was sent in a message: everything raises `ChannelMoved`."""

    oneshot = False

    def __init__(self) -> None:
        self.ready: list[Any] = []

    def _moved(self, *_: Any) -> Any:
        raise self._error()

    def _error(self) -> ChannelError:
        return ChannelMoved("this half was sent away in a message; the peer holds it now")

    mode = priority = property(_moved)
    is_closed = set_mode = set_priority = offer = send = send_error = pop = pop_message = (
        pop_many
    ) = next_size = _moved

    async def wait(self) -> None:
        """Raise `ChannelMoved`."""
        self._moved()

    flush = wait_closed = wait

    def on_close(self, function: Callable[[], None] | None) -> None:
        """Do nothing: this half does not end here."""

    def is_pressed(self) -> bool:
        """Return False: nothing is queued here."""
        return False

    async def wait_turn(self) -> None:
        """Do nothing: nothing is queued here."""

    def finish(self) -> None:
        """Do nothing: the peer ends this half."""

    cancel = close = abandon = give_up = finish

    def is_open(self) -> bool:
        """Return False."""
        return False

    was_cancelled = is_open

    def describe(self) -> Description:
        """Return what `repr` shows."""
        return Description("none", None, "moved")

    def statistics(self) -> dict[str, int]:
        """Return no counters."""
        return {}


MOVED = MovedPort()

NO_REPLY = "this request has no reply yet; send it with Sender.call(), which fills it"


class UnfilledPort(MovedPort):
    """The port of the reply in a request that was not sent: everything raises `ChannelClosed`."""

    def _error(self) -> ChannelError:
        return ChannelClosed(NO_REPLY)

    def describe(self) -> Description:
        """Return what `repr` shows."""
        return Description("none", None, "unfilled")


UNFILLED = UnfilledPort()


def mode_is_fixed(channel: int | None) -> LocalProtocolError:
    """Return the error for a mode that is set after the first message."""
    name = "this local channel" if channel is None else describe(channel)
    return LocalProtocolError(
        f"messages were sent on {name} already; set the mode of a sender before its first message"
    )


class ForkedCore:
    """Replaces the core of a connection in a child process, where waiting would never end."""

    def take(self, channel: int, limit: int, now: float) -> list[MessageFrame | MessageRun]:
        """Raise `ForkedConnectionError`."""
        raise ForkedConnectionError(FORKED_REASON, channel=channel)

    def finish(self, channel: int, now: float) -> None:
        """Do nothing: the parent ends its channels."""

    cancel = close = finish

    def set_priority(self, channel: int, priority: int) -> None:
        """Do nothing: nothing is sent here."""

    def give_up(self, channel: int) -> bool:
        """Return False: nothing waits for credit here."""
        return False


FORKED = ForkedCore()
FORKED_REASON = "this connection was made before fork(); connect again in the child process"
