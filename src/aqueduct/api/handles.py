"""The two halves of a channel, as people hold them: the same object, local or networked."""

from __future__ import annotations

import asyncio
import warnings
import weakref
from collections.abc import AsyncIterator, Hashable
from functools import lru_cache
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from aqueduct.codec import ChannelHalf
from aqueduct.errors import (
    ChannelClosed,
    ChannelError,
    ChannelMoved,
    EncodeError,
    EndOfChannel,
    WouldBlock,
)
from aqueduct.protocol.connection import Attach, Give, Mode
from aqueduct.runtime.headers import Headers, HeadersLike, to_pairs
from aqueduct.runtime.local_channel import LocalChannel, LocalReceivePort, LocalSendPort
from aqueduct.runtime.ports import MOVED, NOTHING, Message, Receipt, ReceivePort, SendPort
from aqueduct.runtime.receive_port import NetworkReceivePort
from aqueduct.runtime.send_port import NetworkSendPort
from aqueduct.wire.primitives import HeaderPairs

if TYPE_CHECKING:
    from aqueduct.runtime.connection_driver import Line, Port

T = TypeVar("T")

DEFAULT_CAPACITY = 64
"""Messages a local channel holds before its sender waits."""


class Origin:
    """What both halves of a channel made here know: its type, mode, headers, and each other."""

    __slots__ = ("headers", "kind", "mode", "receiver", "sender")

    def __init__(self, kind: Any, mode: Mode, headers: HeaderPairs) -> None:
        self.kind = kind
        self.mode = mode
        self.headers = headers
        self.sender: weakref.ref[Sender[Any]] | None = None
        self.receiver: weakref.ref[Receiver[Any]] | None = None


class Half(ChannelHalf):
    """What a sender and a receiver have in common as handles."""

    __slots__ = ("__weakref__", "_headers", "_origin", "_port")

    end_it: ClassVar[str]
    """What ends it, for the warning of one that was forgotten."""
    give: ClassVar[Give]
    _port: Any
    _origin: Origin | None
    _headers: HeaderPairs

    @classmethod
    def from_port(cls, port: Any, headers: HeaderPairs, origin: Origin | None = None) -> Self:
        """A handle on a port."""
        handle = cls.__new__(cls)
        handle._port = port
        handle._headers = headers
        handle._origin = origin
        return handle

    @property
    def headers(self) -> Headers:
        """The headers the channel was made with."""
        return Headers(self._headers)

    def statistics(self) -> dict[str, int]:
        """Counters of this half."""
        return self._port.statistics()  # type: ignore[no-any-return]

    def prepare_to_move(self) -> Attach:
        """What to tell the core when this half goes away."""
        return _prepare(self, self.give)

    def __del__(self) -> None:
        port = getattr(self, "_port", None)
        if port is not None and port.is_open():
            forget(self, port, self.end_it)


class Sender(Half, Generic[T]):
    """The half that sends. Make one with `channel()` or `oneshot()`, or get one in a message."""

    __slots__ = ()

    sends = True
    give = Give.SENDER
    end_it = "finish() or cancel()"
    _port: SendPort

    async def send(
        self, value: T, *, headers: HeadersLike | None = None, receipt: bool = False
    ) -> Receipt | None:
        """Send a message; waits for room. Cancelled while it waits, it has sent nothing."""
        try:
            if headers is None and not receipt and self._port.offer(value):
                return None
            if self._port.is_pressed():
                await asyncio.sleep(0)
            pairs = to_pairs(headers)
            future: Receipt | None = asyncio.get_running_loop().create_future() if receipt else None
            while True:
                try:
                    self._port.send(value, pairs, future)
                except WouldBlock:
                    await self._port.wait()
                else:
                    return future
        except ChannelError as error:
            error.payload = value
            raise

    def send_nowait(self, value: T, *, headers: HeadersLike | None = None) -> None:
        """Send a message now, or raise `WouldBlock`."""
        try:
            self._port.send(value, to_pairs(headers), None)
        except WouldBlock:
            self._port.give_up()
            raise
        except ChannelError as error:
            error.payload = value
            raise

    def finish(self) -> None:
        """No more messages: the receiver sees the end after the last one.

        Raises why a message that was queued before the channel was sent away could not follow it,
        if nobody was told yet; the receiver then sees `ChannelCancelled`.
        """
        self._port.finish()

    def cancel(self) -> None:
        """Give up: what was not received yet need not be."""
        self._port.cancel()

    async def flush(self) -> None:
        """Wait until the peer has everything sent so far, or raise what happened instead.

        After `cancel` that is `ChannelClosed`, unless everything had arrived by then.
        """
        port = None
        while port is not self._port:  # else the channel was local, and went on as another
            port = self._port
            await port.flush()

    async def call(
        self,
        kind: type[Any],
        /,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 -- what a caller wants to write
        **fields: Any,
    ) -> Any:
        """Send a ``kind`` whose one unfilled `Sender` field is for the answer; returns that."""
        name, answer_type = reply_field(kind, fields)
        reply, answer = oneshot(answer_type)
        fields[name] = reply
        async with asyncio.timeout(timeout), answer:
            try:
                await self.send(kind(**fields))
            except BaseException:
                reply.cancel()
                raise
            return await answer.receive()

    async def __aenter__(self) -> Sender[T]:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish()
        else:
            self.cancel()

    # -- moving -----------------------------------------------------------------------------------

    def move(self, line: Line, channel: int) -> None:
        """This half went away; the receiver, still here, becomes networked."""
        port, self._port = self._port, MOVED
        origin = self._origin
        assert isinstance(port, LocalSendPort)
        assert origin is not None
        local = port.channel
        network = line.open_port(channel, origin.kind)
        assert isinstance(network, NetworkReceivePort)
        network.leftover = local.hand_over()
        receiver = origin.receiver() if origin.receiver is not None else None
        if receiver is None or local.closed:
            network.close()
        if receiver is not None:
            receiver._port = network
        local.wake_all()


