"""`early_data=`: what is sent early, what waits, and the errors if the server rejects it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import aqueduct
from aqueduct import Connection, Mode, QuicSettings, Receiver, Sender, blocking, channel, oneshot
from aqueduct.security import make_authority, make_certificate
from aqueduct.transport.quic import connector
from aqueduct.transport.quic.tickets import ClientTickets
from tests.transport.quic.inside import listener_of

SECONDS = 20
TLS = make_certificate(["127.0.0.1"])
TRUST = aqueduct.pin(TLS.fingerprint)


class Upload(msgspec.Struct):
    content: Receiver[bytes]
    reply: Sender[list[int]]


class Many(msgspec.Struct):
    ends: list[Sender[int]]


@pytest.fixture(autouse=True)
def own_tickets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector, "_tickets", ClientTickets())


async def handle(connection: Connection[bytes]) -> None:
    """Echo a payload on its attached channel, and report whether it was early."""
    async for message in messages(connection):
        (reply,) = message.attachments
        assert isinstance(reply, Sender)
        async with reply:
            await reply.send(message.payload[::-1])


async def messages(connection: Connection[bytes]) -> AsyncIterator[Any]:
    with contextlib.suppress(aqueduct.EndOfChannel, aqueduct.ConnectionLost):
        while True:
            yield await connection.entrypoint.receive_message()


class Carrier(msgspec.Struct):
    reply: Sender[bytes]
    text: bytes = b""


@contextlib.asynccontextmanager
async def serving(
    handler: Any, kind: Any = bytes, address: str = "127.0.0.1:0", **options: Any
) -> AsyncIterator[aqueduct.Server[Any]]:
    options = {"tls": TLS, "early_data": True, **options}
    async with asyncio.timeout(SECONDS), aqueduct.serve(address, kind, **options) as server:
        task = asyncio.create_task(server.run(handler))
        yield server
        task.cancel()


def connect(server: aqueduct.Server[Any], kind: Any = Carrier, **options: Any) -> Any:
    return aqueduct.connect(server.address, kind, trust=TRUST, early_data=True, **options)


async def visit(server: aqueduct.Server[Any], kind: Any = Carrier) -> None:
    """Connect once, until the ticket has arrived."""
    async with connect(server, kind):
        for _ in range(1_000):
            if len(connector._tickets):
                break
            await asyncio.sleep(0.005)


async def ask(connection: Any, text: bytes) -> bytes:
    reply, answer = oneshot(bytes)
    await connection.entrypoint.send(Carrier(reply, text))
    back: bytes = msgspec.msgpack.decode((await answer.receive())[::-1])["text"]
    return back


async def test_the_second_connection_is_early() -> None:
    early: list[bool] = []

    async def note(connection: Connection[bytes]) -> None:
        early.append(connection.early_data)
        await handle(connection)

    async with serving(note) as server:
        for _ in range(3):
            async with connect(server) as connection:
                assert await ask(connection, b"hello") == b"hello"
                assert connection.early_data == bool(early[1:])
                assert connection.is_ready
    assert early == [False, True, True]


async def test_connect_returns_before_the_server_has_answered() -> None:
    async with serving(handle) as server:
        await visit(server)
        async with connect(server) as connection:
            assert not connection.is_ready
            assert connection.headers == aqueduct.Headers(())
            await connection.wait_ready()
            assert connection.is_ready


async def test_a_ticket_is_used_by_one_of_many_concurrent_connections() -> None:
    async with serving(handle) as server:
        await visit(server)

        async def one() -> bool:
            async with connect(server) as connection:
                assert await ask(connection, b"x") == b"x"
                return bool(connection.early_data)

        early = await asyncio.gather(*(one() for _ in range(5)))
        assert any(early)  # more than one if a later one used the first one's new ticket
        assert len(connector._tickets) <= 5


async def test_tickets_are_not_used_with_another_trust() -> None:
    authority = make_authority("ours")
    tls = make_certificate(["127.0.0.1"], authority)
    async with serving(handle, tls=tls) as server:
        for trust in (aqueduct.pin(tls.fingerprint), aqueduct.trust(authority.certificate)):
            async with aqueduct.connect(
                server.address, Carrier, trust=trust, early_data=True
            ) as connection:
                assert await ask(connection, b"x") == b"x"
                assert not connection.early_data
        with pytest.raises(aqueduct.TLSError):
            await aqueduct.connect(server.address, trust=aqueduct.pin("00" * 32), early_data=True)


# -- limits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False])
async def test_a_message_over_the_initial_limits_waits_for_the_servers(known: bool) -> None:
    """AQ-EARLY-4."""
    async with serving(handle) as server:
        await visit(server)
        if not known:
            listener_of(server)._tickets = None
        async with connect(server) as connection:
            large = bytes(300_000)
            sender: Sender[Any] = connection.entrypoint
            reply, answer = oneshot(bytes)
            with pytest.raises(aqueduct.WouldBlock):
                sender.send_nowait(Carrier(reply, large))
            assert not connection.is_ready
            await sender.send(Carrier(reply, large))
            assert connection.is_ready
            assert len(await answer.receive()) > 300_000


async def test_an_early_message_over_the_servers_limits_is_too_large() -> None:
    async with serving(handle, limits=aqueduct.Limits(max_message=100_000)) as server:
        await visit(server)
        async with connect(server) as connection:
            reply, answer = oneshot(bytes)
            async with answer:
                with pytest.raises(aqueduct.MessageTooLarge):
                    await connection.entrypoint.send(Carrier(reply, bytes(200_000)))
            reply.cancel()


async def test_locally_queued_messages_wait_for_the_servers_limits() -> None:
    async def measure(connection: Connection[Any]) -> None:
        async for request in connection.entrypoint:
            async with request.content, request.reply:
                await request.reply.send([len(one) async for one in request.content])

    async with serving(measure, Upload) as server:
        await visit(server, Upload)
        async with connect(server, Upload) as connection:
            sender, receiver = channel(bytes)
            sizes = [10, 200_000, 70_000, 20]
            for size in sizes:
                await sender.send(bytes(size))
            sender.finish()
            reply, answer = oneshot(list[int])
            await connection.entrypoint.send(Upload(receiver, reply))
            assert not connection.is_ready
            assert await answer.receive() == sizes


async def test_more_channels_than_the_initial_limits_allow_wait_for_the_servers() -> None:
    async def count(connection: Connection[Any]) -> None:
        async for request in connection.entrypoint:
            for number, end in enumerate(request.ends):
                async with end:
                    await end.send(number)

    async with serving(count, Many) as server:
        await visit(server, Many)
        async with connect(server, Many) as connection:
            pairs = [channel(int) for _ in range(200)]
            await connection.entrypoint.send(Many([sender for sender, _ in pairs]))
            assert connection.is_ready
            assert [await receiver.receive() for _, receiver in pairs] == list(range(200))


async def test_unreliable_messages_wait_for_the_handshake_and_arrive() -> None:
    """AQ-EARLY-3."""

    async def measure(connection: Connection[Any]) -> None:
        async for request in connection.entrypoint:
            async with request.content, request.reply:
                await request.reply.send([len(one) async for one in request.content])

    async with serving(measure, Upload) as server:
        await visit(server, Upload)
        async with connect(server, Upload) as connection:
            sender, receiver = channel(bytes, mode=Mode.UNRELIABLE)
            reply, answer = oneshot(list[int])
            await connection.entrypoint.send(Upload(receiver, reply))
            receipts = [await sender.send(bytes(size), receipt=True) for size in range(10, 20)]
            assert not connection.is_ready
            sender.finish()
            assert sorted(await answer.receive()) == list(range(10, 20))
            assert {await receipt for receipt in receipts if receipt} == {aqueduct.DELIVERED}


# -- failures --------------------------------------------------------------------------------------


async def test_a_server_with_another_certificate_is_a_tls_error() -> None:
    async with serving(handle) as first:
        await visit(first)
        address = first.address
    async with serving(handle, address=address, tls=make_certificate(["127.0.0.1"])) as second:
        with pytest.raises(aqueduct.TLSError):
            async with connect(second) as connection:
                await ask(connection, b"to a stranger")
        seen = second.connections
    assert seen == []


async def test_a_retry_costs_only_a_round_trip() -> None:
    """A server under load has each client validate its address, and takes no data before."""
    async with serving(handle) as first:
        await visit(first)
        endpoint = listener_of(first)
        endpoint.options = QuicSettings(handshakes_before_retry=0)
        async with connect(first) as connection:
            sender, receiver = channel(bytes)
            sender.cancel()
            receiver.close()
            assert await ask(connection, b"x") == b"x"
            assert connection.early_data


async def test_a_waiting_channel_gets_the_error_that_connect_would_raise() -> None:
    def refuse(headers: aqueduct.Headers, peer: Any) -> aqueduct.Accept:
        if headers.get("no"):
            raise aqueduct.Refuse("not today")
        return aqueduct.Accept()

    async with serving(handle, accept=refuse) as server:
        await visit(server)
        connection = await connect(server, headers={"no": "1"})
        reply, answer = oneshot(bytes)
        await connection.entrypoint.send(Carrier(reply, b"x"))
        for _ in range(2):
            with pytest.raises(aqueduct.Refused, match="not today"):
                await answer.receive()
        with pytest.raises(aqueduct.Refused, match="not today"):
            await connection.entrypoint.flush()
        with pytest.raises(aqueduct.Refused, match="not today"):
            await connection.entrypoint.send(Carrier(reply, b"y"))
        await connection.close()
        assert not connection.is_open


async def test_flush_raises_if_a_waiting_message_exceeds_the_servers_limits() -> None:
    async def take(connection: Connection[Upload]) -> None:
        async for upload in connection.entrypoint:
            upload.reply.cancel()
            with contextlib.suppress(aqueduct.ChannelError):
                await upload.content.receive()

    async with serving(take, Upload) as server:
        await visit(server, Upload)
        async with connect(server, Upload) as connection:
            sender, content = channel(bytes)
            reply, answer = oneshot(list[int])
            sender.send_nowait(bytes(17 << 20))
            await connection.entrypoint.send(Upload(content, reply))
            assert not connection.is_ready
            with pytest.raises(aqueduct.MessageTooLarge):
                await asyncio.wait_for(sender.flush(), 60)
            answer.close()


async def test_channels_report_a_local_close() -> None:
    async with serving(handle) as server:
        await visit(server)
        connection = await connect(server)
        await connection.close()
        reply, answer = oneshot(bytes)
        async with answer:
            with pytest.raises(aqueduct.ConnectionLost, match="this side"):
                await connection.entrypoint.send(Carrier(reply))
        reply.cancel()


async def test_a_failed_accept_callback_ends_an_early_connection() -> None:
    def accept(headers: aqueduct.Headers, peer: Any) -> aqueduct.Accept:
        assert not headers.get("fail")
        return aqueduct.Accept()

    errors: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context["message"]))
    async with serving(handle, accept=accept) as server:
        await visit(server)
        with pytest.raises(aqueduct.ConnectError, match="the accept callback failed"):
            async with connect(server, headers={"fail": "1"}):
                pass
    assert len(errors) == 1


# -- threads and processes -------------------------------------------------------------------------


class Question(msgspec.Struct):
    text: str
    reply: blocking.Sender[str]


def test_threads_can_use_early_data() -> None:
    seen: list[bool] = []

    def answer(connection: blocking.Connection[Any]) -> None:
        seen.append(connection.early_data)
        for request in connection.entrypoint:
            with request.reply:
                request.reply.send(request.text.upper())

    def refuse(headers: aqueduct.Headers, peer: Any) -> aqueduct.Accept:
        if headers.get("no"):
            raise aqueduct.Refuse("not today")
        return aqueduct.Accept()

    with blocking.serve("127.0.0.1:0", Question, tls=TLS, accept=refuse, early_data=True) as server:
        thread = threading.Thread(target=server.run, args=(answer,), daemon=True)
        thread.start()
        for _ in range(2):
            with blocking.connect(
                server.address, Question, trust=TRUST, early_data=True
            ) as connection:
                assert connection.entrypoint.call(Question, text="hi", timeout=60) == "HI"
        assert connection.early_data
        refused = blocking.connect(
            server.address, Question, trust=TRUST, early_data=True, headers={"no": "1"}
        )
        with pytest.raises(aqueduct.Refused):
            refused.wait_ready(5)
        refused.close()
    thread.join(60)
    assert seen == [False, True]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_no_tickets(tmp_path: Path) -> None:
    connector._tickets._tickets["other"] = None  # type: ignore[assignment]
    pid = os.fork()
    if pid == 0:
        os._exit(len(connector._tickets._tickets))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    connector._tickets._tickets.clear()
