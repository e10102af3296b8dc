"""Serving requests: a task for each one, which ends with its caller and leaves nothing open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from aqueduct.api.calls import Request
from aqueduct.api.half import Handle
from aqueduct.api.handles import Receiver, Sender, logger
from aqueduct.errors import (
    AqueductError,
    CallError,
    ChannelCancelled,
    ChannelLostInTransit,
    ConnectionLost,
    EndOfChannel,
    MessageError,
    ReceiverClosed,
    WouldBlock,
)
from aqueduct.runtime.call_headers import DEADLINE_EXCEEDED, INTERNAL, error_header, timeout_of
from aqueduct.runtime.ports import UNFILLED, Message, MovedPort, halves_in

RequestHandler = Callable[[Any], Awaitable[Any]]
"""Handles one request; what it returns is the reply to a `Request`."""


async def serve_requests(
    receiver: Receiver[Any],
    handler: RequestHandler,
    concurrency: int,
    take: Callable[[], Awaitable[Message[Any]]] | None = None,
) -> None:
    """Run a handler in a task for each message of a channel, until the channel ends.

    ``take`` returns the next message, if that is not the receiver's own `receive_message`.
    """
    take = take or receiver.receive_message
    if concurrency < 1:
        raise ValueError("concurrency is how many requests are handled at once: 1 or more")
    slots = asyncio.Semaphore(concurrency)
    lost: AqueductError | None = None
    async with asyncio.TaskGroup() as group:
        while True:
            await slots.acquire()
            try:
                message = await take()
            except EndOfChannel:
                break
            except MessageError as error:
                logger.info("skipped a malformed request: %s", error)
                slots.release()
                continue
            except AqueductError as error:
                lost = error  # let the handlers finish whose callers do not wait
                break
            work = _Work(handler, message, _halves_of(message))
            work.task = group.create_task(work.run())
            work.task.add_done_callback(partial(_end, work, slots))
            del message, work  # do not keep the request alive until the next one
    if lost is not None:
        raise lost


def _end(work: _Work, slots: asyncio.Semaphore, _: asyncio.Task[None]) -> None:
    """Handle the end of a task, also of one that was cancelled before it began."""
    work.end()
    slots.release()


def _halves_of(message: Message[Any]) -> list[Handle]:
    """Return the halves in a message, each as the asynchronous one."""
    halves: Any = ()
    if message._attached is not None:
        halves = message._attached.halves()
    elif message._halves is not None:
        halves = [half for each in message._halves if (half := each()) is not None]
    else:  # the message never left this process, and holds the sender's own halves
        halves = halves_in(message.payload)
    return [half._to_attach() for half in halves]


class _Work:
    """One request, the task that handles it, and the halves that have to end with it."""

    def __init__(
        self, handler: RequestHandler, message: Message[Any], halves: list[Handle]
    ) -> None:
        self._handler = handler
        self._message = message
        self._halves = halves
        self._senders = [half for half in halves if isinstance(half, Sender)]
        payload = message.payload
        self._reply: Sender[Any] | None = payload.reply if isinstance(payload, Request) else None
        self._closed = False
        """Whether the receiver of a sender in the request was closed or lost."""
        self._is_abandoned = False
        """Whether the caller does not wait any more."""
        self.task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Handle the request; the errors of the handler end here."""
        if self._reply is not None and self._reply._port is UNFILLED:
            logger.info("skipped a request of type %s without a reply", self._name)
            return
        for sender in self._senders:
            sender._port.on_close(partial(self._handle_closed, sender))
        seconds = timeout_of(self._message.headers.pairs)
        if self._is_abandoned:
            return
        if seconds == 0:
            await self._fail(DEADLINE_EXCEEDED, "the deadline had passed when the request arrived")
            return
        try:
            async with asyncio.timeout(seconds) as deadline:
                await self._answer(await self._handler(self._message.payload))
        except asyncio.CancelledError as error:
            if not self._is_abandoned:
                assert self.task is not None
                if self.task.cancelling():
                    raise  # the server stops
                await self._handle_failure(error)
        except TimeoutError as error:
            if deadline.expired():
                await self._fail(DEADLINE_EXCEEDED, f"not done within {seconds:g} s")
            else:
                await self._handle_failure(error)
        except Exception as error:  # noqa: BLE001 -- the failure of one request ends that one alone
            await self._handle_failure(error)

    def end(self) -> None:
        """Cancel the senders and close the receivers that the handler left open (AQ-CALL-6)."""
        for half in self._halves:
            if isinstance(half, Sender):
                half._port.on_close(None)
            half._port.abandon()

    @property
    def _name(self) -> str:
        return type(self._message.payload).__name__

    async def _answer(self, value: Any) -> None:
        """Send what the handler returned, if this is a request with a reply."""
        reply = self._reply
        if reply is not None and reply._port.is_open():
            await reply.send(value)
        elif value is not None and not self._closed:
            raise TypeError(
                f"the handler of {self._name} returned a value, but "
                + ("a reply was sent already" if reply else "only an aqueduct.Request has a reply")
            )

    async def _handle_failure(self, error: BaseException) -> None:
        """Tell the caller of a handler that raised."""
        if isinstance(error, CallError) and not error.by_peer:
            await self._fail(error.code, error.text)
        elif not self._is_of_caller(error):
            message = f"the handler of {self._name} failed"
            context = {"message": message, "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            await self._fail(INTERNAL, "the handler of the request failed")

    def _is_of_caller(self, error: BaseException) -> bool:
        """Return whether an error only says that the caller has ended a channel of the request."""
        if isinstance(error, BaseExceptionGroup):
            return error.split(self._is_of_caller)[1] is None
        ends = (ReceiverClosed, ChannelCancelled, ChannelLostInTransit, ConnectionLost)
        if not isinstance(error, ends):
            return False
        ports = [half._port for half in self._halves if not isinstance(half._port, MovedPort)]
        # The errors of channels within this process name no channel.
        channels = [port.channel if isinstance(port.channel, int) else None for port in ports]
        return error.channel in channels

    async def _fail(self, code: str, text: str) -> None:
        """Send an error on the reply, or on the sender that stands for it (AQ-CALL-4)."""
        reply = self._reply
        if reply is None:
            senders = [sender for sender in self._senders if sender._port.is_open()]
            first = senders[0] if senders else None
            reply = next((one for one in senders if one._port.oneshot), first)
        if reply is None or not reply._port.is_open():
            return
        try:
            while True:
                try:
                    reply._port.send_error(error_header(code, text))
                except WouldBlock:
                    await reply._port.wait()
                else:
                    break
            reply.finish()
        except AqueductError:
            # The caller has given up, or its limits are too low for the error. What is left open of
            # the request ends next, so that it learns at least that there will be no reply.
            return

    def _handle_closed(self, sender: Sender[Any]) -> None:
        """Cancel the handler if its caller has given up, and so does not wait for the reply."""
        self._closed = True
        if sender is self._reply or not any(one._port.is_open() for one in self._senders):
            self._is_abandoned = True
            if self.task is not None:
                self.task.cancel()