class Receiver(Half, Generic[T]):
    """The half that receives."""

    __slots__ = ()

    sends = False
    give = Give.RECEIVER
    end_it = "close()"
    _port: ReceivePort

    async def receive(self) -> T:
        """The next message; `EndOfChannel` after the last one of a finished channel."""
        while True:
            value = self._port.pop()
            if value is not NOTHING:
                return value  # type: ignore[no-any-return]
            await self._port.wait()

    def receive_nowait(self) -> T:
        """The next message if there is one, else `WouldBlock`."""
        value = self._port.pop()
        if value is NOTHING:
            raise WouldBlock("no message is here")
        return value  # type: ignore[no-any-return]

    async def receive_message(self) -> Message[T]:
        """The next message with its headers and number; of `bytes`, also with its halves."""
        while True:
            message = self._port.pop_message()
            if message is not NOTHING:
                return message  # type: ignore[no-any-return]
            await self._port.wait()

    def receive_message_nowait(self) -> Message[T]:
        """The next message with its headers and number if there is one, else `WouldBlock`."""
        message = self._port.pop_message()
        if message is NOTHING:
            raise WouldBlock("no message is here")
        return message  # type: ignore[no-any-return]

    async def receive_many(self, limit: int = 1024) -> list[T]:
        """At least one message, and as many more as are here, up to a limit."""
        if limit < 1:
            raise ValueError("a batch has room for at least one message")
        while True:
            values = self._port.pop_many(limit)
            if values:
                return values
            await self._port.wait()

    async def __aiter__(self) -> AsyncIterator[T]:
        """All messages, until the channel is finished; other ends raise."""
        while True:
            ready = self._port.ready
            while ready:
                yield ready.pop()
            try:
                value = self._port.pop()
            except EndOfChannel:
                return
            if value is NOTHING:
                await self._port.wait()
            else:
                yield value

    def close(self) -> None:
        """Stop receiving: what is queued is dropped."""
        self._port.close()

    async def __aenter__(self) -> Receiver[T]:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- moving -----------------------------------------------------------------------------------

    def move(self, line: Line, channel: int) -> None:
        """This half went away; the sender, still here, becomes networked."""
        port, self._port = self._port, MOVED
        origin = self._origin
        assert isinstance(port, LocalReceivePort)
        assert origin is not None
        local = port.channel
        network = line.open_port(channel, origin.kind)
        assert isinstance(network, NetworkSendPort)
        sender = origin.sender() if origin.sender is not None else None
        if sender is not None:
            sender._port = network
        if local.cancelled or (sender is None and not local.finished):
            network.sent = network.undelivered = local.sent - local.taken
            network.cancel()
        else:
            network.adopt(local.hand_over(), local.finished)
        local.wake_all()


async def wait_readable(receiver: Receiver[Any]) -> None:
    """Wait until `receive_nowait` is worth a retry, after it has raised `WouldBlock`.

    For a server that receives a message only when it has the memory for it.
    """
    await receiver._port.wait()


def try_send(sender: Sender[T], value: T) -> bool:
    """Send without waiting; return False without credit, then `wait_writable` waits for it."""
    try:
        sender._port.send(value, (), None)
    except WouldBlock:
        return False
    return True


