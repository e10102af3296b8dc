"""Calls: typed requests, their deadlines, and what a caller learns of a failure."""

from __future__ import annotations

import asyncio
import copy
import gc
import itertools
import pickle
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import pytest

import aqueduct
from aqueduct import CallError, CallTimeout, Receiver, Request, Sender, channel
from aqueduct.codec import JsonCodec, codec_for, no_channels
from aqueduct.runtime.call_headers import (
    MAX_TEXT,
    MAX_TIMEOUT,
    TIMEOUT,
    error_header,
    error_of,
    timeout_header,
    timeout_of,
)
from aqueduct.transport.address import format_address

T = TypeVar("T")


class Add(Request[int]):
    a: int
    b: int


class Repeat(Request[list[str]]):
    text: str
    times: int = 2


class Ping(Request[None]):
    pass


class Echo(Request[T], Generic[T]):
    value: T


class EchoText(Echo[str]):
    pass


Either: Any = Add | Repeat


@pytest.fixture(autouse=True)
def own_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(tmp_path))


_names = itertools.count()


@asynccontextmanager
async def joined(kind: Any = bytes, **options: Any) -> AsyncIterator[tuple[Any, Any]]:
    """Connect a client and a server within the process."""
    async with (
        asyncio.timeout(60),
        aqueduct.serve(f"memory://calls{next(_names)}", kind, tls=aqueduct.dev_tls()) as server,
        aqueduct.connect(
            server.address, kind, trust=aqueduct.dev_trust(), timeout=60, **options
        ) as client,
    ):
        accepted = await server.accept()
        assert accepted is not None
        yield client, accepted


async def reply_to_one(connection: Any, value: Any) -> Any:
    """Receive one request, reply with a value, and return the message."""
    message = await connection.entrypoint.receive_message()
    await message.payload.reply.send(value)
    return message


async def test_a_call_with_a_request_returns_the_value_of_its_type() -> None:
    async with joined(Add) as (client, server):
        request = Add(a=1, b=2)
        for answer in (3, 4):  # the request itself is not changed, and can be sent again
            answering = asyncio.create_task(reply_to_one(server, answer))
            assert await client.entrypoint.call(request, timeout=60) == answer
            got = (await answering).payload
            assert (got.a, got.b) == (1, 2)


async def test_a_request_that_was_not_sent_can_be_called_again_and_not_sent_alone() -> None:
    async with joined(Add) as (client, server):
        server.entrypoint.close()
        await client.entrypoint.wait_closed()
        with pytest.raises(aqueduct.ReceiverClosed) as failed:
            await client.entrypoint.call(Add(a=1, b=2), timeout=60)
    request = failed.value.payload
    assert (request.a, request.b) == (1, 2)
    async with joined(Add) as (client, server):
        with pytest.raises(aqueduct.ChannelError):
            await client.entrypoint.send(request)
        answering = asyncio.create_task(reply_to_one(server, 3))
        assert await client.entrypoint.call(request, timeout=60) == 3
        await answering


async def test_requests_of_a_union_or_without_a_value_have_their_own_replies() -> None:
    async with joined(Add | Repeat | Ping) as (client, server):
        for request, answer in ((Add(1, 2), 3), (Repeat("x"), ["x", "x"]), (Ping(), None)):
            answering = asyncio.create_task(reply_to_one(server, answer))
            assert await client.entrypoint.call(request) == answer
            assert type((await answering).payload) is type(request)


async def test_the_type_of_a_reply_may_come_from_a_generic_base_class() -> None:
    async with joined(EchoText, codec=JsonCodec) as (client, server):
        answering = asyncio.create_task(reply_to_one(server, "text"))
        assert await client.entrypoint.call(EchoText("text")) == "text"
        await answering
        answering = asyncio.create_task(reply_to_one(server, "text"))
        assert await client.entrypoint.call(EchoText, value="text") == "text"
        await answering


async def test_the_time_left_travels_with_a_request() -> None:
    """AQ-CALL-2."""
    async with joined(Add) as (client, server):
        for timeout, low, high in ((60, 1, 60_000), (600, 60_001, 600_000)):
            answering = asyncio.create_task(reply_to_one(server, 3))
            assert await client.entrypoint.call(Add(1, 2), timeout=timeout) == 3
            text = (await answering).headers.text("aqueduct-timeout")
            assert low <= int(text) <= high
        answering = asyncio.create_task(reply_to_one(server, 3))
        assert await client.entrypoint.call(Add(1, 2)) == 3
        assert "aqueduct-timeout" not in (await answering).headers


