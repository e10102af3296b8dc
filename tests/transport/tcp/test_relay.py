"""Channels over TCP paths that are slow, stuck, cut or half-open, on real sockets.

The relay is between client and server; the idle timeout is short where a silence has to end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

import aqueduct
from aqueduct import CloseCode, Mode, Outcome, QuicSettings
from aqueduct.testing.relay import Direction
from aqueduct.testing.tcp_relay import TcpPath, TcpRelay
from tests.processes.peers import TIMEOUT, eventually

IDLE = 1.0
NOTICED = 15.0
"""Most seconds until a dead path is noticed: an idle timeout, on a busy machine."""
ORDER = [[Direction.UP], [Direction.DOWN], [Direction.UP, Direction.DOWN]]


class Flow(msgspec.Struct):
    """Requests that the messages of a channel are received."""

    data: aqueduct.Receiver[bytes]
    back: aqueduct.Sender[bytes]
    """Is kept open and not used."""


class Scene:
    """A client and a server with a relay between them."""

    def __init__(
        self,
        relay: TcpRelay,
        client: aqueduct.Connection[Flow],
        server: aqueduct.Connection[Flow],
    ) -> None:
        self.relay, self.client, self.server = relay, client, server
        self.received: list[bytes] = []
        self.back: list[aqueduct.Receiver[bytes]] = []
        self._kept: list[Flow] = []
        self._taking: asyncio.Task[None] | None = None

    async def open(self, mode: Mode = Mode.ORDERED) -> aqueduct.Sender[bytes]:
        """Open a channel to the server, which receives what comes."""
        sender, request = await self.ask(mode)
        self._taking = asyncio.create_task(self._take(request.data))
        return sender

    async def ask(self, mode: Mode) -> tuple[aqueduct.Sender[bytes], Flow]:
        """Open a channel to the server, and one back; return the sender and the request."""
        sender, data = aqueduct.channel(bytes, mode=mode)
        back, receiver = aqueduct.channel(bytes)
        self.back.append(receiver)
        await self.client.entrypoint.send(Flow(data, back))
        request = await self.server.entrypoint.receive()
        self._kept.append(request)
        return sender, request

    async def _take(self, data: aqueduct.Receiver[bytes]) -> None:
        with contextlib.suppress(aqueduct.ChannelError):
            async for message in data:
                self.received.append(message)

    async def end(self) -> None:
        """Wait until the receiver has ended."""
        assert self._taking is not None
        await self._taking


@contextlib.asynccontextmanager
async def scene(path: TcpPath | None = None, idle: float = 60.0) -> AsyncIterator[Scene]:
    accepted: asyncio.Queue[aqueduct.Connection[Flow]] = asyncio.Queue()
    options = QuicSettings(idle_timeout=idle)
    closed = asyncio.Event()

    async def handle(connection: aqueduct.Connection[Flow]) -> None:
        accepted.put_nowait(connection)
        await closed.wait()

    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve(
            "aqueduct+tcp://127.0.0.1:0", Flow, tls=aqueduct.dev_tls(), options=options
        ) as server,
    ):
        serving = asyncio.create_task(server.run(handle))
        async with TcpRelay(server.address, path) as relay:
            client = await aqueduct.connect(
                f"aqueduct+tcp://{relay.address}",
                Flow,
                trust=aqueduct.dev_trust(),
                options=options,
            )
            try:
                yield Scene(relay, client, await accepted.get())
            finally:
                await client.close()
                closed.set()
                serving.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await serving


@pytest.fixture(autouse=True)
def own_certificates(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(tmp_path_factory.mktemp("dev")))


def numbered(count: int, size: int = 100) -> list[bytes]:
    return [number.to_bytes(4) + bytes(size - 4) for number in range(count)]


async def with_receipt(sender: aqueduct.Sender[bytes], message: bytes) -> asyncio.Future[Outcome]:
    """Send a message, and return its receipt."""
    receipt = await sender.send(message, receipt=True)
    assert receipt is not None
    return receipt


async def lost(receiver: aqueduct.Receiver[Any]) -> aqueduct.ConnectionLost:
    """Wait until a connection is lost, and return the error of a receiver of it."""
    with pytest.raises(aqueduct.ConnectionLost) as found:
        await receiver.receive()
    return found.value


async def both_lost(here: Scene) -> list[int]:
    """Wait until both sides have lost the connection, and return the codes."""
    receivers: list[aqueduct.Receiver[Any]] = [here.back[0], here.server.entrypoint]
    return [error.code for error in await asyncio.gather(*map(lost, receivers))]


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("path", [TcpPath(delay=0.02), TcpPath(0.005, 0.01, max_write=333)])
async def test_every_mode_keeps_its_meaning_over_a_slow_path(mode: Mode, path: TcpPath) -> None:
    async with scene(path) as here:
        sender = await here.open(mode)
        messages = numbered(200)
        receipts = [await with_receipt(sender, message) for message in messages]
        outcomes = await asyncio.gather(*receipts)
        sender.finish()
        await here.end()
        if mode is Mode.ORDERED:
            assert here.received == messages
        else:
            assert sorted(here.received) == [
                message
                for message, outcome in zip(messages, outcomes, strict=True)
                if outcome is Outcome.DELIVERED
            ]
        if mode is not Mode.UNRELIABLE:
            assert set(outcomes) == {Outcome.DELIVERED}


async def test_a_call_takes_a_round_trip_of_the_path() -> None:
    async with scene(TcpPath(delay=0.1)) as here:
        loop = asyncio.get_running_loop()
        sender = await here.open()
        begun = loop.time()
        await (await with_receipt(sender, b"there and back"))
        assert loop.time() - begun >= 0.2
        assert here.client.statistics()["rtt"] >= 0.2
        sender.finish()


async def test_a_stalled_connection_goes_on_and_nothing_is_lost() -> None:
    async with scene() as here:
        sender = await here.open()
        messages = numbered(2_000, 10_000)

        async def send() -> None:
            async with sender:
                for message in messages:
                    await sender.send(message)

        sending = asyncio.create_task(send())
        await eventually(lambda: len(here.received) > 100, "messages arrive")
        for _ in range(3):
            here.relay.stall()
            await asyncio.sleep(0.2)
            before = len(here.received)
            await asyncio.sleep(0.2)
            assert len(here.received) <= before + 50  # what the kernel still had
            here.relay.resume()
            await asyncio.sleep(0.05)
        await sending
        await here.end()
        assert here.received == messages


@pytest.mark.parametrize("directions", ORDER)
@pytest.mark.parametrize("is_sending", [False, True])
@pytest.mark.parametrize("fault", ["stall", "half_open"])
async def test_a_silent_path_ends_the_connection_on_both_sides_after_the_idle_timeout(
    fault: str, is_sending: bool, directions: list[Direction]
) -> None:
    """AQ-IDLE-1: of a side that still hears its peer, at the latest when the peer has given up."""
    async with scene(idle=IDLE) as here:
        sender = await here.open()

        async def send() -> None:
            with contextlib.suppress(aqueduct.ChannelError):
                while True:
                    await sender.send(bytes(10_000))

        loop = asyncio.get_running_loop()
        sending = asyncio.create_task(send()) if is_sending else None
        await asyncio.sleep(0.1)
        begun = loop.time()
        if fault == "stall":
            here.relay.stall(directions=directions)
        else:
            here.relay.half_open(directions)
        async with asyncio.timeout(NOTICED):
            codes = await both_lost(here)
            if sending is not None:
                await sending
        assert loop.time() - begun >= 0.5 * IDLE
        assert codes == [CloseCode.IDLE] * 2
        if not is_sending:
            sender.cancel()


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("is_sending", [False, True])
async def test_a_cut_connection_is_lost_at_once_on_both_sides(
    is_sending: bool, reset: bool
) -> None:
    """AQ-TCP-11; the idle timeout is longer than this test may take."""
    async with scene(TcpPath(delay=0.01)) as here:
        sender = await here.open()
        flushing = None
        if is_sending:
            for message in numbered(50, 1_000):
                await sender.send(message)
            flushing = asyncio.create_task(sender.flush())
            await asyncio.sleep(0)
        here.relay.cut(reset=reset)
        assert await both_lost(here) == [CloseCode.IDLE] * 2
        assert not here.client.is_open
        assert not here.server.is_open
        if flushing is not None:
            with pytest.raises(aqueduct.ConnectionLost):
                await flushing
        with pytest.raises(aqueduct.ConnectionLost):
            await sender.send(b"too late")


@pytest.mark.parametrize("size", [1, 500, 2_000, 10_000])
@pytest.mark.parametrize("way", list(Direction))
async def test_a_connection_that_is_cut_at_any_byte_fails_and_nothing_hangs(
    way: Direction, size: int
) -> None:
    async def use(address: str) -> None:
        connecting = aqueduct.connect(address, bytes, trust=aqueduct.dev_trust(), timeout=5)
        async with connecting as connection:
            while True:
                await (await with_receipt(connection.entrypoint, bytes(100)))

    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("aqueduct+tcp://127.0.0.1:0", bytes, tls=aqueduct.dev_tls()) as server,
        TcpRelay(server.address) as relay,
    ):
        relay.cut_after(size, way)
        serving = asyncio.create_task(server.run(drain))
        with pytest.raises((aqueduct.ConnectError, aqueduct.ConnectionLost)):
            await use(f"aqueduct+tcp://{relay.address}")
        assert relay.counts[way].cut >= 1
        serving.cancel()


async def drain(connection: aqueduct.Connection[bytes]) -> None:
    with contextlib.suppress(aqueduct.ChannelError):
        async for _ in connection.entrypoint:
            pass


async def test_unreliable_messages_that_would_be_late_are_dropped_and_ordered_ones_arrive() -> None:
    """AQ-TCP-10: the bulk ahead of them takes seconds."""
    async with scene(TcpPath(delay=0.01, rate=2_000_000, max_held=200_000)) as here:
        bulk = await here.open()
        news, request = await here.ask(Mode.UNRELIABLE)
        messages = numbered(300, 20_000)

        async def send() -> None:
            async with bulk:
                for message in messages:
                    await bulk.send(message)

        sending = asyncio.create_task(send())
        receipts: list[asyncio.Future[Outcome]] = []
        while not sending.done():
            receipts.append(await with_receipt(news, len(receipts).to_bytes(4)))
            await asyncio.sleep(0.01)
        await sending
        news.finish()
        outcomes = await asyncio.gather(*receipts)
        arrived = [int.from_bytes(each) async for each in request.data]
        delivered = [n for n, outcome in enumerate(outcomes) if outcome is Outcome.DELIVERED]
        assert sorted(arrived) == delivered
        assert Outcome.LOST in outcomes
        await here.end()
        assert here.received == messages
