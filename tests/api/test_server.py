"""Servers: acceptance, refusal, handlers, and what is reported to the application."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import aqueduct
from aqueduct import ConnectError, ConnectTimeout, Headers
from aqueduct.protocol.config import Config
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.runtime import closing
from aqueduct.runtime.connection_driver import ConnectionDriver
from aqueduct.testing.relay import Impairments, Relay
from aqueduct.transport.schemes import connectors_for
from aqueduct.wire.chanid import Side
from tests.hostile.attacks import first_packet
from tests.ports import free_port
from tests.processes.peers import eventually
from tests.transport.quic.inside import listener_of

SECONDS = 60


@pytest.fixture(autouse=True)
def own_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(tmp_path))


@pytest.fixture
async def reported() -> list[dict[str, Any]]:
    """Return what is reported to the loop's exception handler."""
    contexts: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: contexts.append(context))
    return contexts


def serve(**options: Any) -> Any:
    return aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls(), **options)


def connect(server: aqueduct.Server[bytes], **options: Any) -> Any:
    return aqueduct.connect(server.address, trust=aqueduct.dev_trust(), timeout=SECONDS, **options)


def fail(headers: Headers, peer: Any) -> None:
    raise ZeroDivisionError("in the callback")


async def fail_later(headers: Headers, peer: Any) -> None:
    await asyncio.sleep(0)
    raise ZeroDivisionError("in the callback")


async def await_what_was_cancelled(headers: Headers, peer: Any) -> None:
    task = asyncio.ensure_future(asyncio.sleep(60))
    task.cancel()
    await task


def answer_nonsense(headers: Headers, peer: Any) -> Any:
    return aqueduct.Accept(headers=17)  # type: ignore[arg-type]


def answer_reserved(headers: Headers, peer: Any) -> Any:
    return aqueduct.Accept(headers={"aqueduct-limits": "mine"})


@pytest.mark.parametrize(
    "accept", [fail, fail_later, await_what_was_cancelled, answer_nonsense, answer_reserved]
)
async def test_an_accept_callback_that_fails_ends_that_connection_at_once(
    accept: Any, reported: list[dict[str, Any]]
) -> None:
    async with asyncio.timeout(SECONDS / 2), serve(accept=accept) as server:
        with pytest.raises(ConnectError, match="the accept callback failed") as caught:
            await connect(server)
    assert not isinstance(caught.value, ConnectTimeout)
    (context,) = reported
    assert "the accept callback for <ServerConnection peer=" in context["message"]
    assert isinstance(context["exception"], Exception | asyncio.CancelledError)
    gc.collect()  # a warning about an unclosed half would be an error here


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("answer", "name"),
    [
        (None, "None"),
        (False, "False"),
        (True, "True"),
        (17, "int"),
        ("the secret", "str"),
        ({"the": "secret"}, "dict"),
        (aqueduct.Accept, "type"),
        (Headers(), "Headers"),
    ],
)
async def test_an_accept_callback_that_returns_anything_but_accept_refuses(
    answer: Any, name: str, later: bool, reported: list[dict[str, Any]]
) -> None:
    """AQ-CONN-9."""

    async def decide_later(headers: Headers, peer: Any) -> Any:
        return answer

    def decide(headers: Headers, peer: Any) -> Any:
        return answer

    trust = aqueduct.dev_trust()
    options: Any = {"tls": aqueduct.dev_tls(), "accept": decide_later if later else decide}
    async with asyncio.timeout(SECONDS), aqueduct.serve("memory://", **options) as server:
        with pytest.raises(aqueduct.Refused) as caught:
            await aqueduct.connect(server.address, trust=trust)
        assert str(caught.value).endswith(" said: Refused")
        assert server.connections == []
    (context,) = reported
    assert f"was refused: the accept callback returned {name}; to accept" in context["message"]
    assert "secret" not in context["message"]
    gc.collect()


async def test_a_connection_has_the_identity_that_the_accept_callback_returned(
    address: str,
) -> None:
    async def accept(headers: Headers, peer: Any) -> aqueduct.Accept:
        return aqueduct.Accept({"user": headers.text("user")}, {"hello": "ada"})

    trust, tls = aqueduct.dev_trust(), aqueduct.dev_tls()
    async with (
        asyncio.timeout(SECONDS),
        aqueduct.serve(address, tls=tls, accept=accept) as server,
        aqueduct.connect(server.address, trust=trust, headers={"user": "ada"}) as client,
    ):
        connection = await server.accept()
        assert connection is not None
        assert connection.identity == {"user": "ada"}
        assert client.headers.text("hello") == "ada"