def test_a_timeout_is_whole_milliseconds_and_never_less_than_zero() -> None:
    assert timeout_header(1.0001) == ((TIMEOUT, b"1001"),)
    assert timeout_header(-1) == ((TIMEOUT, b"0"),)
    assert timeout_header(MAX_TIMEOUT) == timeout_header(float("inf")) == ()


async def test_a_timeout_says_what_timed_out_where_and_after_how_long() -> None:
    async with joined(Add) as (client, server):
        with pytest.raises(
            CallTimeout,
            match=rf"^no reply to Add from {format_address(client.peer)} within 0\.05 s$",
        ) as caught:
            await client.entrypoint.call(Add(1, 2), timeout=0.05)
        assert isinstance(caught.value, TimeoutError)
        assert isinstance(caught.value, aqueduct.AqueductError)
        request = await server.entrypoint.receive()
        request.reply.cancel()
    tx, rx = channel(Add)
    with pytest.raises(CallTimeout, match="no reply to Add from a channel of this process"):
        await tx.call(Add(1, 2), timeout=0.01)
    tx.finish()
    rx.close()


async def test_a_timeout_of_the_callers_own_block_stays_what_it_is() -> None:
    tx, rx = channel(Add)
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0.01):
            await tx.call(Add(1, 2), timeout=60)
    assert not isinstance(caught.value, CallTimeout)
    tx.finish()
    rx.close()


async def test_a_call_waits_for_room_no_longer_than_its_timeout() -> None:
    tx, rx = channel(Add, capacity=1)
    waiting = asyncio.create_task(tx.call(Add(1, 2), timeout=60))
    await asyncio.sleep(0)
    with pytest.raises(CallTimeout):
        await tx.call(Add(3, 4), timeout=0.05)
    message = await rx.receive_message()
    assert 0 < int(message.headers.text("aqueduct-timeout") or 0) <= 60_000
    await message.payload.reply.send(3)
    assert await waiting == 3
    tx.finish()
    rx.close()


async def test_a_request_that_was_not_called_has_no_reply_and_says_so() -> None:
    request = Add(1, 2)
    with pytest.raises(aqueduct.ChannelClosed, match=r"Sender\.call"):
        await request.reply.send(3)
    assert "unfilled" in repr(request)
    request.reply.cancel()
    async with joined(Add) as (client, _):
        with pytest.raises(aqueduct.EncodeError, match=r"Sender\.call"):
            await client.entrypoint.send(request)


async def test_call_refuses_what_is_no_request() -> None:
    tx, rx = channel(Any)
    with pytest.raises(TypeError, match=r"derives from aqueduct\.Request"):
        await tx.call(17)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="'b' belongs to the request"):
        await tx.call(Add(1, 2), b=3)  # type: ignore[call-overload]
    tx.finish()
    rx.close()


def test_a_request_is_a_map_with_its_class_and_the_index_of_its_reply() -> None:
    """AQ-CALL-1: what another language has to write."""
    reply, answer = aqueduct.oneshot(int)
    payload, halves = codec_for(Add).encode(Add(1, 2, reply=reply))
    assert msgspec.msgpack.decode(payload) == {"type": "Add", "a": 1, "b": 2, "reply": 0}
    assert halves == [reply]
    bare = msgspec.msgpack.encode({"type": "Repeat", "text": "x"})
    assert codec_for(Either).decode(bare, no_channels).times == 2
    reply.cancel()
    answer.close()


@pytest.mark.parametrize(
    ("seconds", "error"), [("2", TypeError), (True, TypeError), (float("nan"), ValueError)]
)
async def test_a_timeout_that_is_no_number_of_seconds_is_an_error_of_the_call(
    seconds: Any, error: type[Exception]
) -> None:
    sender, receiver = aqueduct.channel(Add)
    with pytest.raises(error, match="timeout is a number of seconds"):
        await sender.call(Add(a=1, b=2), timeout=seconds)
    with pytest.raises(error, match="timeout is a number of seconds"):
        await sender.call(Add, a=1, b=2, timeout=seconds)
    gc.collect()  # a warning about an unclosed half would be an error here
    assert sender.statistics()["sent"] == 0
    sender.finish()
    receiver.close()


def test_one_request_class_serves_threads_and_asyncio() -> None:
    async def answer(connection: aqueduct.ServerConnection[Add]) -> None:
        async for request in connection.entrypoint:
            await request.reply.send(request.a + request.b)

    async def serve(ready: Any, stop: asyncio.Event) -> None:
        async with aqueduct.serve("127.0.0.1:0", Add, tls=aqueduct.dev_tls()) as server:
            running = asyncio.create_task(server.run(answer))
            ready(server.address)
            await stop.wait()
            running.cancel()

    async def main() -> int:
        loop = asyncio.get_running_loop()
        address: asyncio.Future[str] = loop.create_future()
        stop = asyncio.Event()
        serving = asyncio.create_task(serve(address.set_result, stop))
        total = await asyncio.to_thread(add_in_a_thread, await address)
        stop.set()
        await serving
        return total

    def add_in_a_thread(address: str) -> int:
        with aqueduct.blocking.connect(address, Add, trust=aqueduct.dev_trust()) as connection:
            return connection.entrypoint.call(Add(a=1, b=2), timeout=60)

    assert asyncio.run(main()) == 3


