"""The halves of a channel that applications hold: `Sender` and `Receiver`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NoReturn,
    TypeVar,
    overload,
)

from aqueduct.api.half import Handle, check_attach
from aqueduct.codec import ChannelHalf, CodecClass
from aqueduct.codec.registry import for_reply
from aqueduct.errors import (
    AqueductError,
    ChannelError,
    DecodeError,
    EndOfChannel,
    WouldBlock,
)
from aqueduct.protocol.connection import Give, Mode
from aqueduct.protocol.modes import check_mode, visible_headers
from aqueduct.runtime.headers import HeadersLike, to_pairs
from aqueduct.runtime.local_channel import LocalReceivePort, LocalSendPort
from aqueduct.runtime.ports import (
    MOVED,
    NOTHING,
    Message,
    Receipt,
    ReceivePort,
    SendPort,
)
from aqueduct.runtime.receive_port import NetworkReceivePort
from aqueduct.runtime.send_port import NetworkSendPort
from aqueduct.wire.primitives import HeaderPairs

if TYPE_CHECKING:
    from aqueduct.api.calls import Request
    from aqueduct.runtime.connection_driver import ConnectionDriver, Port

CONCURRENCY = 256
"""Messages of one channel that `Receiver.serve` handles at the same time by default; others wait in
the channel, where flow control limits them."""

logger = logging.getLogger("aqueduct")

T = TypeVar("T")
R = TypeVar("R")


class Sender(Handle, Generic[T]):
    """The half of a channel that sends; see `channel` and `oneshot`.

    In ``async with`` it finishes at the end of the block, and cancels if the block raises.
    """

    __slots__ = ()

    _sends = True
    _give = Give.SENDER
    _ended_by = "finish() or cancel()"
    _port: SendPort

    @property
    def mode(self) -> Mode:
        """How this sender sends over a network; may be set until its first message.

        A sender that was received starts with the mode that its channel was made with. Setting it
        raises `TypeError` if it is no `Mode`, and `LocalProtocolError` after the first message.
        """
        return self._port.mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._port.set_mode(check_mode(mode))

    @property
    def priority(self) -> int:
        """The priority class, from 0 to 7: the messages of class 0 leave first.

        It orders the messages that wait on one connection, and is not known to the peer. It can be
        set at any time, also while messages wait.
        """
        return self._port.priority

    @priority.setter
    def priority(self, priority: int) -> None:
        self._port.set_priority(priority)

    async def send(
        self,
        value: T,
        *,
        headers: HeadersLike | None = None,
        receipt: bool = False,
        attach: Sequence[ChannelHalf] = (),
    ) -> Receipt | None:
        """Send a message, waiting for credit; if the task is cancelled, nothing was sent.

        With ``receipt`` this returns a future with the `Outcome` of the message. ``attach`` are
        halves that go along with a message of `bytes`, which the receiver finds in
        `Message.attachments`; a typed message has them in its fields. Raises a `ChannelError` whose
        ``payload`` is the value if the channel has ended, and a `MessageError` if this message
        cannot be sent.
        """
        try:
            if headers is None and not receipt and not attach and self._port.offer(value):
                return None
            if self._port.is_pressed():
                await self._port.wait_turn()
            pairs = to_pairs(headers)
            halves = check_attach(self, attach) if attach else ()
            future: Receipt | None = asyncio.get_running_loop().create_future() if receipt else None
            while True:
                try:
                    self._port.send(value, pairs, future, halves)
                except WouldBlock:
                    await self._port.wait()
                else:
                    return future
        except ChannelError as error:
            error.payload = value
            raise

    def send_nowait(
        self,
        value: T,
        *,
        headers: HeadersLike | None = None,
        attach: Sequence[ChannelHalf] = (),
    ) -> None:
        """Send a message without waiting; raises `WouldBlock` without credit."""
        try:
            halves = check_attach(self, attach) if attach else ()
            self._port.send(value, to_pairs(headers), None, halves)
        except WouldBlock:
            self._port.give_up()
            raise
        except ChannelError as error:
            error.payload = value
            raise

    async def send_many(
        self,
        values: Iterable[T],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 -- as for threads
    ) -> int:
        """Send messages in order, waiting for credit, and return how many.

        ``timeout`` is for all of them. An error has a note that says how many were sent before it.
        """
        sent = 0
        try:
            async with asyncio.timeout(timeout):
                for value in values:
                    await self.send(value)
                    sent += 1
        except (AqueductError, TimeoutError) as error:
            error.add_note(f"{sent} messages were sent before")
            raise
        return sent

    def finish(self) -> None:
        """End the channel: the receiver gets `EndOfChannel` after the last message.

        A no-op if this sender has ended. Raises if a message that was queued before the channel
        was sent away cannot be sent, and no call has raised that yet; the receiver then gets
        `ChannelCancelled`.
        """
        self._port.finish()

    def cancel(self) -> None:
        """Abort the channel: messages that were not received may be lost.

        The receiver gets `ChannelCancelled`. A no-op if this sender has ended.
        """
        self._port.cancel()

    async def flush(self) -> None:
        """Wait until the receiver has acknowledged everything sent so far.

        Raises the `ChannelError` that prevented it: after `cancel` that is `ChannelClosed`, unless
        everything was acknowledged before. Raises also if the receiver has ended, whether messages
        are outstanding or not; not after `finish`, if it has received everything.
        """
        port = None
        while port is not self._port:  # a local channel may become networked meanwhile
            port = self._port
            await port.flush()

    @property
    def is_closed(self) -> bool:
        """Whether the receiver has ended, so that nothing more can reach it.

        It was closed, or its channel lost in transit, or the connection has ended. That holds also
        once it has received everything of a finished channel.
        """
        return self._port.is_closed()

    async def wait_closed(self) -> None:
        """Wait until `is_closed`; a server learns by it that a caller has given up."""
        while not self._port.is_closed():  # a local channel may become networked meanwhile
            await self._port.wait_closed()

    @overload
    async def call(
        self,
        request: Request[R],
        /,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 -- a request has a deadline
    ) -> R: ...
    @overload
    async def call(
        self,
        kind: type[Any],
        /,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        **fields: Any,
    ) -> Any: ...
    async def call(
        self,
        request: Request[Any] | type[Any],
        /,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        **fields: Any,
    ) -> Any:
        """Send a request, and return the reply; the timeout travels with the request.

        Of a message type that is no `Request`, give the class, and its fields but for one `Sender`
        field: that one gets the sender of a oneshot channel for the reply.

        Raises `CallError` if the peer answers with an error, `CallTimeout` without a reply after
        ``timeout`` seconds, and `TypeError` if this is no request of the channel.
        """
        from aqueduct.api import calls

        if isinstance(request, type):
            return await calls.call_type(self, request, fields, timeout)
        if fields:
            raise TypeError(f"{next(iter(fields))!r} belongs to the request, as in call(Add(a=1))")
        return await calls.call_request(self, request, timeout)

    def _codec_for_reply(self, kind: Any) -> CodecClass | None:
        """Return the codec of the reply to a request on this channel: the same one."""
        if kind is bytes:
            return None
        port, origin = self._port, self._origin
        if isinstance(port, NetworkSendPort):
            return for_reply(port.codec)
        return None if origin is None else origin.codec

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

    def _move(self, driver: ConnectionDriver, channel: int) -> None:
        """Move this half to the peer: the receiver, which stays, becomes networked."""
        port, self._port = self._port, MOVED
        origin = self._origin
        assert isinstance(port, LocalSendPort)
        assert origin is not None
        local = port.channel
        origin.channel, origin.mode = channel, local.mode
        network = driver.open_port(channel, origin.kind, origin.codec)
        assert isinstance(network, NetworkReceivePort)
        network.leftover = local.hand_over()
        receiver = origin.receiver() if origin.receiver is not None else None
        if receiver is None or local.closed:
            network.close()
        if receiver is not None:
            receiver._port = network
        local.wake_all()


class Receiver(Handle, Generic[T]):
    """The half of a channel that receives; see `channel` and `oneshot`.

    ``async for`` receives until the channel is finished, and raises other ends. ``async with``
    closes the receiver at the end of the block.
    """

    __slots__ = ()

    _sends = False
    _give = Give.RECEIVER
    _ended_by = "close()"
    _port: ReceivePort

    async def receive(self) -> T:
        """Wait for the next message, and return it.

        Raises `EndOfChannel` after the last message of a finished channel, `ChannelError` if the
        channel has ended otherwise, and `DecodeError` if this message is not of the channel's type.
        """
        while True:
            value = self._port.pop()
            if value is not NOTHING:
                return value  # type: ignore[no-any-return]
            await self._port.wait()

    def receive_nowait(self) -> T:
        """Return the next message without waiting; raises `WouldBlock` if there is none."""
        value = self._port.pop()
        if value is NOTHING:
            raise WouldBlock("no message is available")
        return value  # type: ignore[no-any-return]

    async def receive_message(self) -> Message[T]:
        """Wait for the next message, and return it with its headers, number and attachments."""
        while True:
            message = self._port.pop_message()
            if message is not NOTHING:
                return message  # type: ignore[no-any-return]
            await self._port.wait()

    def receive_message_nowait(self) -> Message[T]:
        """Return the next `Message` without waiting; raises `WouldBlock` if there is none."""
        message = self._port.pop_message()
        if message is NOTHING:
            raise WouldBlock("no message is available")
        return message  # type: ignore[no-any-return]

    async def receive_many(self, limit: int = 1024) -> list[T]:
        """Wait for a message; return it and those that are available, at most ``limit``."""
        if limit < 1:
            raise ValueError("a batch has room for at least one message")
        while True:
            values = self._port.pop_many(limit)
            if values:
                return values
            await self._port.wait()

    async def __aiter__(self) -> AsyncIterator[T]:
        """Receive until the channel is finished; raise other ends.

        Skips a request that cannot be decoded if its caller learns of it (AQ-CALL-4).
        """
        while True:
            ready = self._port.ready
            while ready:
                yield ready.pop()
            try:
                value = self._port.pop()
            except EndOfChannel:
                return
            except DecodeError as error:
                if not error.was_answered:
                    raise
                logger.info("skipped a malformed request: %s", error)
                continue
            if value is NOTHING:
                await self._port.wait()
            else:
                yield value

    if not TYPE_CHECKING:  # type checkers report this use by themselves

        def __iter__(self) -> NoReturn:
            raise TypeError(f"write `async for`; {self._in_threads()}")

    async def serve(
        self,
        handler: Callable[[T], Awaitable[object]],
        *,
        concurrency: int = CONCURRENCY,
    ) -> None:
        """Handle each message in a task of its own, until the channel ends.

        What the handler returns is the reply to a `Request`. A `CallError` that it raises reaches
        the caller; of any other exception the caller gets the code ``internal``, and the event
        loop's exception handler the traceback. When the handler ends, halves in the message that
        it left open are cancelled or closed, so that no caller waits for them.

        The handler is cancelled when its caller gives up: the receiver of the reply, or of all
        senders in the message, was closed or lost, or the deadline of the request has passed.

        At most ``concurrency`` messages are handled at the same time. A message that cannot be
        decoded is skipped, and its caller told why. At the end of the channel this waits for the
        handlers that run, and raises ends other than `EndOfChannel`.
        """
        from aqueduct.api.serving import serve_requests

        await serve_requests(self, handler, concurrency)

    def close(self) -> None:
        """Stop receiving: the sender gets `ReceiverClosed`, and queued messages are discarded."""
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

    def _move(self, driver: ConnectionDriver, channel: int) -> None:
        """Move this half to the peer: the sender, which stays, becomes networked."""
        port, self._port = self._port, MOVED
        origin = self._origin
        assert isinstance(port, LocalReceivePort)
        assert origin is not None
        local = port.channel
        origin.channel, origin.mode = channel, local.mode
        network = driver.open_port(channel, origin.kind, origin.codec, local.mode)
        assert isinstance(network, NetworkSendPort)
        sender = origin.sender() if origin.sender is not None else None
        if sender is not None:
            sender._port = network
        if local.cancelled or (sender is None and not local.finished):
            network.sent = network.undelivered = local.sent - local.taken
            network.cancel()
        else:
            network.adopt(local.hand_over(), local.finished, local.sent > 0)
        local.wake_all()


def handle_for(port: Port, headers: HeaderPairs) -> Sender[Any] | Receiver[Any]:
    """Return the handle of a half whose other half is at the peer."""
    seen = visible_headers(headers)
    if isinstance(port, NetworkSendPort):
        return Sender._from_port(port, seen)
    return Receiver._from_port(port, seen)