async def test_a_connection_to_a_server_for_everybody_has_no_identity(address: str) -> None:
    trust, tls = aqueduct.dev_trust(), aqueduct.dev_tls()
    async with (
        asyncio.timeout(SECONDS),
        aqueduct.serve(address, tls=tls) as server,
        aqueduct.connect(server.address, trust=trust),
    ):
        connection = await server.accept()
        assert connection is not None
        assert connection.identity is None


@pytest.mark.parametrize("accept", [True, False, "all"])
def test_an_accept_argument_that_is_not_a_function_is_a_type_error(accept: Any) -> None:
    with pytest.raises(TypeError, match="accept is a function of headers and peer"):
        serve(accept=accept)


async def test_a_server_that_refuses_leaves_nothing_open() -> None:
    def refuse(headers: Headers, peer: Any) -> None:
        raise aqueduct.Refuse("not today")

    async with asyncio.timeout(SECONDS), serve(accept=refuse) as server:
        for _ in range(3):
            with pytest.raises(aqueduct.Refused, match="not today"):
                await connect(server)
    gc.collect()


async def test_a_client_that_has_left_meanwhile_is_not_shown_to_the_accept_callback() -> None:
    """Its headers and its close arrive in one turn."""
    asked: list[Any] = []

    def accept(headers: Headers, peer: Any) -> aqueduct.Accept:
        asked.append(peer)
        return aqueduct.Accept()

    tls, trust = aqueduct.dev_tls(), aqueduct.dev_trust()
    async with (
        asyncio.timeout(SECONDS),
        aqueduct.serve("memory://", tls=tls, accept=accept) as server,
    ):
        (connector,) = connectors_for(server.address, trust=trust, options=None, early_data=False)
        core = ConnectionCore(Side.CLIENT, Config())
        (route, *_) = await connector.resolve()
        transport = connector.open(route, core)
        transport.start()
        core.close_connection(aqueduct.CloseCode.NO_ERROR, "", transport.now())
        transport.flush()
        async with aqueduct.connect(server.address, trust=trust) as client:
            assert client.is_open
        transport.close()
    assert len(asked) == 1


async def test_a_busy_server_raises_a_plain_connect_error() -> None:
    """AQ-CONN-5."""

    def refuse(headers: Headers, peer: Any) -> None:
        raise aqueduct.Refuse("in a while", is_busy=True)

    async with asyncio.timeout(SECONDS), serve(accept=refuse) as server:
        with pytest.raises(aqueduct.ConnectError, match="0x5: in a while") as caught:
            await connect(server)
    assert type(caught.value) is aqueduct.ConnectError
    gc.collect()


