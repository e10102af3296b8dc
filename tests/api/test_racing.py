"""Races between QUIC and TCP: who is tried first, who wins, and what is remembered."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import pytest

import aqueduct
from aqueduct.api import client
from aqueduct.api.racing import RACE_DELAY, REMEMBERED, Attempt, Winners, race
from aqueduct.errors import HandshakeFailed, HostUnreachable, Refused, TLSError
from aqueduct.transport.quic.transport import QuicTransport
from aqueduct.transport.schemes import DualListener
from aqueduct.transport.tcp.transport import TcpTransport
from tests.ports import closed_port
from tests.processes.peers import TIMEOUT, eventually

LONG = 600.0


@pytest.fixture(autouse=True)
def own_certificates(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(tmp_path_factory.mktemp("dev")))
    monkeypatch.setattr(client, "_winners", Winners(lambda: 0.0))
    discarded.clear()


class Runner:
    """An attempt that does what a test says, and what became of it."""

    def __init__(self, result: str | Exception = "done") -> None:
        self.result = result
        self.has_begun = self.was_cancelled = False
        self.handshake = asyncio.Event()
        self.answer = asyncio.Event()

    async def __call__(self, won: Callable[[], None]) -> str:
        self.has_begun = True
        try:
            await self.handshake.wait()
            won()
            await self.answer.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


discarded: list[str] = []


def failing(error: Exception) -> Attempt[str]:
    async def fail(won: Callable[[], None]) -> str:
        raise error

    return fail


async def test_the_next_attempt_begins_after_the_delay_and_the_first_to_win_ends_the_other() -> (
    None
):
    first, second = Runner("first"), Runner("second")
    running = asyncio.create_task(race([first, second], 0.01, discarded.append))
    await eventually(lambda: second.has_begun, "the second attempt begins")
    assert first.has_begun
    second.handshake.set()
    await eventually(lambda: first.was_cancelled, "it has lost")
    assert not running.done(), "the winner waits for its answer"
    second.answer.set()
    assert await running == (1, "second")


async def test_an_attempt_that_wins_in_time_is_alone() -> None:
    first, second = Runner("first"), Runner("second")
    first.handshake.set()
    first.answer.set()
    assert await race([first, second], LONG, discarded.append) == (0, "first")
    assert not second.has_begun


async def test_the_next_attempt_begins_at_once_if_the_one_before_fails() -> None:
    second = Runner("second")
    second.handshake.set()
    second.answer.set()
    attempts: list[Attempt[str]] = [failing(HostUnreachable("nothing listens")), second]
    assert await race(attempts, LONG, discarded.append) == (1, "second")


async def test_an_answer_of_the_server_ends_the_race() -> None:
    second = Runner("second")
    attempts: list[Attempt[str]] = [failing(TLSError("not trusted")), second]
    with pytest.raises(TLSError, match="not trusted"):
        await race(attempts, LONG, discarded.append)
    assert not second.has_begun


async def test_the_answer_to_the_winner_ends_the_race() -> None:
    first, second = Runner(), Runner(Refused("no"))
    running = asyncio.create_task(race([first, second], 0.001, discarded.append))
    await eventually(lambda: second.has_begun, "both run")
    second.handshake.set()
    second.answer.set()
    with pytest.raises(Refused):
        await running
    assert first.was_cancelled


@pytest.mark.parametrize(
    ("errors", "raised"),
    [
        ([HostUnreachable("one"), HostUnreachable("two")], "one"),
        ([HostUnreachable("one"), HandshakeFailed("two")], "two"),
        ([HandshakeFailed("one"), HostUnreachable("two")], "one"),
    ],
)
async def test_if_all_fail_an_error_that_another_try_may_mend_is_raised(
    errors: list[Exception], raised: str
) -> None:
    with pytest.raises(aqueduct.ConnectError, match=raised):
        await race([failing(error) for error in errors], LONG, discarded.append)


async def test_a_cancelled_race_leaves_no_attempt() -> None:
    first, second = Runner(), Runner()
    running = asyncio.create_task(race([first, second], 0.001, discarded.append))
    await eventually(lambda: second.has_begun, "both run")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert first.was_cancelled
    assert second.was_cancelled


async def test_a_result_that_comes_with_the_cancel_is_discarded() -> None:
    first, second = Runner("first"), Runner("second")
    first.handshake.set()
    running = asyncio.create_task(race([first, second], LONG, discarded.append))
    await eventually(lambda: first.has_begun, "it runs")
    first.answer.set()
    await asyncio.sleep(0)  # it has its result now, and the race has not seen it
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert discarded == ["first"]


async def test_a_connection_that_comes_with_the_cancel_is_closed() -> None:
    """Whenever a client gives up, the server does not keep its connection."""
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls()) as server,
    ):
        for turns in range(2, 60, 3):
            for scheme in ("aqueduct+quic://", "aqueduct+tcp://"):
                connecting = asyncio.ensure_future(connect(scheme + server.address).__aenter__())
                for _ in range(turns):
                    await asyncio.sleep(0)
                connecting.cancel()
                with suppress(asyncio.CancelledError):
                    await (await connecting).close()
        await eventually(lambda: not server.connections, "all are closed")


def test_a_winner_is_tried_first_for_ten_minutes() -> None:
    now = 100.0
    winners = Winners(lambda: now)
    assert winners.order("a", 2) == [0, 1]
    winners.remember("a", 1)
    assert (winners.order("a", 2), winners.order("b", 2)) == ([1, 0], [0, 1])
    now += REMEMBERED - 1
    winners.remember("a", 1)  # does not last longer for it
    now += 2
    assert winners.order("a", 2) == [0, 1]
    winners.remember("a", 1)
    winners.remember("a", 0)
    assert winners.order("a", 2) == [0, 1]


def test_few_winners_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aqueduct.api.racing._MOST_REMEMBERED", 3)
    winners = Winners(lambda: 0.0)
    for server in "abcd":
        winners.remember(server, 1)
    assert [server for server in "abcd" if winners.order(server, 2) == [1, 0]] == ["b", "c", "d"]


# Real sockets


def transport_of(connection: aqueduct.Connection[Any]) -> object:
    return type(connection._driver.transport)


def connect(address: str) -> Any:
    return aqueduct.connect(address, trust=aqueduct.dev_trust())


async def test_a_server_listens_on_udp_and_tcp_at_the_same_port() -> None:
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls()) as server,
    ):
        for scheme, expected in (
            ("", QuicTransport),
            ("aqueduct://", QuicTransport),
            ("aqueduct+quic://", QuicTransport),
            ("aqueduct+tcp://", TcpTransport),
        ):
            async with connect(scheme + server.address) as connection:
                assert transport_of(connection) is expected
                await connection.entrypoint.send(b"hello")
                theirs = await server.accept()
                assert await theirs.entrypoint.receive() == b"hello"


@pytest.mark.parametrize("scheme", ["aqueduct+quic://", "aqueduct+tcp://"])
async def test_a_server_on_one_of_them_has_its_scheme_in_the_address(scheme: str) -> None:
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve(f"{scheme}127.0.0.1:0", tls=aqueduct.dev_tls()) as server,
    ):
        assert server.address.startswith(f"{scheme}127.0.0.1:")
        async with connect(server.address) as connection:
            assert connection.is_open
        other = {"aqueduct+quic://": "aqueduct+tcp://", "aqueduct+tcp://": "aqueduct+quic://"}
        with pytest.raises(aqueduct.HostUnreachable):
            await connect(server.address.replace(scheme, other[scheme]))


async def test_where_nothing_answers_over_udp_tcp_wins_and_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "RACE_DELAY", 0.25)
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("aqueduct+tcp://127.0.0.1:0", tls=aqueduct.dev_tls()) as server,
    ):
        address = server.address.removeprefix("aqueduct+tcp://")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as hole:
            hole.bind(("127.0.0.1", int(address.rpartition(":")[2])))
            hole.setblocking(False)
            async with connect(address) as connection:
                assert transport_of(connection) is TcpTransport
            assert len(hole.recv(65_536)) >= 1_200, "QUIC was tried"
            with suppress(BlockingIOError):
                while hole.recv(65_536):
                    pass
            monkeypatch.setattr(client, "RACE_DELAY", LONG)
            async with connect(address) as connection:
                assert transport_of(connection) is TcpTransport
            with pytest.raises(BlockingIOError):
                hole.recv(65_536)


async def test_where_udp_is_blocked_a_connection_takes_half_a_second_and_the_next_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing comes back over UDP. A busy machine gets many tries, and one has to be in time."""
    assert (RACE_DELAY, REMEMBERED) == (0.25, 600.0)
    monkeypatch.setattr(client, "RACE_DELAY", RACE_DELAY)
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("aqueduct+tcp://127.0.0.1:0", tls=aqueduct.dev_tls()) as server,
    ):
        address = server.address.removeprefix("aqueduct+tcp://")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as hole:
            hole.bind(("127.0.0.1", int(address.rpartition(":")[2])))

            async def took() -> float:
                before = monotonic()
                async with connect(address) as connection:
                    assert transport_of(connection) is TcpTransport
                    return monotonic() - before

            first = second = LONG
            while first > 0.5 or second > 0.05:
                client._winners = Winners(monotonic)
                first, second = min(first, await took()), min(second, await took())
            assert first >= RACE_DELAY


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENETUNREACH])
async def test_where_this_host_blocks_udp_tcp_is_tried_at_once(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A rule of a firewall or of a routing table makes sending fail, with one of these errors."""
    monkeypatch.setattr(client, "RACE_DELAY", LONG)

    def failing(name: str) -> Callable[..., Any]:
        send = getattr(socket.socket, name)

        def fail(sock: socket.socket, *arguments: Any) -> Any:
            if sock.type == socket.SOCK_DGRAM:
                raise OSError(number, os.strerror(number))
            return send(sock, *arguments)

        return fail

    for name in ("send", "sendto", "sendmsg"):
        monkeypatch.setattr(socket.socket, name, failing(name))
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls()) as server,
    ):
        async with connect(server.address) as connection:
            assert transport_of(connection) is TcpTransport
        with pytest.raises(aqueduct.HostUnreachable, match="cannot reach 127"):
            await connect(f"aqueduct+quic://{server.address}")


async def test_where_udp_is_refused_tcp_is_tried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RACE_DELAY", LONG)
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("aqueduct+tcp://127.0.0.1:0", tls=aqueduct.dev_tls()) as server,
        connect(server.address.removeprefix("aqueduct+tcp://")) as connection,
    ):
        assert transport_of(connection) is TcpTransport


async def test_where_tcp_is_refused_quic_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RACE_DELAY", 0.0)
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("aqueduct+quic://127.0.0.1:0", tls=aqueduct.dev_tls()) as server,
        connect(server.address.removeprefix("aqueduct+quic://")) as connection,
    ):
        assert transport_of(connection) is QuicTransport


async def test_a_connection_that_loses_late_is_closed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handshakes of both may be complete before one of them is ended."""
    monkeypatch.setattr(client, "RACE_DELAY", 0.0)
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls()) as server,
    ):
        for _ in range(5):
            async with connect(server.address) as connection:
                await connection.entrypoint.send(b"hello")
                await connection.entrypoint.flush()
                await eventually(lambda: len(server.connections) == 1, "the other one is closed")
            await eventually(lambda: not server.connections, "both are closed")