# -- errors ----------------------------------------------------------------------------------------


def test_a_call_error_has_a_code_and_text_and_can_be_copied() -> None:
    error = CallError("not-found", "no account 7")
    assert str(error) == "not-found: no account 7"
    assert str(CallError("busy")) == "busy"
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (twin.code, twin.text, twin.by_peer, str(twin)) == (
            "not-found",
            "no account 7",
            False,
            str(error),
        )
    for code in ("", "Not Found", "x" * 65, "a\nb"):
        with pytest.raises(ValueError, match="lower-case"):
            CallError(code)


class Narrow(Request[int]):
    """Sent as `Add`, and not decodable as one."""

    a: str
    b: int = 0


class Picky(msgspec.Struct):
    reply: Sender[int]

    def __post_init__(self) -> None:
        raise LookupError("a secret of the server")


class Plain(msgspec.Struct):
    size: int


@pytest.mark.parametrize("codec", [None, JsonCodec])
async def test_an_undecodable_request_fails_that_call_alone_and_tells_its_caller_why(
    codec: Any,
) -> None:
    """AQ-CALL-4: the loop of the server goes on, and so do the other calls."""
    async with joined(Add | Narrow, codec=codec) as (client, server):
        server._driver.set_entrypoint_type(Add, codec)

        async def answer() -> None:
            async for request in server.entrypoint:
                await asyncio.sleep(0)
                await request.reply.send(request.a + request.b)

        answering = asyncio.create_task(answer())
        calls = [Add(1, 2), Narrow("one"), Add(3, 4), Narrow("two")]
        async with asyncio.timeout(60):
            one, bad, two, worse = await asyncio.gather(
                *(client.entrypoint.call(request) for request in calls), return_exceptions=True
            )
        assert (one, two) == (3, 7)
        for error in (bad, worse):
            assert isinstance(error, CallError)
            assert (error.code, error.by_peer) == ("invalid-request", True)
            assert "not of type Add" in error.text
        assert not answering.done()
        client.entrypoint.finish()
        await answering


def undecodable_as(server: Any, kind: Any) -> None:
    server._driver.set_entrypoint_type(kind, None)


async def test_an_error_of_the_applications_own_types_is_not_told_to_the_caller() -> None:
    async with joined(Any) as (client, server):
        undecodable_as(server, Picky)
        reply, answer = aqueduct.oneshot(int)
        await client.entrypoint.send({"reply": reply})
        with pytest.raises(aqueduct.DecodeError, match="a secret of the server") as caught:
            await server.entrypoint.receive()
        assert caught.value.was_answered
        with pytest.raises(CallError) as told:
            await answer.receive()
        assert (told.value.code, told.value.text) == (
            "invalid-request",
            "the request could not be read",
        )


async def test_the_first_sender_hears_the_error_if_no_oneshot_came_along() -> None:
    """AQ-CALL-4, AQ-CLOSE-4: all other halves are ended."""
    async with joined(Any) as (client, server):
        undecodable_as(server, Plain)
        sender, words = aqueduct.channel(str)
        other, numbers = aqueduct.channel(int)
        await client.entrypoint.send({"size": "a", "words": sender, "numbers": other})
        with pytest.raises(aqueduct.DecodeError):
            await server.entrypoint.receive()
        with pytest.raises(CallError, match="invalid-request"):
            await words.receive()
        with pytest.raises(aqueduct.EndOfChannel):
            await words.receive()
        with pytest.raises(aqueduct.ChannelCancelled):
            await numbers.receive()


class Upload(msgspec.Struct):
    size: int
    chunks: Receiver[bytes]


async def test_a_malformed_request_that_carries_receivers_only_ends_its_senders_alone() -> None:
    """AQ-CALL-4, AQ-CLOSE-4: the loop of the server goes on."""
    async with joined(Any) as (client, server):
        undecodable_as(server, Upload)
        chunks, theirs = aqueduct.channel()
        await client.entrypoint.send({"size": "a", "chunks": theirs})
        good, theirs = aqueduct.channel()
        await client.entrypoint.send({"size": 1, "chunks": theirs})
        client.entrypoint.finish()
        uploads = [upload async for upload in server.entrypoint]
        assert [upload.size for upload in uploads] == [1]
        await chunks.wait_closed()
        with pytest.raises(aqueduct.ReceiverClosed):
            await chunks.send(b"x")
        await good.send(b"y")
        assert await uploads[0].chunks.receive() == b"y"
        good.finish()
        chunks.cancel()
        uploads[0].chunks.close()


