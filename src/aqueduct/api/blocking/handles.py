"""Channels for threads: `channel()`, `oneshot()`, and the `Sender` and `Receiver` they return."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, Unpack, overload

from aqueduct.api import channels, handles
from aqueduct.api.blocking.serving import THREADS, serve_in_threads
from aqueduct.api.calls import Request
from aqueduct.api.channels import ChannelOptions, OneshotOptions
from aqueduct.api.half import Handle
from aqueduct.api.serving import RequestHandler, serve_requests
from aqueduct.codec import ChannelHalf
from aqueduct.errors import AqueductError, DecodeError, EndOfChannel
from aqueduct.protocol.modes import Mode
from aqueduct.runtime.background import (
    Attribute,
    Background,
    BlockingTwin,
    Settable,
    background,
    on_loop,
    with_parameters_of,
)
from aqueduct.runtime.headers import Headers, HeadersLike
from aqueduct.runtime.ports import Message, Outcome

if TYPE_CHECKING:
    from typing_extensions import TypeForm

T = TypeVar("T")
R = TypeVar("R")
H = TypeVar("H", bound="handles.Sender[Any] | handles.Receiver[Any]")

_SEND_BATCH = 1_024
"""Messages that `send_many` submits to the loop at a time."""
_READ_AHEAD = 64
"""Messages that one `receive` takes along if they are available."""
_READ_AHEAD_BYTES = 256 * 1024
"""The limit of their payloads, where those are bytes, since no window counts this memory."""


class Receipt:
    """The outcome of one message."""

    def __init__(self, where: Background, future: asyncio.Future[Outcome]) -> None:
        self._background = where
        self._future = future

    def result(self, timeout: float | None = None) -> Outcome:
        """Wait for the outcome: `DELIVERED` or `LOST`."""

        async def wait() -> Outcome:
            return await asyncio.shield(self._future)

        return self._background.run(wait(), timeout)


_wrapping = threading.Lock()
"""Held while a half gets its first twin."""


class _Shared:
    """What all twins of one half share, so that a thread may wrap a half whenever it uses it."""

    __slots__ = ("_background", "ahead", "discarded", "waiting")

    def __init__(self, where: Background) -> None:
        self._background = where
        self.ahead: deque[Message[Any]] = deque()
        """Messages read ahead, without channels: the loop appends them, any thread takes them."""
        self.discarded = 0
        """Messages that were read ahead and not received."""
        self.waiting = 0
        """Tasks of the loop that wait for a message."""

    def abandon(self, half: Handle) -> None:
        """End a half that was garbage collected while open, on the loop, and warn."""
        if self._background.forked:
            return
        text = f"<blocking.{repr(half)[1:]} was not closed; use `with`, or call {half._ended_by}"
        self._background.call_soon(half._port.abandon)
        warnings.warn(text, ResourceWarning, stacklevel=3, source=half)


class BlockingHalf(BlockingTwin[H], ChannelHalf):
    """Base class of the blocking `Sender` and `Receiver`.

    The half ends when it is garbage collected itself, and not with one of its twins.
    """

    __slots__ = ("__weakref__", "_shared")

    headers = Attribute[Headers]("The headers that the channel was made with.")

    def __init__(self, half: H) -> None:
        super().__init__(half, _background_of(half))
        with _wrapping:
            shared = getattr(half, "_twinned", None)
            if shared is None:
                shared = half._twinned = _Shared(self._background)
        self._shared: _Shared = shared

    @property
    def asynchronous(self) -> H:
        """This half as an `aqueduct.Sender` or `aqueduct.Receiver`.

        For type checkers, where a message type declares the field as such: the same type then
        serves threads and asyncio. The field takes either half.
        """
        return self._inner

    def _to_attach(self) -> ChannelHalf:
        return self._inner

    def __repr__(self) -> str:
        return f"<blocking.{repr(self._inner)[1:]}"


class Sender(BlockingHalf[handles.Sender[T]], Generic[T]):
    """The half of a channel that sends, for threads; see `aqueduct.Sender`.

    Made by `channel` or `oneshot`, received in a message, or made from an `aqueduct.Sender`.
    """

    __slots__ = ()

    _sends = True

    priority = Settable[int]("The priority class; see `aqueduct.Sender.priority`.")

    finish = on_loop(handles.Sender.finish)
    cancel = on_loop(handles.Sender.cancel)
    is_closed = Attribute[bool]("Whether the receiver has ended; see `aqueduct.Sender.is_closed`.")
    statistics = on_loop(handles.Sender.statistics)

    @property
    def mode(self) -> Mode:
        """How this sender sends over a network; see `aqueduct.Sender.mode`."""
        return self._inner.mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._background.call(setattr, self._inner, "mode", mode)

    def send(
        self,
        value: T,
        *,
        headers: HeadersLike | None = None,
        receipt: bool = False,
        attach: Sequence[ChannelHalf] = (),
        timeout: float | None = None,
    ) -> Receipt | None:
        """Send a message, waiting for credit; if it raises `TimeoutError`, nothing was sent."""
        work = self._inner.send(value, headers=headers, receipt=receipt, attach=attach)
        future = self._background.run(work, timeout)
        return None if future is None else Receipt(self._background, future)

    def send_nowait(
        self,
        value: T,
        *,
        headers: HeadersLike | None = None,
        attach: Sequence[ChannelHalf] = (),
    ) -> None:
        """Send a message without waiting; raises `WouldBlock` without credit."""
        self._background.call(
            lambda: self._inner.send_nowait(value, headers=headers, attach=attach)
        )

    def send_many(self, values: Iterable[T], *, timeout: float | None = None) -> int:
        """Send messages in batches of 1,024 per call to the loop, and return how many.

        ``timeout`` is for all of them. An error has a note that says how many were sent before it.
        """
        sent = 0
        waiting = iter(values)
        deadline = None if timeout is None else self._background.loop.time() + timeout
        while batch := list(islice(waiting, _SEND_BATCH)):
            left = None if deadline is None else deadline - self._background.loop.time()
            count, error = self._background.run(_send_all(self._inner, batch, left))
            sent += count
            if error is not None:
                error.add_note(f"{sent} messages were sent before")
                raise error
        return sent

    @overload
    def call(self, request: Request[R], /, *, timeout: float | None = None) -> R: ...
    @overload
    def call(self, kind: type[Any], /, *, timeout: float | None = None, **fields: Any) -> Any: ...
    def call(
        self, request: Request[Any] | type[Any], /, *, timeout: float | None = None, **fields: Any
    ) -> Any:
        """Send a request, and wait for the reply; see `aqueduct.Sender.call`."""
        call: Any = self._inner.call
        return self._background.run(call(request, timeout=timeout, **fields))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the receiver has acknowledged everything; raise if the receiver has ended."""
        self._background.run(self._inner.flush(), timeout)

    def wait_closed(self, timeout: float | None = None) -> None:
        """Wait until the receiver has ended: it was closed or lost, or the connection ended."""
        self._background.run(self._inner.wait_closed(), timeout)

    def _leave(self, *, failed: bool) -> None:
        if failed:
            self.cancel()
        else:
            self.finish()


