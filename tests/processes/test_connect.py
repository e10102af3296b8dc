"""Connecting: success, failures, and the hints in their errors."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from pathlib import Path

import pytest

import aqueduct
from aqueduct import (
    ConnectError,
    ConnectTimeout,
    ForkedConnectionError,
    Refused,
    TLSError,
    Unauthenticated,
    channel,
    oneshot,
)
from aqueduct.security import ServerTLS, make_authority, make_certificate
from tests.ports import closed_port
from tests.processes.lab import Ask, Collect, Keep, Report, Request
from tests.processes.peers import BOTH, HANGS, bounded, connect, lab

SCHEMES = BOTH


def open_sockets() -> int:
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum(os.readlink(link).startswith("socket:") for link in links)


@bounded
async def test_an_untrusted_certificate_is_a_tls_error_with_a_hint() -> None:
    stranger = make_authority("a stranger")
    async with lab() as server:
        with pytest.raises(TLSError, match="trust="):
            await aqueduct.connect(server.address, trust=aqueduct.trust(stranger.certificate))
        with pytest.raises(TLSError, match="trust="):
            await aqueduct.connect(server.address, trust=aqueduct.trust())


@bounded
async def test_a_certificate_for_another_name_is_a_tls_error() -> None:
    authority = make_authority("ours")
    trust = aqueduct.trust(authority.certificate)
    tls = make_certificate(["elsewhere.test"], authority)
    async with aqueduct.serve("127.0.0.1:0", tls=tls) as server:
        with pytest.raises(TLSError):
            await aqueduct.connect(server.address, trust=trust)
        with pytest.raises(TLSError):
            await aqueduct.connect(server.address.replace("127.0.0.1", "localhost"), trust=trust)


@bounded
async def test_an_expired_certificate_is_a_tls_error() -> None:
    authority = make_authority("ours")
    tls = make_certificate(["127.0.0.1"], authority, days=-0.5)
    async with aqueduct.serve("127.0.0.1:0", tls=tls) as server:
        with pytest.raises(TLSError):
            await aqueduct.connect(server.address, trust=aqueduct.trust(authority.certificate))


@bounded
async def test_a_pin_is_enough_and_a_wrong_pin_is_a_tls_error() -> None:
    tls = make_certificate(["whatever.test"])
    async with aqueduct.serve("127.0.0.1:0", tls=tls) as server:
        async with aqueduct.connect(server.address, trust=aqueduct.pin(tls.fingerprint)) as one:
            await one.entrypoint.send(b"hello")
            accepted = await server.accept()
            assert accepted is not None
            assert await accepted.entrypoint.receive() == b"hello"
        with pytest.raises(TLSError):
            await aqueduct.connect(server.address, trust=aqueduct.pin("00" * 32))


@bounded
async def test_a_pin_may_be_written_with_colons_and_capitals() -> None:
    tls = make_certificate(["whatever.test"])
    trust = aqueduct.pin(":".join(re.findall("..", tls.fingerprint.upper())))
    async with (
        aqueduct.serve("127.0.0.1:0", tls=tls) as server,
        aqueduct.connect(server.address, trust=trust) as connection,
    ):
        assert connection.is_open


@bounded
async def test_a_server_without_the_key_of_a_pinned_certificate_is_rejected() -> None:
    real, thief = make_certificate(["127.0.0.1"]), make_certificate(["127.0.0.1"])
    forged = ServerTLS(real.certificate, thief.key)
    with pytest.raises(TLSError):
        async with aqueduct.serve("127.0.0.1:0", tls=forged) as server:
            await aqueduct.connect(server.address, trust=aqueduct.pin(real.fingerprint))


@bounded
async def test_an_unknown_host_is_a_connect_error_that_names_it() -> None:
    with pytest.raises(ConnectError, match=r"cannot find 'no-such-host\.invalid'"):
        await connect("no-such-host.invalid:4433", bytes)


@bounded
@pytest.mark.parametrize("address", ["127.0.0.1:port", "127.0.0.1:99999", ":::::x", ""])
async def test_a_malformed_address_is_a_connect_error(address: str) -> None:
    with pytest.raises(ConnectError):
        await connect(address, bytes, timeout=1)


@bounded
async def test_connecting_to_an_unused_port_fails_at_once() -> None:
    with closed_port() as port, pytest.raises(ConnectError, match="nothing listens"):
        await connect(f"127.0.0.1:{port}", bytes, timeout=10 * HANGS)


@bounded
async def test_a_silent_host_is_a_connect_timeout() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectTimeout, match="is the server running"):
            await connect(f"127.0.0.1:{silent.getsockname()[1]}", bytes, timeout=0.5)


@bounded
async def test_a_port_in_use_is_a_bind_error() -> None:
    async with lab() as server:
        with pytest.raises(aqueduct.BindError, match="cannot listen"):
            await aqueduct.serve(server.address, tls=aqueduct.dev_tls())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux lists them")
@bounded
async def test_a_failed_connect_leaves_no_socket_open() -> None:
    with closed_port() as port:
        before = open_sockets()
        for _ in range(5):
            with pytest.raises(ConnectError):
                await connect(f"127.0.0.1:{port}", bytes, timeout=0.3)
            with pytest.raises(ConnectError):
                await connect("no-such-host.invalid:4433", bytes)
        assert open_sockets() == before


@bounded
async def test_the_accept_callback_refuses_clients_and_checks_credentials() -> None:
    async with lab("--accept", "password") as server:
        with pytest.raises(Unauthenticated, match="the password is wrong"):
            await connect(server.address, Request)
        with pytest.raises(Unauthenticated, match="the password is wrong"):
            await connect(server.address, Request, headers={"password": "wrong"})
        with pytest.raises(Refused, match="you are banned"):
            await connect(server.address, Request, headers={"banned": "yes"})
        headers = {"password": "open sesame"}
        async with connect(server.address, Request, headers=headers) as connection:
            assert await connection.entrypoint.call(Ask, text="hi") == "HI"


@bounded
async def test_an_accept_callback_that_raises_ends_that_connection_only() -> None:
    calls = 0

    def accept(headers: aqueduct.Headers, peer: tuple[str, int]) -> aqueduct.Accept:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ZeroDivisionError
        return aqueduct.Accept()

    async with aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls(), accept=accept) as server:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        with pytest.raises(ConnectError) as caught:
            await connect(server.address, bytes)
        assert not isinstance(caught.value, ConnectTimeout)
        async with connect(server.address, bytes) as connection:
            assert connection.is_open


@bounded
async def test_an_accept_callback_may_be_slow() -> None:
    async def accept(headers: aqueduct.Headers, peer: tuple[str, int]) -> aqueduct.Accept:
        await asyncio.sleep(0.1)
        return aqueduct.Accept(headers={"slow": "but sure"})

    async with (
        aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls(), accept=accept) as server,
        connect(server.address, bytes) as connection,
    ):
        assert connection.headers.text("slow") == "but sure"


@bounded
async def test_localhost_ipv6_and_the_scheme_are_valid_addresses(scheme: str) -> None:
    async with lab() as server:
        port = server.address.rpartition(":")[2]
        async with connect(f"{scheme}localhost:{port}/", Request) as connection:
            assert await connection.entrypoint.call(Ask, text="a") == "A"
    async with (
        aqueduct.serve(f"{scheme}[::1]:0", tls=aqueduct.dev_tls()) as six,
        connect(six.address, bytes) as connection,
    ):
        assert six.address.startswith(f"{scheme}[::1]:")
        assert connection.is_open


@bounded
async def test_a_cancelled_connect_leaves_no_state() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        silent.setblocking(False)
        port = silent.getsockname()[1]

        async def try_it() -> None:
            await connect(f"127.0.0.1:{port}", bytes)

        task = asyncio.create_task(try_it())
        await asyncio.get_running_loop().sock_recv(silent, 2_000)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


FORK = """
import asyncio, os, sys, aqueduct, tests.processes.lab as lab

