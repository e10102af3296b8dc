"""The public endpoint on asyncio: it sends messages to addresses and receives theirs."""

from __future__ import annotations

import asyncio
import inspect
import logging
import warnings
from collections import OrderedDict
from collections.abc import Awaitable, Hashable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar, cast, overload

from aqueduct.codec import codec_for, no_channels
from aqueduct.errors import (
    DecodeError,
    EndpointClosed,
    LocalProtocolError,
    SendTimeout,
    TLSError,
)
from aqueduct.ipc import system
from aqueduct.ipc.address import parse
from aqueduct.ipc.arguments import check_address, check_arguments, check_timeout
from aqueduct.ipc.core.events import Arrived, BatchResult, Ended, Statistics
from aqueduct.ipc.core.exchange import Exchange
from aqueduct.ipc.core.outgoing import OutgoingTransfer
from aqueduct.ipc.core.pdu import Code
from aqueduct.ipc.core.settings import IpcSettings
from aqueduct.ipc.failures import delivery_error
from aqueduct.ipc.message import Handler, ReceivedMessage, encode_message
from aqueduct.ipc.transports.base import PduListener, PduTransport
from aqueduct.ipc.transports.local import open_local
from aqueduct.ipc.transports.tcp import MAX_PDU, TcpLimits, open_tls
from aqueduct.ipc.transports.udp import open_udp
from aqueduct.security import ServerTLS, Trust

T = TypeVar("T")

_log = logging.getLogger("aqueduct.ipc")