class Receiver(BlockingHalf[handles.Receiver[T]], Generic[T]):
    """The half of a channel that receives, for threads; see `aqueduct.Receiver`.

    Made by `channel` or `oneshot`, received in a message, or made from an `aqueduct.Receiver`, any
    number of times: all of those receive from one queue.
    """

    __slots__ = ()

    _sends = False

    def receive(self, timeout: float | None = None) -> T:
        """Wait for the next message, and return it; see `aqueduct.Receiver.receive`."""
        return self.receive_message(timeout).payload

    def receive_message(self, timeout: float | None = None) -> Message[T]:
        """Wait for the next message, and return it with its headers, number and attachments."""
        self._background.check()
        message = self._next_ahead()
        if message is None:
            message = self._background.run(self._receive(), timeout)
        return message

    def receive_nowait(self) -> T:
        """Return the next message without waiting; raises `WouldBlock` if there is none."""
        return self.receive_message_nowait().payload

    def receive_message_nowait(self) -> Message[T]:
        """Return the next `Message` without waiting; raises `WouldBlock` if there is none."""
        self._background.check()
        message = self._next_ahead()
        if message is None:
            message = self._background.call(self._inner.receive_message_nowait)
        return message

    def receive_many(self, limit: int = 1024, *, timeout: float | None = None) -> list[T]:
        """Wait for a message; return it and those that are available, at most ``limit``."""
        self._background.check()
        values: list[T] = []
        while len(values) < limit and (message := self._next_ahead()) is not None:
            values.append(message.payload)
        return values or self._background.run(self._receive_many(limit), timeout)

    def __iter__(self) -> Iterator[T]:
        """Receive until the channel is finished; raise other ends."""
        while True:
            try:
                value = self.receive()
            except EndOfChannel:
                return
            except DecodeError as error:
                if not error.was_answered:
                    raise
                handles.logger.info("skipped a malformed request: %s", error)
            else:
                yield value

    def serve(self, handler: Callable[[T], object], *, threads: int = THREADS) -> None:
        """Handle each message in a thread, until the channel ends; see `aqueduct.Receiver.serve`.

        At most ``threads`` messages are handled at the same time. A thread cannot be cancelled:
        when its caller has given up, the halves in the message are ended, and raise when used.
        """

        async def take() -> Message[T]:
            message = self._next_ahead()
            return await self._inner.receive_message() if message is None else message

        def serve(handle: RequestHandler) -> Coroutine[Any, Any, None]:
            return serve_requests(self._inner, handle, threads, take)

        serve_in_threads(self._background, serve, handler, threads)

    def close(self) -> None:
        """Stop receiving: the sender gets `ReceiverClosed`, and queued messages are discarded."""
        self._background.call(self._inner.close)
        self._shared.ahead.clear()

    def statistics(self) -> dict[str, int]:
        """Return the counters of this half: ``received``, ``queued``, and others."""
        numbers = self._background.call(self._inner.statistics)
        self._drop_cancelled()
        ahead, discarded = len(self._shared.ahead), self._shared.discarded
        numbers["received"] = numbers.get("received", 0) - ahead - discarded
        numbers["queued"] = numbers.get("queued", 0) + ahead
        return numbers

    def _leave(self, *, failed: bool) -> None:
        self.close()

    def _next_ahead(self) -> Message[T] | None:
        """Return a message that was read ahead, unless the peer has cancelled the channel."""
        if not self._shared.ahead:
            return None
        self._drop_cancelled()
        try:
            return self._shared.ahead.popleft()
        except IndexError:  # dropped, or another thread has taken it
            return None

    def _drop_cancelled(self) -> None:
        """Drop what was read ahead if the peer has cancelled the channel (AQ-CANCEL-5)."""
        if self._shared.ahead and self._inner._port.was_cancelled():
            self._shared.discarded += len(self._shared.ahead)
            self._shared.ahead.clear()

    # -- on the loop ------------------------------------------------------------------------------

    async def _receive(self) -> Message[T]:
        message = self._next_ahead()  # a call of another thread may have read ahead meanwhile
        if message is not None:
            return message
        self._shared.waiting += 1
        try:
            message = await self._inner.receive_message()
        finally:
            self._shared.waiting -= 1
        if not self._shared.waiting:  # otherwise the next message is for another thread
            self._read_ahead(_size(message))
        return message

    async def _receive_many(self, limit: int) -> list[T]:
        message = self._next_ahead()
        if message is not None:
            return [message.payload]
        self._shared.waiting += 1
        try:
            return await self._inner.receive_many(limit)
        finally:
            self._shared.waiting -= 1

    def _read_ahead(self, size: int) -> None:
        """Take messages that the port has decoded, up to the limits.

        Only those: they have no channels, which would have to be ended if the peer cancels. A local
        channel has none, since queued messages have to go with a half that is sent away.
        """
        ready = self._inner._port.ready
        while ready and len(self._shared.ahead) < _READ_AHEAD and size < _READ_AHEAD_BYTES:
            message = self._inner.receive_message_nowait()
            self._shared.ahead.append(message)
            size += _size(message)


