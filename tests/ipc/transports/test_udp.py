"""PDUs as datagrams."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Hashable, Sequence

import pytest
import uvloop

from aqueduct import ipc
from aqueduct.errors import BindError, ConnectError
from aqueduct.ipc.core.events import BatchResult, Transmit
from aqueduct.ipc.core.outgoing import OutgoingTransfer
from aqueduct.ipc.transports.udp import open_udp


class Ear:
    """Records the calls of a transport."""

    def __init__(self) -> None:
        self.pdus: list[bytes] = []
        self.transient_errors: list[tuple[Hashable, str]] = []

    def handle_pdus(self, pdus: Sequence[bytes], remote: Hashable) -> BatchResult:
        self.pdus += pdus
        return BatchResult.USELESS

    def handle_sent(self, sendings: Sequence[OutgoingTransfer]) -> None:
        raise AssertionError("UDP does not report sent PDUs")

    def handle_transient_error(self, remote: Hashable, why: str) -> None:
        self.transient_errors.append((remote, why))

    def handle_unreachable(self, remote: Hashable, error: Exception) -> None:
        raise AssertionError("UDP reports no remote as unreachable")


async def settle() -> None:
    await asyncio.sleep(0.05)


async def test_each_pdu_is_one_datagram() -> None:
    """IPC-UDP-1."""
    ear = Ear()
    transport = await open_udp("udp://127.0.0.1:0", ear)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        other.settimeout(1)
        remote = other.getsockname()
        sizes = [1, 100, 100, 100, 60_000, 7, 7]
        transport.send([Transmit(remote, b"h", b"d" * (size - 1), None) for size in sizes])
        assert [len(other.recv(65_535)) for _ in sizes] == sizes
        where = await transport.locate(transport.address)
        for size in sizes:
            assert isinstance(where, tuple)
            other.sendto(b"x" * size, where)
        await settle()
    assert [len(pdu) for pdu in ear.pdus] == sizes
    await transport.close()


async def test_loopback_is_the_default_host() -> None:
    """IPC-UDP-2."""
    transport = await open_udp("udp://:0", Ear())
    assert transport.address.startswith("udp://127.0.0.1:")
    await transport.close()


async def test_binding_a_non_loopback_address_warns() -> None:
    """IPC-UDP-2."""
    with pytest.warns(UserWarning, match="is for one host"):
        transport = await open_udp("udp://0.0.0.0:0", Ear())
    await transport.close()


async def test_diagnose_reports_a_closed_port() -> None:
    """IPC-UDP-5."""
    ear = Ear()
    transport = await open_udp("udp://127.0.0.1:0", Ear())
    other = await open_udp("udp://127.0.0.1:0", ear)
    gone = await open_udp("udp://127.0.0.1:0", Ear())
    await gone.close()
    closed = await transport.locate(gone.address)
    assert transport.diagnose(closed) == "nothing answers there (connection refused)"
    assert transport.diagnose(await transport.locate(other.address)) == ""
    await settle()
    assert ear.pdus == [b""]  # not a PDU: ignored
    await transport.close()
    await other.close()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_icmp_errors_do_not_stop_reception(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """IPC-UDP-5."""

    async def work() -> None:
        ear = Ear()
        transport = await open_udp("udp://127.0.0.1:0", ear)
        where = await transport.locate(transport.address)
        assert isinstance(where, tuple)
        for _ in range(3):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
                other.bind(("127.0.0.1", 0))
                dead = other.getsockname()
                other.sendto(b"x", where)
            await settle()
            transport.send([Transmit(dead, b"too late", b"", None)])
            await settle()
        assert ear.pdus == [b"x"] * 3
        await transport.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(work())


async def test_host_names_are_resolved() -> None:
    transport = await open_udp("udp://localhost:0", Ear())
    by_name = transport.address.replace("127.0.0.1", "localhost")
    assert await transport.locate(by_name) == await transport.locate(transport.address)
    await transport.close()
    with pytest.raises(BindError, match="cannot find"):
        await open_udp("udp://no.such.host.invalid:0", Ear())


async def test_a_host_name_is_resolved_again_after_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport = await open_udp("udp://127.0.0.1:0", Ear())
    loop = asyncio.get_running_loop()
    asked: list[object] = []
    answer = [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.0.9", 5000))]

    async def getaddrinfo(host: str, *_: object, **__: object) -> object:
        asked.append(host)
        return answer

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    for _ in range(2):
        assert await transport.locate("udp://some.host:5000") == ("127.0.0.9", 5000)
    assert asked == ["some.host"]
    now = loop.time()
    with monkeypatch.context() as later:
        later.setattr(loop, "time", lambda: now + 61)
        await transport.locate("udp://some.host:5000")
    assert asked == ["some.host"] * 2
    await transport.close()


@pytest.mark.parametrize("listens", ["udp://127.0.0.1:0", "udp://[::1]:0"])
async def test_an_unspecified_address_is_no_destination(listens: str) -> None:
    """IPC-UDP-3."""
    transport = await open_udp(listens, Ear())
    with pytest.raises(ConnectError, match="send to one of them"):
        await transport.locate("udp://[::]:5000" if "::" in listens else "udp://0.0.0.0:5000")
    await transport.close()


async def test_an_endpoint_on_localhost_is_reached_by_name() -> None:
    async with (
        ipc.Endpoint("udp://127.0.0.1:0") as sender,
        ipc.Endpoint("udp://127.0.0.1:0") as receiver,
    ):
        port = receiver.address.rsplit(":", 1)[1]
        sending = asyncio.create_task(sender.send(f"udp://localhost:{port}", b"x"))
        assert (await receiver.receive()).payload == b"x"
        await sending


async def test_a_reply_can_be_sent_to_the_source_of_a_datagram() -> None:
    """IPC-UDP-3."""
    transport = await open_udp("udp://127.0.0.1:0", Ear())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        other.settimeout(1)
        transport.send([Transmit(other.getsockname(), b"x", b"", None)])
        _, source = other.recvfrom(100)
    assert source == await transport.locate(transport.address)
    await transport.close()


async def test_a_large_datagram_is_not_truncated() -> None:
    """IPC-UDP-4."""
    ear = Ear()
    transport = await open_udp("udp://127.0.0.1:0", ear)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        where = await transport.locate(transport.address)
        assert isinstance(where, tuple)
        other.sendto(b"x" * 65_507, where)
        await settle()
    assert transport.max_pdu < 65_507
    assert [len(pdu) for pdu in ear.pdus] == [65_507]
    await transport.close()