class Endpoint(Generic[T]):
    """Sends messages to other endpoints and receives theirs; it manages connections itself.

    ::

        async with ipc.Endpoint("udp://127.0.0.1:0") as endpoint:
            await endpoint.send("udp://127.0.0.1:5000", b"hello")
            async for message in endpoint:
                await endpoint.send(message.source, b"thank you")

    ``udp://`` is for processes of one host, ``tls://`` for other hosts, ``local://`` for one
    process. ``tls`` is the certificate that a listening endpoint presents, ``trust`` selects the
    certificates that it accepts from others, and ``limits`` bounds its connections. ``tls://``
    alone sends and receives replies, but does not listen. Port 0 selects a free port; see
    `address`.

    Iterate over the endpoint to receive messages, or pass ``on_message``, a plain or async
    function. A message is acknowledged when the loop gets it, or when the function has returned;
    if the function raises, the sender's ``send`` raises `MessageRefused`.
    """

    @overload
    def __init__(
        self: Endpoint[bytes],
        address: str,
        /,
        *,
        on_message: Handler[bytes] | None = None,
        tls: ServerTLS | None = None,
        trust: Trust | None = None,
        config: IpcSettings | None = None,
        limits: TcpLimits | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        address: str,
        type: type[T],
        /,
        *,
        on_message: Handler[T] | None = None,
        tls: ServerTLS | None = None,
        trust: Trust | None = None,
        config: IpcSettings | None = None,
        limits: TcpLimits | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Endpoint[Any],
        address: str,
        type: Any,
        /,
        *,
        on_message: Handler[Any] | None = None,
        tls: ServerTLS | None = None,
        trust: Trust | None = None,
        config: IpcSettings | None = None,
        limits: TcpLimits | None = None,
    ) -> None: ...
    def __init__(
        self,
        address: str,
        type: Any = bytes,
        /,
        *,
        on_message: Handler[Any] | None = None,
        tls: ServerTLS | None = None,
        trust: Trust | None = None,
        config: IpcSettings | None = None,
        limits: TcpLimits | None = None,
    ) -> None:
        self._asked_address = address
        check_arguments(address, on_message, tls, trust, config, limits)
        self._codec = codec_for(type)
        self._on_message = on_message
        self._tls = tls
        self._trust = trust
        self._config = config or IpcSettings()
        self._limits = limits
        self._transport: PduTransport
        self._exchange: Exchange
        self._is_open = False
        self._closed = False
        self._opening: asyncio.Future[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._futures: dict[bytes, asyncio.Future[None]] = {}
        self._slots = asyncio.Semaphore(self._config.max_sends)
        self._arrived: OrderedDict[bytes, Arrived] = OrderedDict()
        self._receivers: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._flushing = False

    # Opening and closing

    async def open(self) -> None:
        """Open the endpoint and bind its address. Called by ``async with``."""
        if self._is_open or self._closed or self._opening is not None:
            raise LocalProtocolError("an endpoint can be opened only once; create another")
        self._loop = asyncio.get_running_loop()
        self._opening = self._loop.create_future()
        try:
            max_pdu = self._config.max_pdu
            transport = await _open_transport(
                self._asked_address, self, max_pdu, self._tls, self._trust, self._limits
            )
            if self._closing is not None:
                await transport.close()
                raise EndpointClosed("this endpoint was closed while it was being opened")
            self._begin(transport)
        finally:
            self._opening.set_result(None)
            self._opening = None

    def _begin(self, transport: PduTransport) -> None:
        config = self._config
        self._config = replace(
            config,
            max_pdu=min(config.max_pdu or transport.max_pdu, transport.max_pdu),
            window=config.window or transport.window,
            id_trust=config.id_trust if transport.id_trust is None else transport.id_trust,
        )
        self._exchange = Exchange(
            self._config,
            system.SystemRandomness(),
            system.now(),
            reports_sent=transport.reports_sent,
        )
        self._transport = transport
        self._is_open = True
        self._set_timer()

    async def close(self) -> None:
        """Close the endpoint: pending sends fail, and messages that were not taken are refused.

        Running ``on_message`` calls are cancelled, and awaited. If ``on_message`` itself closes its
        endpoint, this returns at once; the endpoint closes after the function has returned, and its
        message counts as taken.
        """
        if not self._is_open and self._opening is None:
            self._closed = True
            return
        self._check_loop()
        closing = self._start_closing()
        if asyncio.current_task() not in self._tasks:
            await asyncio.shield(closing)  # closing continues if the caller is cancelled

    def _start_closing(self) -> asyncio.Task[None]:
        """Start to close on behalf of the current task; return the task that closes."""
        if self._closing is None:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()
            if self._is_open:
                self._exchange.stop_sending(system.now())
                self._turn()
            self._closing = self._loop.create_task(self._end(asyncio.current_task()))
        return self._closing

    async def _end(self, closer: asyncio.Task[Any] | None) -> None:
        if self._opening is not None:
            await asyncio.wait({self._opening})
        if not self._is_open:
            return
        try:
            await self._end_handlers({task for task in self._tasks if task is not closer})
            if closer in self._tasks:
                await asyncio.wait({closer})
        finally:
            self._exchange.close(system.now())
            self._turn()
            self._arrived.clear()
            for receiver in self._receivers:
                if not receiver.done():
                    receiver.set_result(None)
            await self._transport.close()

    async def _end_handlers(self, tasks: set[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def __del__(self) -> None:
        if getattr(self, "_is_open", False) and not self._closed:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        if self._closed:
            return f"<Endpoint {self._asked_address}, closed>"
        if self._is_open:
            return f"<Endpoint {self._transport.address}>"
        return f"<Endpoint {self._asked_address}, not open>"

    async def __aenter__(self) -> Endpoint[T]:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def address(self) -> str:
        """The address that others send to."""
        self._check_open()
        return self._transport.address

    @property
    def max_pdu(self) -> int:
        """The size in bytes of the largest PDU that new transfers send and take; see `resize`."""
        self._check_open()
        return self._exchange.max_pdu

    def resize(self, max_pdu: int) -> None:
        """Change the PDU size of new transfers, within what the transport carries (IPC-CONF-4).

        Transfers under way keep theirs. A sender whose PDU is too large for this endpoint is told,
        and cuts its message anew.
        """
        self._check_open()
        self._check_loop()
        if not isinstance(max_pdu, int):
            raise TypeError(f"max_pdu is a whole number of bytes, not {max_pdu!r}")
        if max_pdu > self._transport.max_pdu:
            raise LocalProtocolError(
                f"a PDU of {max_pdu} bytes; max_pdu is at most {self._transport.max_pdu} here"
            )
        self._exchange.resize(max_pdu)

    def change_owner(self) -> None:
        """Take a new owner id now, before `IpcSettings.owner_id_lifetime` has passed (IPC-ID-1).

        Senders that know the former id are told the new one, at the cost of a round trip; no
        transfer is interrupted.
        """
        self._check_open()
        self._check_loop()
        self._exchange.change_owner(system.now())
        self._set_timer()

    def statistics(self) -> Statistics:
        """Return the counters since the endpoint was opened."""
        self._check_open()
        return replace(self._exchange.statistics)

    def _check_open(self) -> None:
        if not self._is_open:
            raise LocalProtocolError("open the endpoint first: async with Endpoint(…) as endpoint")

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise LocalProtocolError("this endpoint belongs to another event loop; use it there")

    # Sending

    async def send(
        self,
        to: str,
        message: T,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 -- the error says what is known of the message
    ) -> None:
        """Send a message, and return when its receiver has taken it.

        Raise a `DeliveryError` that says what happened, `MessageTooLarge`, or `ConnectError` for an
        invalid address. Without an answer, it raises after ``IpcSettings.ack_timeout`` seconds. A
        ``timeout`` bounds everything: the lookup of the host, the wait for other sends and the
        delivery. Cancellation aborts the transfer.
        """
        self._check_open()
        self._check_loop()
        check_address(to)
        due = None if timeout is None else self._loop.time() + check_timeout(timeout)
        await self._send(to, encode_message(self._codec, message), due)

    async def _send(self, to: str, payload: bytes, due: float | None) -> None:
        """Send a payload before a deadline, which is a time of the loop."""
        self._check_open()
        if self._closed:
            raise EndpointClosed("this endpoint was closed", to=to)
        if due is None:
            remote = await self._transport.locate(to)
            await self._slots.acquire()
        else:
            remote = await self._prepare(to, due)
        expiry = None
        message_id = b""
        try:
            if self._closed:
                raise EndpointClosed("this endpoint was closed", to=to)
            message_id = self._exchange.send(remote, payload, system.now())
            future = self._futures[message_id] = self._loop.create_future()
            self._flush_soon()
            if due is not None:
                expiry = self._loop.call_at(due, self._give_up, message_id, Code.SEND_TIMEOUT)
            await future
        except asyncio.CancelledError:
            self._futures.pop(message_id, None)
            self._give_up(message_id, Code.RESET)
            raise
        finally:
            self._slots.release()
            if expiry is not None:
                expiry.cancel()

    async def _prepare(self, to: str, due: float) -> Hashable:
        """Resolve an address and acquire a send slot before the deadline."""
        why = "the host was not resolved yet"
        try:
            async with asyncio.timeout_at(due):
                remote = await self._transport.locate(to)
                why = f"{self._config.max_sends} others are being sent (max_sends)"
                await self._slots.acquire()
                return remote
        except TimeoutError:
            raise SendTimeout(f"the message to {to} was not sent in time: {why}", to=to) from None

    def _give_up(self, message_id: bytes, code: int) -> None:
        self._exchange.cancel(message_id, system.now(), code)
        self._turn()

    # Receiving

    async def receive(self) -> ReceivedMessage[T]:
        """Return the next message; raise `EndpointClosed` once the endpoint is closed.

        A message that is not of the endpoint's type is refused and skipped.
        """
        self._check_iterable()
        self._check_loop()
        while True:
            message = self._next()
            if message is not None:
                return message
            if self._closed:
                raise EndpointClosed("this endpoint was closed")
            waiter = self._loop.create_future()
            self._receivers[waiter] = None
            try:
                await waiter
            except asyncio.CancelledError:
                self._receivers.pop(waiter, None)
                if waiter.done() and not waiter.cancelled():
                    self._wake_receiver()  # another receiver gets the message
                raise

    def __aiter__(self) -> Endpoint[T]:
        self._check_iterable()
        return self

    async def __anext__(self) -> ReceivedMessage[T]:
        # Fast path: avoid another coroutine where nothing has to be checked.
        if self._arrived and asyncio.get_running_loop() is self._loop:
            message = self._next()
            if message is not None:
                return message
        try:
            return await self.receive()
        except EndpointClosed:
            raise StopAsyncIteration from None

    def _check_iterable(self) -> None:
        self._check_open()
        if self._on_message is not None:
            raise LocalProtocolError("this endpoint passes its messages to on_message")

    def _next(self) -> ReceivedMessage[T] | None:
        """Take the next message that was not withdrawn, if there is one."""
        exchange = self._exchange
        while self._arrived:
            _, arrived = self._arrived.popitem(last=False)
            message = self._message(arrived)
            if message is not None and exchange.take(arrived.message_id):
                if self._arrived:
                    self._flush_soon()
                else:
                    self._flush()
                return message
        return None

    def _message(self, arrived: Arrived) -> ReceivedMessage[T] | None:
        """Decode a message; refuse it and return None if it is not of the right type."""
        payload: Any = arrived.payload
        if not self._codec.is_identity:
            try:
                payload = self._codec.decode(payload, no_channels)
            except DecodeError as error:
                source = self._transport.name(arrived.remote)
                _log.warning("refused a message from %s: %s", source, error)
                self._refuse(arrived)
                return None
        return ReceivedMessage(
            cast("T", payload), arrived.message_id, arrived.remote, self._transport
        )

    def _refuse(self, arrived: Arrived) -> None:
        self._exchange.refuse(arrived.message_id)
        self._flush_soon()

    def _wake_receiver(self) -> None:
        while self._receivers:
            receiver, _ = self._receivers.popitem(last=False)
            if not receiver.done():
                receiver.set_result(None)
                return

    def _deliver(self, arrived: Arrived, on_message: Handler[T]) -> None:
        """Call ``on_message`` with a message."""
        if self._closed:
            return  # closing refuses it with the others
        if not self._exchange.holds(arrived.message_id):
            self._refuse(arrived)  # it was withdrawn: this only releases its memory
            return
        message = self._message(arrived)
        if message is None:
            return
        try:
            outcome = on_message(message)
        except Exception:  # noqa: BLE001 -- whatever the application's code raises
            self._failed(arrived)
            return
        if inspect.isawaitable(outcome):
            task = asyncio.ensure_future(self._finish(outcome, arrived))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._exchange.take(arrived.message_id)

    async def _finish(self, work: Awaitable[object], arrived: Arrived) -> None:
        try:
            await work
        except Exception:  # noqa: BLE001 -- whatever the application's code raises
            self._failed(arrived)
            return
        except BaseException:
            self._refuse(arrived)
            raise
        self._exchange.take(arrived.message_id)
        self._flush_soon()

    def _failed(self, arrived: Arrived) -> None:
        _log.exception(
            "on_message failed for a message from %s", self._transport.name(arrived.remote)
        )
        self._refuse(arrived)

    # Calls of the transport

    def handle_pdus(self, pdus: Sequence[bytes], remote: Hashable) -> BatchResult:
        """Handle PDUs from a remote; return whether they were useful."""
        if not self._is_open:
            return BatchResult.USELESS
        result = self._exchange.handle_pdus(pdus, remote, system.now())
        self._turn()
        return result

    def handle_sent(self, transfers: Sequence[OutgoingTransfer]) -> None:
        """Process that PDUs of these transfers were sent, or could not be."""
        if self._is_open:
            now = system.now()
            for transfer in transfers:
                self._exchange.handle_sent(transfer, now)
            self._set_timer()

    def handle_transient_error(self, remote: Hashable, why: str) -> None:
        """Record why a remote could not be reached; retries continue."""
        if self._is_open:
            self._exchange.handle_transient_error(remote, why)

    def handle_unreachable(self, remote: Hashable, error: TLSError) -> None:
        """Fail the transfers to a remote that no retry can reach."""
        if self._is_open:
            self._exchange.handle_unreachable(remote, str(error), system.now())
            self._turn()

    # Outputs of the core

    def _turn(self) -> None:
        """Process the events of the core, and send its PDUs."""
        for event in self._exchange.poll_events():
            if isinstance(event, Ended):
                self._ended(event)
            elif isinstance(event, Arrived):
                if self._on_message is not None:
                    self._deliver(event, self._on_message)
                else:
                    self._arrived[event.message_id] = event
                    self._wake_receiver()
            elif self._arrived.pop(event.message_id, None) is not None:
                self._exchange.refuse(event.message_id)
            # else on_message has it, and it counts until that returns
        self._flush()

    def _flush_soon(self) -> None:
        """Send at the end of this turn of the loop, to batch the PDUs of the turn."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flushing = False
        self._flush()

    def _flush(self) -> None:
        transmits = self._exchange.poll_transmits()
        if transmits:
            self._transport.send(transmits)
        self._set_timer()

    def _set_timer(self) -> None:
        """Schedule a wake-up at the next timer of the core, or keep an earlier one."""
        if self._closed:
            return
        at = self._exchange.next_timer()
        if self._timer is None or at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = at
            self._timer = self._loop.call_later(max(0.0, at - system.now()), self._wake)

    def _wake(self) -> None:
        self._timer = None
        # uvloop counts in milliseconds and may be early by half of one; without max() the timer
        # would be scheduled again and again until the time has come.
        self._exchange.handle_timer(max(system.now(), self._timer_at))
        self._turn()

    def _ended(self, ended: Ended) -> None:
        future = self._futures.pop(ended.message_id, None)
        if future is None or future.done():
            return
        if ended.code == Code.SUCCESS:
            future.set_result(None)
        else:
            if ended.code == Code.SEND_TIMEOUT and not ended.reason:
                ended = ended._replace(reason=self._transport.diagnose(ended.remote))
            future.set_exception(delivery_error(ended, self._transport.name(ended.remote)))


async def _open_transport(
    address: str,
    listener: PduListener,
    max_pdu: int,
    tls: ServerTLS | None,
    trust: Trust | None,
    limits: TcpLimits | None,
) -> PduTransport:
    """Open the transport of an address; ``max_pdu`` 0 selects its default."""
    scheme = parse(address).scheme
    if scheme == "udp":
        return await open_udp(address, listener)
    if scheme == "tls":
        size = max_pdu or MAX_PDU
        return await open_tls(address, listener, max_pdu=size, tls=tls, trust=trust, limits=limits)
    return open_local(address, listener)