class Channel(NamedTuple, Generic[T]):
    """Both halves of a channel, sender first."""

    sender: Sender[T]
    receiver: Receiver[T]


@overload
def channel(**options: Unpack[ChannelOptions]) -> Channel[bytes]: ...
@overload
def channel(kind: type[T], **options: Unpack[ChannelOptions]) -> Channel[T]: ...
@overload
def channel(kind: TypeForm[T], **options: Unpack[ChannelOptions]) -> Channel[T]: ...
@overload
def channel(kind: Any, **options: Unpack[ChannelOptions]) -> Channel[Any]: ...
@with_parameters_of(channels.channel)
def channel(kind: Any = bytes, **options: Any) -> Channel[Any]:
    """Make a channel for messages of a type; see `aqueduct.channel`."""
    made = channels.channel(kind, **options)
    _present_twins(made)
    return Channel(Sender(made.sender), Receiver(made.receiver))


@overload
def oneshot(**options: Unpack[OneshotOptions]) -> Channel[bytes]: ...
@overload
def oneshot(kind: type[T], **options: Unpack[OneshotOptions]) -> Channel[T]: ...
@overload
def oneshot(kind: TypeForm[T], **options: Unpack[OneshotOptions]) -> Channel[T]: ...
@overload
def oneshot(kind: Any, **options: Unpack[OneshotOptions]) -> Channel[Any]: ...
@with_parameters_of(channels.oneshot)
def oneshot(kind: Any = bytes, **options: Any) -> Channel[Any]:
    """Make a channel for one message, such as the reply to a request."""
    made = channels.oneshot(kind, **options)
    _present_twins(made)
    return Channel(Sender(made.sender), Receiver(made.receiver))