async def wait_writable(sender: Sender[Any]) -> None:
    """Wait until `try_send` is worth a retry, without holding a message.

    For a server that frees the memory of messages that a slow client does not receive.
    """
    await sender._port.wait()


def handle_for(port: Port, headers: HeaderPairs) -> Sender[Any] | Receiver[Any]:
    """Return the handle of a half whose other half is at the peer."""
    if isinstance(port, NetworkSendPort):
        return Sender.from_port(port, headers)
    return Receiver.from_port(port, headers)


class Channel(NamedTuple, Generic[T]):
    """Both halves of a channel, sender first."""

    sender: Sender[T]
    receiver: Receiver[T]


class OneshotOptions(TypedDict, total=False):
    """What `oneshot` takes besides a type."""

    headers: HeadersLike | None


class ChannelOptions(OneshotOptions, total=False):
    """What `channel` takes besides a type."""

    mode: Mode
    capacity: int


@overload
def channel(**options: Unpack[ChannelOptions]) -> Channel[bytes]: ...
@overload
def channel(kind: type[T], **options: Unpack[ChannelOptions]) -> Channel[T]: ...
@overload
def channel(kind: Any, **options: Unpack[ChannelOptions]) -> Channel[Any]: ...
def channel(
    kind: Any = bytes,
    *,
    mode: Mode = Mode.ORDERED,
    capacity: int = DEFAULT_CAPACITY,
    headers: HeadersLike | None = None,
) -> Channel[Any]:
    """A channel for messages of a type; local until one of its halves is sent in a message."""
    return _make(kind, mode, capacity, to_pairs(headers), oneshot=False)


@overload
def oneshot(**options: Unpack[OneshotOptions]) -> Channel[bytes]: ...
@overload
def oneshot(kind: type[T], **options: Unpack[OneshotOptions]) -> Channel[T]: ...
@overload
def oneshot(kind: Any, **options: Unpack[OneshotOptions]) -> Channel[Any]: ...
def oneshot(kind: Any = bytes, *, headers: HeadersLike | None = None) -> Channel[Any]:
    """A channel for one message, such as an answer."""
    return _make(kind, Mode.ORDERED, 1, to_pairs(headers), oneshot=True)


def _make(
    kind: Any, mode: Mode, capacity: int, headers: HeaderPairs, *, oneshot: bool
) -> Channel[Any]:
    local = LocalChannel(capacity, oneshot=oneshot)
    origin = Origin(kind, mode, headers)
    sender: Sender[Any] = Sender.from_port(LocalSendPort(local), headers, origin)
    receiver: Receiver[Any] = Receiver.from_port(LocalReceivePort(local), headers, origin)
    origin.sender = weakref.ref(sender)
    origin.receiver = weakref.ref(receiver)
    return Channel(sender, receiver)


def _prepare(half: Half, give: Give) -> Attach:
    origin = half._origin
    port = half._port
    if port is MOVED:
        raise ChannelMoved("this half was sent away already; a half can be sent once")
    if origin is None or not isinstance(port, LocalSendPort | LocalReceivePort):
        raise EncodeError(
            "a networked half cannot be sent on; make a new channel and copy the messages"
        )
    if port.is_over():
        raise ChannelClosed("this half was finished, cancelled or closed; send one that is open")
    return Attach(give, port.oneshot, origin.headers, origin.mode)


def forget(half: object, port: Any, what: str) -> None:
    """A half was dropped without an end: end it on its loop, and warn, which may raise."""
    line = getattr(port, "line", None)
    if line is None:
        port.abandon()
    elif not line.driver.loop.is_closed():
        line.driver.loop.call_soon_threadsafe(port.abandon)
    warnings.warn(
        f"a {type(half).__name__} was forgotten while open; use `async with`, or call {what}",
        ResourceWarning,
        stacklevel=3,
        source=half,
    )


def reply_field(kind: type[Any], fields: dict[str, Any]) -> tuple[str, Any]:
    """The one `Sender` field of a message type that was not filled, and what it sends."""
    open_fields = [field for field in sender_fields(cast(Hashable, kind)) if field[0] not in fields]
    if len(open_fields) != 1:
        raise TypeError(
            f"call() needs a type with exactly one unfilled Sender field; "
            f"{kind.__name__} has {len(open_fields)}"
        )
    return open_fields[0]


@lru_cache(maxsize=1024)
def sender_fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    """The `Sender` fields of a message type, and what each sends."""
    found = []
    for name, hint in get_type_hints(kind).items():
        half = get_origin(hint) or hint
        if isinstance(half, type) and issubclass(half, ChannelHalf) and half.sends:
            arguments = get_args(hint)
            found.append((name, arguments[0] if arguments else bytes))
    return tuple(found)