async def test_nothing_listens_on_either() -> None:
    with (
        closed_port() as port,
        pytest.raises(aqueduct.HostUnreachable, match="nothing listens at"),
    ):
        await connect(f"127.0.0.1:{port}")


async def test_a_port_that_is_free_for_udp_only_is_a_bind_error() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        address = f"127.0.0.1:{sock.getsockname()[1]}"
        with pytest.raises(aqueduct.BindError, match="in use"):
            await aqueduct.serve(address, tls=aqueduct.dev_tls())
        async with aqueduct.serve(f"aqueduct+quic://{address}", tls=aqueduct.dev_tls()) as server:
            assert server.address.endswith(address)


async def test_a_free_port_is_free_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    real = socket.socket.bind

    def bind(sock: socket.socket, where: Any) -> None:
        if sock.type == socket.SOCK_DGRAM and len(taken) < 3:
            taken.append(where[1])
            raise OSError(98, "Address already in use")
        real(sock, where)

    monkeypatch.setattr(socket.socket, "bind", bind)
    async with aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls()) as server:
        assert len(taken) == 3
        assert int(server.address.rpartition(":")[2])


async def test_both_share_the_limit_of_connections() -> None:
    options = aqueduct.QuicSettings(max_connections=4)
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls(), options=options) as server,
    ):
        assert isinstance(server._listener, DualListener)
        schemes = ("aqueduct+quic://", "aqueduct+tcp://")
        four = [await connect(scheme + server.address) for scheme in schemes * 2]
        assert len(server.connections) == 4
        for scheme in schemes:
            with pytest.raises(aqueduct.ConnectError):
                await aqueduct.connect(
                    scheme + server.address, trust=aqueduct.dev_trust(), timeout=0.2
                )
        for connection in four:
            await connection.close()


def test_threads_connect_and_serve_over_tcp() -> None:
    with (
        aqueduct.blocking.serve("aqueduct+tcp://127.0.0.1:0", tls=aqueduct.dev_tls()) as server,
        aqueduct.blocking.connect(server.address, trust=aqueduct.dev_trust()) as connection,
    ):
        connection.entrypoint.send(b"from a thread")
        with server.accept() as theirs:
            assert theirs.entrypoint.receive() == b"from a thread"