def _present_twins(made: channels.Channel[Any]) -> None:
    """Have an encoding channel give the receiver blocking halves."""
    encoding = made.sender._port.channel.encoding  # type: ignore[attr-defined]
    if encoding is not None:
        encoding.present_as(present)


def wrap(half: ChannelHalf) -> ChannelHalf:
    """Return the blocking twin of a half."""
    if isinstance(half, handles.Sender):
        return Sender(half)
    assert isinstance(half, handles.Receiver)
    return Receiver(half)


def present(half: ChannelHalf, wanted: type[ChannelHalf] | None) -> ChannelHalf:
    """Return a received half as the class that its message type declares; by default, blocking."""
    return half if wanted is type(half) else wrap(half)


async def _send_all(
    half: handles.Sender[Any], values: list[Any], seconds: float | None
) -> tuple[int, AqueductError | TimeoutError | None]:
    """Send in order; return how many were sent, and the error that stopped it."""
    sent = 0
    try:
        async with asyncio.timeout(seconds):
            for value in values:
                await half.send(value)
                sent += 1
    except (AqueductError, TimeoutError) as error:
        return sent, error
    return sent, None


def _size(message: Message[Any]) -> int:
    return len(message.payload) if isinstance(message.payload, bytes) else 0


def _background_of(half: handles.Sender[Any] | handles.Receiver[Any]) -> Background:
    where = background()
    driver = getattr(half._port, "driver", None)
    if driver is not None and driver.loop is not where.loop:
        raise TypeError("this half belongs to another event loop; use it there")
    return where