async def test_a_malformed_message_without_channels_ends_the_loop_that_receives_it() -> None:
    async with joined(Any) as (client, server):
        undecodable_as(server, Plain)
        await client.entrypoint.send({"size": "a"})
        await client.entrypoint.send({"size": 1})
        with pytest.raises(aqueduct.DecodeError) as caught:
            async for _ in server.entrypoint:
                pass
        assert not caught.value.was_answered
        assert await server.entrypoint.receive() == Plain(1)


async def test_a_message_with_the_error_header_is_an_error_on_every_channel() -> None:
    """AQ-CALL-3: also for those that receive many messages, and over the end of the channel."""
    async with joined() as (client, server):
        for headers in (
            {"aqueduct-error": "not-found no account 7"},
            {"aqueduct-error": "Not a code"},
            {"aqueduct-error": "empty"},
            {"aqueduct-other": "is ignored"},
        ):
            await client.entrypoint.send(b"payload", headers=headers)
        client.entrypoint.finish()
        with pytest.raises(CallError) as caught:
            await server.entrypoint.receive_many()
        assert (caught.value.code, caught.value.text) == ("not-found", "no account 7")
        with pytest.raises(CallError, match=r"^unknown: a code$"):
            await server.entrypoint.receive_message()
        with pytest.raises(CallError, match=r"^empty$"):
            await server.entrypoint.receive()
        assert await server.entrypoint.receive() == b"payload"
        with pytest.raises(aqueduct.EndOfChannel):
            await server.entrypoint.receive()


def test_the_text_of_an_error_is_cut_between_characters() -> None:
    """AQ-CALL-3."""
    error = error_of(error_header("busy", "ü" * MAX_TEXT))
    assert error is not None
    assert error.text == "ü" * (MAX_TEXT // 2)
    odd = error_of(error_header("busy", "x" + "ü" * MAX_TEXT))
    assert odd is not None
    assert odd.text == "x" + "ü" * (MAX_TEXT // 2 - 1)
    assert error_of(((b"other", b"header"),)) is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(b"1500", 1.5), (b"0", 0.0), (b"-1", None), (b"", None), (b"9" * 14, None)],
)
def test_a_timeout_of_another_form_is_ignored(value: bytes, seconds: float | None) -> None:
    """AQ-CALL-2."""
    assert timeout_of(((b"other", b"7"), (TIMEOUT, value))) == seconds


async def test_a_deadline_that_the_server_reports_first_is_a_timeout_of_the_call() -> None:
    """AQ-CALL-5."""
    tx, rx = channel(Add)
    for timeout, kind in ((60, CallTimeout), (None, CallError)):
        calling = asyncio.create_task(tx.call(Add(1, 2), timeout=timeout))
        request = await rx.receive()
        request.reply._port.send_error(error_header("deadline-exceeded", ""))
        with pytest.raises(kind):
            await calling
    tx.finish()
    rx.close()


async def test_an_error_that_was_queued_locally_crosses_the_network() -> None:
    async with joined() as (client, server):
        sender, receiver = channel(int)
        await sender.send(1)
        sender._port.send_error(error_header("not-found", "7"))
        await client.entrypoint.send(b"", attach=[receiver])
        (theirs,) = (await server.entrypoint.receive_message()).attachments
        async with sender, theirs:
            assert await theirs.receive() == msgspec.msgpack.encode(1)
            with pytest.raises(CallError, match="not-found: 7"):
                await theirs.receive()


def test_threads_go_on_after_a_malformed_request_and_hear_errors() -> None:
    with (
        aqueduct.blocking.serve(f"memory://calls{next(_names)}", Add, tls=aqueduct.dev_tls()) as s,
        aqueduct.blocking.connect(s.address, Add | Narrow, trust=aqueduct.dev_trust()) as client,
        s.accept() as server,
        ThreadPoolExecutor() as pool,
    ):

        def answer() -> None:
            for request in server.entrypoint:
                aqueduct.blocking.Sender(request.reply).send(request.a + request.b)

        answering = pool.submit(answer)
        with pytest.raises(CallError, match="invalid-request"):
            client.entrypoint.call(Narrow("one"), timeout=60)
        assert client.entrypoint.call(Add(1, 2), timeout=60) == 3
        client.entrypoint.finish()
        answering.result()