async def test_a_server_that_closes_ends_clients_that_wait_for_acceptance() -> None:
    asked = asyncio.Event()

    async def think(headers: Headers, peer: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(SECONDS):
        async with serve(accept=think) as server:
            connecting = asyncio.ensure_future(connect(server).__aenter__())
            await asked.wait()
            (transport,) = listener_of(server).transports
        assert isinstance(transport.owner, ConnectionDriver)
        assert transport.owner.ended is not None
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
    del transport
    gc.collect()


async def test_an_unfinished_handshake_leaves_no_state_when_the_server_closes() -> None:
    async with asyncio.timeout(SECONDS), serve() as server:
        host, _, port = server.address.rpartition(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(first_packet(), (host, int(port)))
            await eventually(lambda: bool(listener_of(server).transports), "a handshake begins")
    gc.collect()


async def test_unread_messages_do_not_warn_after_the_end() -> None:
    async with asyncio.timeout(SECONDS), serve() as server:
        async with connect(server) as connection:
            accepted = await server.accept()
            assert accepted is not None
            await connection.entrypoint.send(b"never read")
            await connection.entrypoint.flush()
        await accepted.wait_closed()
        assert not accepted.entrypoint._port.is_open()
        assert accepted.entrypoint.statistics()["queued"] == 1
        del accepted
        gc.collect()


async def test_messages_that_arrived_before_the_end_can_be_received_after_it() -> None:
    async with asyncio.timeout(SECONDS), serve() as server:
        async with connect(server) as connection:
            accepted = await server.accept()
            assert accepted is not None
            for number in range(3):
                await connection.entrypoint.send(b"%d" % number)
            await connection.entrypoint.flush()
        await accepted.wait_closed()
        assert [await accepted.entrypoint.receive() for _ in range(3)] == [b"0", b"1", b"2"]
        with pytest.raises(aqueduct.EndOfChannel):
            await accepted.entrypoint.receive()


async def test_an_invalid_message_type_is_rejected_before_a_socket_is_opened() -> None:
    with pytest.raises(TypeError, match="cannot be the type of a channel"):
        aqueduct.serve("127.0.0.1:0", list[int] | set[int], tls=aqueduct.dev_tls())


# -- handlers --------------------------------------------------------------------------------------


async def test_a_handler_that_loses_another_connection_ends_its_own(
    reported: list[dict[str, Any]],
) -> None:
    async with serve() as behind, serve() as server:

        async def pass_on(connection: aqueduct.ServerConnection[bytes]) -> None:
            async for message in connection.entrypoint:
                async with connect(behind) as other:
                    await (await behind.accept()).close()
                    await other.wait_closed()
                    await other.entrypoint.send(message)

        serving = asyncio.create_task(server.run(pass_on))
        async with asyncio.timeout(SECONDS), connect(server) as client:
            await client.entrypoint.send(b"hello")
            await client.wait_closed()
            with pytest.raises(aqueduct.ConnectionLost) as caught:
                await client.entrypoint.send(b"hello?")
            assert caught.value.code == aqueduct.CloseCode.INTERNAL
        assert [type(one["exception"]) for one in reported] == [aqueduct.ConnectionLost]
        serving.cancel()


async def test_a_handler_that_raises_cancelled_error_ends_its_connection(
    reported: list[dict[str, Any]],
) -> None:
    async def give_up(connection: aqueduct.ServerConnection[bytes]) -> None:
        await connection.entrypoint.receive()
        raise asyncio.CancelledError

    async with serve() as server:
        serving = asyncio.create_task(server.run(give_up))
        async with asyncio.timeout(SECONDS), connect(server) as client:
            await client.entrypoint.send(b"hello")
            await client.wait_closed()
        assert [type(one["exception"]) for one in reported] == [asyncio.CancelledError]
        assert not serving.done()
        serving.cancel()


async def test_a_handler_that_ends_by_a_disconnect_is_not_reported(
    reported: list[dict[str, Any]],
) -> None:
    async def read(connection: aqueduct.ServerConnection[bytes]) -> None:
        async for _ in connection.entrypoint:
            pass

    async with serve() as server:
        serving = asyncio.create_task(server.run(read))
        async with connect(server) as client:
            await client.entrypoint.send(b"hello")
        await eventually(lambda: not listener_of(server).transports, "the server notices the end")
        assert not reported
        serving.cancel()


async def test_connections_are_closed_when_their_handlers_are_cancelled() -> None:
    async def answer(connection: aqueduct.ServerConnection[Any]) -> None:
        async for sender in connection.entrypoint:
            await sender.send(b"the last word")

    trust = aqueduct.dev_trust()
    async with (
        asyncio.timeout(SECONDS),
        aqueduct.serve("127.0.0.1:0", aqueduct.Sender[bytes], tls=aqueduct.dev_tls()) as server,
        aqueduct.connect(server.address, aqueduct.Sender[bytes], trust=trust) as client,
    ):
        serving = asyncio.create_task(server.run(answer))
        sender, receiver = aqueduct.channel()
        await client.entrypoint.send(sender)
        assert await receiver.receive() == b"the last word"
        serving.cancel()
        await client.wait_closed()
        with pytest.raises(aqueduct.ConnectionLost, match="the server stops"):
            await receiver.receive()


# -- waiting for accept ----------------------------------------------------------------------------


async def test_connections_that_ended_before_they_were_accepted_are_kept_within_bounds(
    reported: list[dict[str, Any]],
) -> None:
    async with serve() as server:
        for number in range(8):
            async with connect(server) as client:
                await client.entrypoint.send(b"%d" % number + bytes(1_000_000))
                await client.entrypoint.flush()
        await eventually(lambda: not server.connections, "all of them end")
        kept = []
        while server._ready:
            connection = await server.accept()
            assert connection is not None
            kept.append((await connection.entrypoint.receive())[:1])
        assert kept == [b"0", b"1", b"2", b"3"]
        assert ["lost" in one["message"] for one in reported] == [True]  # reported once


async def test_ended_connections_that_wait_for_accept_count_as_open() -> None:
    options = aqueduct.QuicSettings(max_connections=2)
    async with serve(options=options) as server:
        for _ in range(2):
            async with connect(server):
                pass
        await eventually(lambda: not listener_of(server).transports, "both of them end")
        with pytest.raises(ConnectTimeout):
            await aqueduct.connect(server.address, trust=aqueduct.dev_trust(), timeout=0.2)
        assert await server.accept() is not None
        async with connect(server):
            pass


# -- failures --------------------------------------------------------------------------------------


async def test_a_server_that_cannot_record_leaves_its_port_free(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    address = f"127.0.0.1:{free_port()}"
    for _ in range(2):
        with pytest.raises(OSError, match=r"cannot record in .*trace: Not a directory"):
            await aqueduct.serve(address, tls=aqueduct.dev_tls(), trace=tmp_path / "file" / "trace")
    async with aqueduct.serve(address, tls=aqueduct.dev_tls()):
        with pytest.raises(aqueduct.BindError, match="choose another port, or 0") as caught:
            await aqueduct.serve(address, tls=aqueduct.dev_tls())
        assert caught.value.address == address
        assert not isinstance(caught.value, ConnectError)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("192.0.2.1:0", r"choose an address of this host"),
        ("no-such-host.invalid:0", r"cannot find 'no-such-host\.invalid'"),
        ("127.0.0.1:port", r"write host:port"),
    ],
)
async def test_a_server_that_cannot_bind_its_address_says_why(address: str, says: str) -> None:
    with pytest.raises(aqueduct.BindError, match=says) as caught:
        await aqueduct.serve(address, tls=aqueduct.dev_tls())
    assert caught.value.address == address


async def test_a_server_whose_close_is_cancelled_leaves_its_port_free() -> None:
    async with (
        asyncio.timeout(SECONDS),
        aqueduct.serve("127.0.0.1:0", aqueduct.Sender[bytes], tls=aqueduct.dev_tls()) as server,
        Relay(server.address, Impairments(), seed=1) as relay,
    ):
        trust = aqueduct.dev_trust()
        client = await aqueduct.connect(relay.address, aqueduct.Sender[bytes], trust=trust)
        sender, receiver = aqueduct.channel()
        await client.entrypoint.send(sender)
        connection = await server.accept()
        assert connection is not None
        theirs = await connection.entrypoint.receive()
        relay.blackout()
        await theirs.send(b"not acked")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await server.close()
        assert listener_of(server).udp.socket.fileno() == -1
        await client.close(aqueduct.CloseCode.INTERNAL)
        with pytest.raises(aqueduct.ConnectionLost):
            await receiver.receive()


# -- clients that leave ----------------------------------------------------------------------------


class Handled:
    """A handler's messages, and how its loop ended: None for a normal end."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.ended: list[BaseException | None] = []

    async def read(self, connection: aqueduct.ServerConnection[bytes]) -> None:
        try:
            async for message in connection.entrypoint:
                self.messages.append(message)
        except BaseException as error:
            self.ended.append(error)
            raise
        self.ended.append(None)


@pytest.fixture(params=["127.0.0.1:0", "memory://"])
def address(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def handled(handler: Any, address: str) -> AsyncIterator[str]:
    """Serve with a handler, and yield the address."""
    async with asyncio.timeout(SECONDS), aqueduct.serve(address, tls=aqueduct.dev_tls()) as server:
        serving = asyncio.create_task(server.run(handler))
        yield server.address
        await eventually(lambda: not server.connections, "the connections end")
    await serving


async def test_a_client_that_leaves_ends_the_servers_loop_and_nothing_is_logged(
    address: str, reported: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    """AQ-LEAVE-1."""
    handler = Handled()
    async with handled(handler.read, address) as where:
        for _ in range(2):
            async with aqueduct.connect(where, trust=aqueduct.dev_trust()) as client:
                for number in range(3):
                    await client.entrypoint.send(b"%d" % number)
    assert handler.messages == [b"0", b"1", b"2"] * 2
    assert handler.ended == [None, None]
    gc.collect()
    assert (reported, caplog.records) == ([], [])


async def fail_as_client(where: str) -> None:
    async with aqueduct.connect(where, trust=aqueduct.dev_trust()) as client:
        await client.entrypoint.send(b"half of it")
        raise ZeroDivisionError


async def test_a_client_that_leaves_by_an_exception_does_not_look_finished(
    address: str, reported: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    """AQ-LEAVE-2."""
    handler = Handled()
    async with handled(handler.read, address) as where:
        with pytest.raises(ZeroDivisionError):
            await fail_as_client(where)
    assert handler.messages == [b"half of it"]
    (error,) = handler.ended
    assert isinstance(error, aqueduct.ConnectionLost)
    assert error.by_peer
    assert error.code == aqueduct.CloseCode.NO_ERROR
    assert error.reason == "left by an exception"
    assert (reported, caplog.records) == ([], [])


async def test_a_handler_that_only_learns_of_the_end_from_an_error_is_not_reported(
    address: str, reported: list[dict[str, Any]]
) -> None:
    async def receive(connection: aqueduct.ServerConnection[bytes]) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(connection.entrypoint.receive())

    async with (
        handled(receive, address) as where,
        aqueduct.connect(where, trust=aqueduct.dev_trust()),
    ):
        pass
    assert reported == []


async def test_an_end_of_another_channel_is_reported(reported: list[dict[str, Any]]) -> None:
    async def mistake(connection: aqueduct.ServerConnection[bytes]) -> None:
        sender, receiver = aqueduct.channel()
        sender.finish()
        await receiver.receive()

    async with handled(mistake, "memory://") as where:
        client = await aqueduct.connect(where, trust=aqueduct.dev_trust())
        await client.wait_closed()
    assert [type(one["exception"]) for one in reported] == [aqueduct.EndOfChannel]


async def test_what_a_client_sent_on_other_channels_arrives_before_it_has_left() -> None:
    """AQ-LEAVE-1: a handler that does not wait for its tasks loses nothing."""
    sizes: list[int] = []
    kind = aqueduct.Receiver[bytes]

    async def count(numbers: aqueduct.Receiver[bytes]) -> None:
        sizes.append(sum([len(payload) async for payload in numbers]))

    tasks = []

    async def start(connection: aqueduct.ServerConnection[Any]) -> None:
        tasks.extend([asyncio.create_task(count(one)) async for one in connection.entrypoint])

    async with (
        asyncio.timeout(SECONDS),
        aqueduct.serve("127.0.0.1:0", kind, tls=aqueduct.dev_tls()) as server,
    ):
        serving = asyncio.create_task(server.run(start))
        trust = aqueduct.dev_trust()
        async with aqueduct.connect(server.address, kind, trust=trust) as client:
            sender, receiver = aqueduct.channel()
            await client.entrypoint.send(receiver)
            async with sender:
                for _ in range(60):
                    await sender.send(bytes(50_000))
        await asyncio.gather(*tasks)
    await serving
    assert sizes == [3_000_000]


async def test_leaving_repeats_what_the_network_loses() -> None:
    """AQ-LEAVE-1: the client does not close before the server has the end of the entrypoint."""
    handler = Handled()
    async with (
        handled(handler.read, "127.0.0.1:0") as where,
        Relay(where, Impairments(), seed=1) as relay,
        aqueduct.connect(relay.address, trust=aqueduct.dev_trust()) as client,
    ):
        await client.entrypoint.send(b"first")
        await client.entrypoint.flush()
        relay.drop_next(2)
    assert handler.ended == [None]


async def test_leaving_a_server_that_is_silent_takes_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(closing, "LINGER", 0.2)
    async with serve() as server, Relay(server.address, Impairments(), seed=1) as relay:
        client = await aqueduct.connect(relay.address, trust=aqueduct.dev_trust())
        assert await server.accept() is not None
        relay.blackout()
        async with asyncio.timeout(10):  # the idle timeout is longer
            await client.__aexit__(None, None, None)
        assert not client.is_open
        relay.end_blackout()


# -- draining --------------------------------------------------------------------------------------


class Replies:
    """A handler that answers each request, a sender, when it may."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.working = asyncio.Event()
        self.ended = 0

    async def answer(self, connection: aqueduct.ServerConnection[Any]) -> None:
        async for reply in connection.entrypoint:
            self.working.set()
            await self.may_answer.wait()
            async with reply:
                await reply.send(b"done")
        self.ended += 1


REPLY = aqueduct.Sender[bytes]


async def test_a_draining_server_tells_its_clients_and_finishes_what_is_under_way(
    address: str, reported: list[dict[str, Any]]
) -> None:
    """AQ-DRAIN-1, AQ-DRAIN-2, AQ-DRAIN-3."""
    tls, trust = aqueduct.dev_tls(), aqueduct.dev_trust()
    replies = Replies()
    async with asyncio.timeout(SECONDS), aqueduct.serve(address, REPLY, tls=tls) as server:
        serving = asyncio.create_task(server.run(replies.answer))
        client = await aqueduct.connect(server.address, REPLY, trust=trust)
        answers = []
        for _ in range(2):  # the handler works at one, and has not taken the other
            sender, receiver = aqueduct.channel()
            await client.entrypoint.send(sender)
            answers.append(receiver)
        await client.entrypoint.flush()
        await replies.working.wait()

        draining = asyncio.create_task(server.drain(600))
        await client.entrypoint.wait_closed()
        sender, unused = aqueduct.channel()
        with pytest.raises(aqueduct.ReceiverClosed, match="connect again, to another server"):
            await client.entrypoint.send(sender)
        sender.cancel()
        unused.close()
        with pytest.raises(aqueduct.GoingAway, match="the server is about to stop; connect to"):
            await aqueduct.connect(server.address, REPLY, trust=trust)
        assert not draining.done()

        replies.may_answer.set()
        for answer in answers:
            assert [message async for message in answer] == [b"done"]
        await draining
        await client.wait_closed()
        ended = client._driver.ended
        assert ended is not None
        assert (ended.code, ended.reason) == (aqueduct.CloseCode.GOING_AWAY, "drained")
        await serving
        await client.close()
    assert replies.ended == 1
    assert reported == []


class Square(aqueduct.Request[int]):
    number: int


async def test_a_call_that_arrives_after_a_drain_began_raises_that_the_receiver_was_closed(
    address: str,
) -> None:
    """AQ-DRAIN-1: it was certainly not handled, so that its caller repeats it elsewhere."""
    handled: list[int] = []
    working, may_end = asyncio.Event(), asyncio.Event()

    async def square(request: Square) -> int:
        working.set()
        await may_end.wait()
        handled.append(request.number)
        return request.number**2

    tls, trust = aqueduct.dev_tls(), aqueduct.dev_trust()
    async with asyncio.timeout(SECONDS), aqueduct.serve(address, Square, tls=tls) as server:
        serving = asyncio.create_task(server.serve(square))
        client = await aqueduct.connect(server.address, Square, trust=trust)
        calling = asyncio.create_task(client.entrypoint.call(Square(number=3)))
        await working.wait()
        (connection,) = server.connections
        # Both begin in the next turn: the server has stopped, and the client was not told yet.
        draining = asyncio.create_task(connection.drain(600))
        late = asyncio.create_task(client.entrypoint.call(Square(number=4), timeout=600))
        with pytest.raises(aqueduct.ReceiverClosed, match="connect again, to another") as caught:
            await late
        assert caught.value.payload.number == 4
        may_end.set()
        assert await calling == 9
        await draining
        await client.close()
        await server.close()
        await serving
    assert handled == [3]


async def test_idle_connections_do_not_hold_a_drain(address: str) -> None:
    """AQ-DRAIN-3: neither one that a handler reads, nor one that nobody reads."""
    tls, trust = aqueduct.dev_tls(), aqueduct.dev_trust()
    handler = Handled()
    async with asyncio.timeout(SECONDS), aqueduct.serve(address, tls=tls) as server:
        clients = [await aqueduct.connect(server.address, trust=trust) for _ in range(4)]
        read, told, unread = [await server.accept() for _ in range(3)]
        assert read is not None
        assert told is not None
        assert unread is not None
        reading = asyncio.create_task(handler.read(read))
        await clients[0].entrypoint.send(b"handled")
        await clients[0].entrypoint.flush()
        await server.drain(600)
        await reading
        assert handler.messages == [b"handled"]
        assert handler.ended == [None]
        with pytest.raises(aqueduct.EndOfChannel, match="this side drains the connection"):
            await told.entrypoint.receive()
        for client in clients:
            await client.wait_closed()
            await client.close()


async def test_a_message_without_a_reply_is_handled_before_a_drain_ends(address: str) -> None:
    handling, may_end = asyncio.Event(), asyncio.Event()
    handled_: list[bytes] = []

    async def work(connection: aqueduct.ServerConnection[bytes]) -> None:
        async for message in connection.entrypoint:
            handling.set()
            await may_end.wait()
            handled_.append(message)

    tls, trust = aqueduct.dev_tls(), aqueduct.dev_trust()
    async with asyncio.timeout(SECONDS), aqueduct.serve(address, tls=tls) as server:
        serving = asyncio.create_task(server.run(work))
        async with aqueduct.connect(server.address, trust=trust) as client:
            for number in range(3):
                await client.entrypoint.send(b"%d" % number)
            await client.entrypoint.flush()
            await handling.wait()
            draining = asyncio.create_task(server.drain(600))
            await client.entrypoint.wait_closed()
            assert not (await asyncio.wait({draining}, timeout=0.05))[0]
            assert client.is_open
            may_end.set()
            await draining
        await serving
    assert handled_ == [b"0", b"1", b"2"]


async def test_a_channel_goes_on_in_a_drain_after_its_handler_has_returned(address: str) -> None:
    """AQ-DRAIN-1."""
    kind = aqueduct.Receiver[bytes]
    received: list[bytes] = []
    tasks = []

    async def collect(numbers: aqueduct.Receiver[bytes]) -> None:
        async for number in numbers:
            received.append(number)  # noqa: PERF401 -- seen by the test meanwhile

    async def start(connection: aqueduct.ServerConnection[Any]) -> None:
        tasks.extend([asyncio.create_task(collect(one)) async for one in connection.entrypoint])

    tls, trust = aqueduct.dev_tls(), aqueduct.dev_trust()
    async with asyncio.timeout(SECONDS), aqueduct.serve(address, kind, tls=tls) as server:
        serving = asyncio.create_task(server.run(start))
        async with aqueduct.connect(server.address, kind, trust=trust) as client:
            sender, receiver = aqueduct.channel()
            await client.entrypoint.send(receiver)
            await sender.send(b"before")
            await eventually(lambda: received == [b"before"], "the handler works")
            draining = asyncio.create_task(server.drain(600))
            await client.entrypoint.wait_closed()
            await sender.send(b"after")
            await sender.flush()
            assert not draining.done()
            sender.finish()
            await draining
        await serving
    assert received == [b"before", b"after"]


async def test_a_drain_ends_what_is_open_after_its_grace(address: str) -> None:
    kind = aqueduct.Receiver[bytes]
    tls, trust = aqueduct.dev_tls(), aqueduct.dev_trust()
    async with asyncio.timeout(SECONDS), aqueduct.serve(address, kind, tls=tls) as server:
        client = await aqueduct.connect(server.address, kind, trust=trust)
        sender, receiver = aqueduct.channel()
        await client.entrypoint.send(receiver)
        await client.entrypoint.flush()
        await server.drain(0.05)
        await client.wait_closed()
        with pytest.raises(aqueduct.ConnectionLost) as caught:
            await sender.send(b"late")
        assert caught.value.code == aqueduct.CloseCode.GOING_AWAY
        await client.close()
    gc.collect()


async def test_a_client_that_drains_ends_the_servers_loop(address: str) -> None:
    handler = Handled()
    async with handled(handler.read, address) as where:
        client = await aqueduct.connect(where, trust=aqueduct.dev_trust())
        await client.entrypoint.send(b"all of it")
        await client.drain(600)
    assert (handler.messages, handler.ended) == ([b"all of it"], [None])


async def test_a_client_that_waits_for_acceptance_is_told_of_a_drain(address: str) -> None:
    """AQ-DRAIN-2."""
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def think(headers: Headers, peer: Any) -> aqueduct.Accept:
        asked.set()
        await may_answer.wait()
        return aqueduct.Accept()

    tls, trust = aqueduct.dev_tls(), aqueduct.dev_trust()
    async with (
        asyncio.timeout(SECONDS),
        aqueduct.serve(address, REPLY, tls=tls, accept=think) as server,
    ):
        first = asyncio.ensure_future(
            aqueduct.connect(server.address, REPLY, trust=trust).__aenter__()
        )
        await asked.wait()
        server._is_draining = True
        may_answer.set()
        with pytest.raises(aqueduct.GoingAway):
            await first
