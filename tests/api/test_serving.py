"""Serving requests: what ends with a handler, what ends a handler, and what its caller learns."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

import aqueduct
from aqueduct import CallError, CallTimeout, Receiver, Request, Sender, blocking
from tests.processes.peers import eventually

_names = itertools.count()


class Add(Request[int]):
    a: int
    b: int


class Wait(Request[str]):
    name: str


class Sum(msgspec.Struct, tag=True):
    numbers: Receiver[int]
    reply: Sender[int]


class Watch(msgspec.Struct, tag=True):
    events: Sender[str]
    ready: Sender[bool]


class Note(msgspec.Struct, tag=True):
    text: str


Any_ = Add | Wait | Sum | Watch | Note


class Told:
    """What the exception handler of the event loop was told."""

    def __init__(self) -> None:
        self.errors: list[BaseException | None] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: self.errors.append(context.get("exception"))
        )


@asynccontextmanager
async def serving(
    handler: Callable[[Any], Any],
    kind: Any = Any_,
    limits: aqueduct.Limits | None = None,
    **options: Any,
) -> AsyncIterator[aqueduct.ClientConnection[Any]]:
    """Serve requests within the process, and connect to the server."""
    name = f"memory://serving{next(_names)}"
    async with (
        asyncio.timeout(60),
        aqueduct.serve(name, kind, tls=aqueduct.dev_tls()) as server,
        aqueduct.connect(name, kind, trust=aqueduct.dev_trust(), limits=limits) as client,
    ):
        running = asyncio.create_task(server.serve(handler, **options))
        yield client
        assert not running.done()
        running.cancel()


async def test_what_a_handler_returns_is_the_reply() -> None:
    async def add(request: Add) -> int:
        return request.a + request.b

    async with serving(add, Add) as client:
        calls = (client.entrypoint.call(Add(n, 1), timeout=60) for n in range(300))
        assert await asyncio.gather(*calls) == [n + 1 for n in range(300)]


async def test_a_request_that_is_cancelled_halfway_leaves_no_caller_waiting() -> None:
    """AQ-CALL-6: a handler that ends leaves nothing of its request open."""

    async def handle(request: Sum) -> None:
        await request.reply.send(sum([n async for n in request.numbers]))

    async with serving(handle) as client:
        told = Told()
        tx, rx = aqueduct.channel(int)
        reply, answer = aqueduct.oneshot(int)
        await client.entrypoint.send(Sum(rx, reply))
        await tx.send(1)
        tx.cancel()
        with pytest.raises(aqueduct.ChannelCancelled):
            await answer.receive()
        assert told.errors == []  # that a caller gave up is no failure of the server


async def test_halves_that_a_handler_did_not_finish_end_with_it() -> None:
    """AQ-CALL-6."""
    kept: list[Any] = []

    async def handle(request: Any) -> None:
        kept.append(request)
        if isinstance(request, Watch):
            await request.events.send("one")

    async with serving(handle) as client:
        tx, rx = aqueduct.channel(int)
        reply, answer = aqueduct.oneshot(int)
        await client.entrypoint.send(Sum(rx, reply))
        with pytest.raises(aqueduct.ChannelCancelled):
            await answer.receive()
        await tx.wait_closed()
        with pytest.raises(aqueduct.ReceiverClosed):
            await tx.send(1)
        their_events, events = aqueduct.channel(str)
        their_ready, ready = aqueduct.oneshot(bool)
        await client.entrypoint.send(Watch(their_events, their_ready))
        with pytest.raises(aqueduct.ChannelCancelled):
            await ready.receive()
        with pytest.raises(aqueduct.ChannelCancelled):
            [event async for event in events]
        assert len(kept) == 2  # although the server still holds the requests


class Job(msgspec.Struct):
    function: Any
    """Which no codec can encode, as a local channel does not have to."""
    results: list[Sender[int]]


async def test_halves_end_with_a_handler_also_beside_values_that_cannot_be_encoded() -> None:
    """AQ-CALL-6: over a channel within the process."""
    kept: list[Job] = []

    async def handle(job: Job) -> None:
        kept.append(job)

    tx, rx = aqueduct.channel(Job)
    serving = asyncio.create_task(rx.serve(handle))
    their_results, results = aqueduct.channel(int)
    await tx.send(Job(print, [their_results]))
    with pytest.raises(aqueduct.ChannelCancelled):
        async with asyncio.timeout(60):
            await results.receive()
    assert len(kept) == 1
    tx.finish()
    await serving


@pytest.mark.parametrize("how", ["timeout", "cancel", "disconnect"])
async def test_a_handler_is_cancelled_when_its_caller_gives_up(how: str) -> None:
    """AQ-CALL-6."""
    began, ended = asyncio.Event(), asyncio.Event()

    async def handle(request: Wait) -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    async with serving(handle) as client:
        told = Told()
        wait = 0.05 if how == "timeout" else None
        calling = asyncio.create_task(client.entrypoint.call(Wait("x"), timeout=wait))
        await began.wait()
        if how == "cancel":
            calling.cancel()
        elif how == "disconnect":
            await client.close(aqueduct.CloseCode.INTERNAL)
        await ended.wait()
        (error,) = await asyncio.gather(calling, return_exceptions=True)
        kinds = {
            "timeout": CallTimeout,
            "cancel": asyncio.CancelledError,
            "disconnect": aqueduct.ConnectionLost,
        }
        assert isinstance(error, kinds[how])
        assert told.errors == []


async def test_a_handler_of_streams_goes_on_until_its_caller_has_left_all_of_them() -> None:
    """AQ-CALL-6: a subscription is a handler that runs until then."""
    ended = asyncio.Event()

    async def handle(request: Watch) -> None:
        try:
            await request.ready.send(True)
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with serving(handle) as client:
        their_events, events = aqueduct.channel(str)
        assert await client.entrypoint.call(Watch, events=their_events)
        assert not ended.is_set()
        events.close()
        await ended.wait()


async def test_a_message_without_a_sender_is_handled_although_its_client_has_left() -> None:
    seen: list[str] = []
    release = asyncio.Event()

    async def handle(request: Note) -> None:
        await release.wait()
        seen.append(request.text)

    async with serving(handle, Note) as client:
        for text in ("a", "b"):
            await client.entrypoint.send(Note(text))
        await client.entrypoint.flush()
        client.entrypoint.finish()
        await client.close()
        release.set()
        await eventually(lambda: len(seen) == 2, "both notes are handled")
        assert seen == ["a", "b"]


async def test_at_most_so_many_requests_are_handled_at_once() -> None:
    running, most, total = 0, 0, 0

    async def handle(request: Add) -> int:
        nonlocal running, most, total
        running, total = running + 1, total + 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1
        return 0

    async with serving(handle, Add, concurrency=3) as client:
        await asyncio.gather(*(client.entrypoint.call(Add(1, 2)) for _ in range(30)))
        assert (most, total) == (3, 30)
    tx, rx = aqueduct.channel(int)
    with pytest.raises(ValueError, match="1 or more"):
        await rx.serve(handle, concurrency=0)  # type: ignore[arg-type]
    tx.finish()


async def test_the_end_of_the_channel_waits_for_the_handlers_that_run() -> None:
    tx, rx = aqueduct.channel(Add)
    calls = [asyncio.create_task(tx.call(Add(n, n))) for n in range(3)]

    async def add(request: Add) -> int:
        tx.finish()
        for _ in range(10):
            await asyncio.sleep(0)
        return request.a + request.b

    await asyncio.sleep(0)
    await rx.serve(add)
    assert await asyncio.gather(*calls) == [0, 2, 4]


async def test_a_server_that_stops_cancels_its_handlers_and_ends_their_requests() -> None:
    began = asyncio.Event()
    tx, rx = aqueduct.channel(Wait)

    async def handle(request: Wait) -> str:
        began.set()
        await asyncio.Event().wait()
        return ""

    serving_ = asyncio.create_task(rx.serve(handle))
    calling = asyncio.create_task(tx.call(Wait("x")))
    await began.wait()
    serving_.cancel()
    with pytest.raises(aqueduct.ChannelCancelled):
        await calling
    with pytest.raises(asyncio.CancelledError):
        await serving_
    tx.finish()


# -- errors ----------------------------------------------------------------------------------------


async def test_an_error_that_a_handler_raises_on_purpose_reaches_its_caller() -> None:
    """AQ-CALL-3."""

    async def handle(request: Any) -> None:
        raise CallError("not-found", f"no {type(request).__name__}")

    async with serving(handle) as client:
        told = Told()
        with pytest.raises(CallError, match="no Add") as caught:
            await client.entrypoint.call(Add(1, 2), timeout=60)
        assert (caught.value.code, caught.value.by_peer) == ("not-found", True)
        numbers, theirs = aqueduct.channel(int)
        with pytest.raises(CallError, match="no Sum"):
            await client.entrypoint.call(Sum, numbers=theirs)
        numbers.cancel()
        assert told.errors == []


@pytest.mark.parametrize(
    "error",
    [
        LookupError("a secret"),
        CallError("not-found", "a secret of another server", by_peer=True),
        asyncio.CancelledError("a secret"),
        TimeoutError("a secret"),
    ],
)
async def test_other_errors_of_a_handler_stay_with_the_server(error: BaseException) -> None:
    """AQ-CALL-5: the caller learns that the call failed, and the log of the server why."""

    async def handle(request: Add) -> int:
        raise error

    async with serving(handle) as client:
        told = Told()
        with pytest.raises(CallError) as caught:
            await client.entrypoint.call(Add(1, 2), timeout=60)
        assert caught.value.code == "internal"
        assert "secret" not in str(caught.value)
        assert told.errors == [error]


async def test_a_caller_with_too_low_limits_for_an_error_learns_that_there_is_no_reply() -> None:
    async def handle(request: Wait) -> str:
        if request.name == "fail":
            raise CallError("not-found", "x" * 1_000)
        return request.name

    limits = aqueduct.Limits(max_headers=256)
    async with serving(handle, limits=limits) as client:
        with pytest.raises(aqueduct.ChannelCancelled):
            await client.entrypoint.call(Wait("fail"), timeout=60)
        assert await client.entrypoint.call(Wait("x"), timeout=60) == "x"  # the server goes on


@pytest.mark.parametrize("value", [None, "text", True])
async def test_a_reply_of_another_type_is_a_failure_of_the_handler(value: Any) -> None:
    async def handle(request: Add) -> Any:
        return value

    async with serving(handle) as client:
        told = Told()
        with pytest.raises(CallError, match="internal"):
            await client.entrypoint.call(Add(1, 2), timeout=60)
        assert [type(error) for error in told.errors] == [aqueduct.WrongType]


async def test_a_handler_may_reply_itself_but_then_returns_nothing() -> None:
    async def handle(request: Any) -> Any:
        if isinstance(request, Add):
            await request.reply.send(1)
        return 2

    async with serving(handle) as client:
        told = Told()
        assert await client.entrypoint.call(Add(1, 2)) == 1
        await client.entrypoint.send(Note("x"))
        await eventually(lambda: len(told.errors) == 2, "both failures are told")
        already, not_a_request = map(str, told.errors)
        assert "already" in already
        assert "only an aqueduct.Request" in not_a_request


async def test_the_deadline_of_a_request_ends_its_handler_at_the_server() -> None:
    """AQ-CALL-2, AQ-CALL-5: also if the caller does not close the reply in time."""
    ended = asyncio.Event()

    async def handle(request: Wait) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    async with serving(handle) as client:
        for milliseconds in ("20", "0"):
            ended.clear()
            reply, answer = aqueduct.oneshot(str)
            request = Wait("x", reply=reply)
            await client.entrypoint.send(request, headers={"aqueduct-timeout": milliseconds})
            with pytest.raises(CallError, match="deadline-exceeded"):
                await answer.receive()
            assert ended.is_set() is (milliseconds != "0")


async def test_bad_messages_are_skipped_and_the_others_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """AQ-CALL-1, AQ-CALL-4."""
    caplog.set_level(logging.INFO, "aqueduct")

    async def add(request: Add) -> int:
        return request.a + request.b

    async with serving(add, Add) as other:
        entrypoint = other.entrypoint
        port: Any = entrypoint._port
        port.set_type(Any)
        await entrypoint.send({"no": "request"})
        await entrypoint.send("x", headers={"aqueduct-error": "not-here"})
        await entrypoint.send({"type": "Add", "a": 1, "b": 2})
        assert await entrypoint.call(Add(1, 2), timeout=60) == 3
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "skipped a malformed request",
        "skipped a malformed request",
        "skipped a request of type Add without a reply",
    ]


# -- threads ---------------------------------------------------------------------------------------


@asynccontextmanager
async def in_threads(handler: Callable[[Any], Any], **options: Any) -> AsyncIterator[Any]:
    """Serve requests in threads, and connect to the server from this event loop."""
    server = blocking.serve("127.0.0.1:0", Any_, tls=aqueduct.dev_tls())
    running = threading.Thread(target=lambda: server.serve(handler, **options))
    running.start()
    try:
        async with (
            asyncio.timeout(60),
            aqueduct.connect(server.address, Any_, trust=aqueduct.dev_trust()) as client,
        ):
            yield client
    finally:
        await asyncio.to_thread(server.close)
        await asyncio.to_thread(running.join)


async def test_threads_serve_the_same_requests() -> None:
    def handle(request: Any) -> Any:
        if isinstance(request, Add):
            return request.a + request.b
        raise CallError("not-found", "no such thing")

    async with in_threads(handle, threads=2) as client:
        calls = (client.entrypoint.call(Add(n, 1), timeout=60) for n in range(20))
        assert await asyncio.gather(*calls) == [n + 1 for n in range(20)]
        with pytest.raises(CallError, match="not-found"):
            await client.entrypoint.call(Wait("x"), timeout=60)


async def test_a_thread_whose_caller_gave_up_gets_an_error_from_the_halves_of_its_request() -> None:
    failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def handle(request: Sum) -> None:
        numbers = blocking.Receiver(request.numbers)
        try:
            numbers.receive()
        except aqueduct.ChannelError as error:
            loop.call_soon_threadsafe(failed.set_result, error)

    async with in_threads(handle) as client:
        tx, rx = aqueduct.channel(int)
        with pytest.raises(CallTimeout):
            await client.entrypoint.call(Sum, numbers=rx, timeout=0.2)
        assert isinstance(await failed, aqueduct.ChannelClosed)
        tx.cancel()


async def test_a_thread_that_exits_fails_its_request_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """asyncio lets a SystemExit end the event loop, on which all connections depend."""

    def handle(request: Add) -> int:
        if request.a == 1:
            sys.exit("no more")
        return request.a

    async with in_threads(handle) as client:
        with pytest.raises(CallError, match="internal"):
            await client.entrypoint.call(Add(1, 0))
        assert await client.entrypoint.call(Add(2, 0)) == 2
    assert "no more" in caplog.text


async def test_a_thread_whose_caller_gave_up_is_reported_for_its_own_errors_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """AQ-LEAVE-1: that a client has left is no failure of the handler."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def handle(request: Watch) -> None:
        events = blocking.Sender(request.events)
        try:
            events.send("one")
            events.wait_closed()
            if request.ready.mode is aqueduct.Mode.UNORDERED:
                raise ZeroDivisionError
            events.send("two")
        finally:
            loop.call_soon_threadsafe(ended.set)

    for mode in (aqueduct.Mode.ORDERED, aqueduct.Mode.UNORDERED):
        ended.clear()
        async with in_threads(handle) as client:
            theirs, events = aqueduct.channel(str)
            their_ready, ready = aqueduct.oneshot(bool, mode=mode)
            await client.entrypoint.send(Watch(theirs, their_ready))
            assert await events.receive() == "one"
            await client.close()
            await ended.wait()
        events.close()
        ready.close()
    await eventually(lambda: bool(caplog.records), "the failure is reported")
    gc.collect()
    assert [record.exc_info and record.exc_info[0] for record in caplog.records] == [
        ZeroDivisionError
    ]


def test_a_blocking_receiver_serves_what_it_has_read_ahead() -> None:
    seen: list[int] = []
    name = f"memory://serving{next(_names)}"
    with (
        blocking.serve(name, int, tls=aqueduct.dev_tls()) as server,
        blocking.connect(name, int, trust=aqueduct.dev_trust()) as client,
        server.accept() as accepted,
    ):
        client.entrypoint.send_many(range(10))
        client.entrypoint.finish()
        seen.append(accepted.entrypoint.receive())
        accepted.serve(seen.append, threads=1)
    assert seen == list(range(10))
