"""Calls: typed requests, and the exchange of a request for its reply."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from aqueduct.api.channels import oneshot
from aqueduct.api.handles import Receiver, Sender
from aqueduct.codec import ChannelHalf, CodecClass, codec_for
from aqueduct.codec.registry import choose
from aqueduct.errors import (
    CallError,
    CallTimeout,
    ChannelClosed,
    ChannelError,
    ChannelLostInTransit,
    EncodeError,
    ReceiverClosed,
    WouldBlock,
)
from aqueduct.protocol.connection import Attach, Give
from aqueduct.runtime.call_headers import DEADLINE_EXCEEDED, timeout_header
from aqueduct.runtime.ports import MOVED, UNFILLED
from aqueduct.runtime.send_port import NetworkSendPort
from aqueduct.transport.address import format_address

if TYPE_CHECKING:
    from aqueduct.runtime.connection_driver import ConnectionDriver

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
"""The type of the reply. It is covariant: a `Request[int]` is also a `Request[object]`."""

_UNFILLED: Any = Sender._from_port(UNFILLED, ())
"""The reply of a request that was not sent yet (AQ-CALL-1)."""


class Request(msgspec.Struct, Generic[R_co], kw_only=True, tag=True):
    """Base class of requests that are answered with one message of type ``R_co``.

    A subclass declares the fields of the request, and `Sender.call` returns one::

        class Add(Request[int]):
            a: int
            b: int


        total = await connection.entrypoint.call(Add(a=1, b=2), timeout=2)

    Requests are tagged with the name of their class, so a channel can carry a union of them. The
    same class serves asyncio and threads.
    """

    reply: Sender[R_co] = _UNFILLED
    """The sender of the reply. `Sender.call` fills it, and the value that a handler of `serve`
    returns is sent on it."""


async def call_request(sender: Sender[Any], request: Request[R], seconds: float | None) -> R:
    """Send a copy of the request with its reply field filled, and return the reply."""
    if not isinstance(request, Request):
        raise TypeError(
            f"call() takes a request such as Add(a=1, b=2) whose class derives from "
            f"aqueduct.Request, or a message type and its fields, not {request!r}"
        )
    _check_timeout(seconds)
    reply, answer = _make_reply(sender, _answer_type(type(request)))
    message = msgspec.structs.replace(request, reply=reply)
    value: R = await _exchange(sender, message, reply, answer, seconds)
    return value


async def call_type(
    sender: Sender[Any], kind: type[Any], fields: dict[str, Any], seconds: float | None
) -> Any:
    """Send a message of type ``kind`` with these fields and a reply sender; return the reply."""
    _check_timeout(seconds)
    name, answer_type = _reply_field(kind, fields)
    reply, answer = _make_reply(sender, answer_type)
    try:
        message = kind(**fields, **{name: reply})
    except BaseException:
        _give_up(reply, answer)
        raise
    return await _exchange(sender, message, reply, answer, seconds)


def _check_timeout(seconds: float | None) -> None:
    """Raise for an invalid timeout, before the reply channel is created: it would stay open."""
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"timeout is a number of seconds, or None for no limit; not {seconds!r}")
    if math.isnan(seconds):
        raise ValueError("timeout is a number of seconds, or None for no limit; not nan")


class _NetworkReply(Sender[Any]):
    """The sender of a reply whose channel begins on the network, with the request that carries it.

    Most calls cross a network, and a local channel for each of them would take longer to make than
    the message.
    """

    __slots__ = ("_codec", "_is_spent", "_kind", "answer")

    _kind: Any
    _codec: CodecClass | None
    _is_spent: bool
    """Whether its request was not sent, so that nothing waits for the reply."""
    answer: Receiver[Any]
    """The receiver of the reply, once the request was sent."""

    @classmethod
    def make(cls, kind: Any, codec: CodecClass | None) -> _NetworkReply:
        """Return the sender of a reply of this type."""
        codec, headers = (None, ()) if codec is None else choose(kind, codec, ())
        codec_for(kind, codec)  # raise `TypeError` now if no message can have this type
        reply = cls._from_port(UNFILLED, headers)
        reply._kind, reply._codec, reply._is_spent = kind, codec, False
        return reply

    def cancel(self) -> None:
        """End the reply of a request that was not sent."""
        self._is_spent = True

    def _prepare_to_move(self) -> Attach:
        if self._is_spent:
            raise ChannelClosed("this request was not sent; call() makes another reply for it")
        if self._port is MOVED:
            return super()._prepare_to_move()  # raises `ChannelMoved`
        return Attach(self._give, True, self._headers) if self._headers else _PLAIN_REPLY

    def _move(self, driver: ConnectionDriver, channel: int) -> None:
        self._port = MOVED
        port = driver.open_port(channel, self._kind, self._codec)
        self.answer = Receiver._from_port(port, self._headers)


_PLAIN_REPLY = Attach(Give.SENDER, oneshot=True)


def _make_reply(sender: Sender[Any], kind: Any) -> tuple[Sender[Any], Receiver[Any] | None]:
    """Return the sender of the reply, and its receiver.

    The receiver is None for a network channel: that one exists once the request is sent.
    """
    codec = sender._codec_for_reply(kind)
    if isinstance(sender._port, NetworkSendPort):
        return _NetworkReply.make(kind, codec), None
    return oneshot(kind, codec=codec)


def _give_up(reply: Sender[Any], answer: Receiver[Any] | None) -> None:
    """End the channel of a reply whose request was not sent."""
    reply.cancel()
    if answer is not None:
        answer.close()


async def _exchange(
    sender: Sender[Any],
    message: Any,
    reply: Sender[Any],
    answer: Receiver[Any] | None,
    seconds: float | None,
) -> Any:
    """Send a request and return its reply; raise `CallTimeout` at the deadline."""
    try:
        if seconds is None:
            return await _wait_for_reply(sender, message, reply, answer, None)
        async with asyncio.timeout(seconds) as scope:
            return await _wait_for_reply(sender, message, reply, answer, scope.when())
    except ChannelLostInTransit:
        closed = _closed_error(sender)
        if closed is None:
            raise
        closed.payload = message
        raise closed from None
    except TimeoutError:
        if seconds is None or not scope.expired():
            raise
    except CallError as error:
        if seconds is None or not error.by_peer or error.code != DEADLINE_EXCEEDED:
            raise
    name = type(message).__name__
    where = _address_of(sender)
    raise CallTimeout(f"no reply to {name} from {where} within {seconds:g} s")


async def _wait_for_reply(
    sender: Sender[Any],
    message: Any,
    reply: Sender[Any],
    answer: Receiver[Any] | None,
    deadline: float | None,
) -> Any:
    try:
        await _send(sender, message, deadline)
    except BaseException:
        _give_up(reply, answer)
        raise
    if isinstance(reply, _NetworkReply):
        if reply._port is not MOVED:
            raise EncodeError(f"{type(message).__name__} was sent without its reply")
        answer = reply.answer
    assert answer is not None
    async with answer:
        return await answer.receive()


async def _send(sender: Sender[Any], message: Any, deadline: float | None) -> None:
    """Send a request; its header says how much time is left when it is queued (AQ-CALL-2)."""
    if deadline is None:
        await sender.send(message)
        return
    time = asyncio.get_running_loop().time
    try:
        if sender._port.is_pressed():
            await asyncio.sleep(0)  # not `wait_turn`: a request has a deadline
        while True:
            try:
                sender._port.send(message, timeout_header(deadline - time()), None)
            except WouldBlock:
                await sender._port.wait()
            else:
                return
    except ChannelError as error:
        error.payload = message
        raise


def _closed_error(sender: Sender[Any]) -> ReceiverClosed | None:
    """Return the error for a request that arrived after its receiver was closed (AQ-DRAIN-1)."""
    port = sender._port
    if not isinstance(port, NetworkSendPort) or port.ended is None:
        return None
    error = port.end_error()
    return error if isinstance(error, ReceiverClosed) else None


def _address_of(sender: Sender[Any]) -> str:
    port = sender._port
    if not isinstance(port, NetworkSendPort):
        return "a channel of this process"
    return format_address(port.driver.transport.peer)


@lru_cache(maxsize=1024)
def _answer_type(kind: type[Any]) -> Any:
    """Return the type of the reply of a request class."""
    return next(
        answer for name, answer in _sender_fields(cast("Hashable", kind)) if name == "reply"
    )


def _reply_field(kind: type[Any], fields: dict[str, Any]) -> tuple[str, Any]:
    """Return the name and message type of the one `Sender` field that ``fields`` leaves out."""
    open_fields = [
        field for field in _sender_fields(cast(Hashable, kind)) if field[0] not in fields
    ]
    if len(open_fields) != 1:
        raise TypeError(
            f"call() needs a type with exactly one unfilled Sender field; "
            f"{kind.__name__} has {len(open_fields)}"
        )
    return open_fields[0]


@lru_cache(maxsize=1024)
def _sender_fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Return the names and message types of the `Sender` fields of a message type."""
    base = get_origin(kind) or kind
    if isinstance(base, type) and issubclass(base, msgspec.Struct):
        hints = {field.name: field.type for field in msgspec.structs.fields(kind)}
    else:
        hints = get_type_hints(kind)
    found = []
    for name, hint in hints.items():
        half = get_origin(hint) or hint
        if isinstance(half, type) and issubclass(half, ChannelHalf) and half._sends:
            arguments = get_args(hint)
            found.append((name, arguments[0] if arguments else bytes))
    return tuple(found)