def child(connection, sender, source):
    results = []
    for use in (
        lambda: sender.send_nowait(b"x"),
        lambda: source.receive_nowait(),
        lambda: connection.entrypoint.send_nowait(lab.Leave("exit")),
    ):
        try:
            use()
            results.append("nothing")
        except aqueduct.ForkedConnectionError as error:
            results.append("forked" if "fork" in str(error) else str(error))
        except Exception as error:
            results.append(repr(error))
    os.write(1, ("child " + " ".join(results) + "\\n").encode())
    os._exit(0)

async def main():
    async with aqueduct.connect(sys.argv[1], lab.Request, trust=aqueduct.dev_trust()) as c:
        sender, receiver = aqueduct.channel()
        sink, source = aqueduct.channel()
        await c.entrypoint.send(lab.Keep(receiver, sink))
        await sender.send(b"one")
        assert await source.receive() == b"one"
        pid = os.fork()
        if pid == 0:
            child(c, sender, source)
        os.waitpid(pid, 0)
        await sender.send(b"two")
        assert await source.receive() == b"two"
        sender.finish()
        print("parent", [x async for x in source], flush=True)
asyncio.run(main())
"""


@bounded
async def test_a_forked_child_gets_an_error_and_does_not_affect_the_parent() -> None:
    assert issubclass(ForkedConnectionError, aqueduct.ConnectionLost)
    async with lab() as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            FORK,
            server.address,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        output, errors = await process.communicate()
        assert output.decode().splitlines() == ["child forked forked forked", "parent []"], errors


@bounded
async def test_statistics_count_messages_and_bytes() -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sender, receiver = channel()
        report, answer = oneshot(Report)
        await connection.entrypoint.send(Collect(receiver, report))
        for _ in range(100):
            await sender.send(bytes(1000))
        await sender.flush()
        numbers = connection.statistics()
        assert numbers["channels"] >= 2
        assert 0 < numbers["rtt"] < 1
        assert sender.statistics()["sent"] == 100
        assert sender.statistics()["delivered"] == 100
        sender.finish()
        await answer.receive()


@bounded
async def test_two_connections_of_one_process_are_independent() -> None:
    async with (
        lab() as server,
        connect(server.address, Request) as one,
        connect(server.address, Request) as two,
    ):
        sender, receiver = channel()
        sink, source = channel()
        await one.entrypoint.send(Keep(receiver, sink))
        await sender.send(b"x")
        assert await source.receive() == b"x"
        await one.close()
        assert await two.entrypoint.call(Ask, text="two") == "TWO"
        with pytest.raises(aqueduct.ConnectionLost):
            await source.receive()
