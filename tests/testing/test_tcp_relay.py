"""The TCP relay delays, stalls, cuts and half-opens the connections that it passes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aqueduct.testing.relay import Direction
from aqueduct.testing.tcp_relay import TcpPath, TcpRelay, main
from tests.processes.peers import TIMEOUT, eventually

SOON = 0.05


@asynccontextmanager
async def echoing() -> AsyncIterator[str]:
    """A server that echoes all bytes, and closes a connection when its client does."""

    async def echo(reader: StreamReader, writer: StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        yield "{}:{}".format(*server.sockets[0].getsockname())


@asynccontextmanager
async def scene(
    path: TcpPath | None = None, seed: int = 0
) -> AsyncIterator[tuple[TcpRelay, StreamReader, StreamWriter]]:
    async with (
        asyncio.timeout(TIMEOUT),
        echoing() as address,
        TcpRelay(address, path, seed=seed) as relay,
    ):
        reader, writer = await asyncio.open_connection(*relay.address.split(":"))
        try:
            yield relay, reader, writer
        finally:
            writer.close()


async def nothing(reader: StreamReader) -> bool:
    """Return whether nothing arrives, for a while."""
    try:
        async with asyncio.timeout(SOON):
            await reader.read(1)
    except TimeoutError:
        return True
    return False


async def test_bytes_pass_in_order_and_are_counted() -> None:
    async with scene(TcpPath(delay=0.002, jitter=0.01, max_write=700), seed=3) as here:
        relay, reader, writer = here
        data = bytes(range(256)) * 400
        writer.write(data)
        assert await reader.readexactly(len(data)) == data
        assert {way: counts.passed for way, counts in relay.counts.items()} == {
            Direction.UP: len(data),
            Direction.DOWN: len(data),
        }
        assert (relay.accepted, relay.connections) == (1, 1)


async def test_each_byte_is_late_by_the_delay_and_the_path_carries_many() -> None:
    async with scene(TcpPath(delay=0.1)) as (_, reader, writer):
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for _ in range(100):
            writer.write(bytes(1_000))
            await asyncio.sleep(0.005)
        await reader.readexactly(100_000)
        took = loop.time() - begun
        assert took >= 0.2  # both ways; one after the other would take twenty seconds
        assert took < 20


async def test_a_rate_bounds_what_passes_in_a_second() -> None:
    async with scene(TcpPath(rate=1_000_000)) as (_, reader, writer):
        loop = asyncio.get_running_loop()
        begun = loop.time()
        writer.write(bytes(200_000))
        await reader.readexactly(200_000)
        assert loop.time() - begun >= 0.2


async def test_the_sender_waits_while_the_path_is_full() -> None:
    async def pour(writer: StreamWriter) -> None:
        for _ in range(2_000):
            writer.write(bytes(65_536))
            await writer.drain()

    async with scene(TcpPath(delay=60.0, max_held=100_000)) as (_, _, writer):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pour(writer), 0.2)


async def test_a_stall_delays_everything_and_loses_nothing() -> None:
    async with scene() as (relay, reader, writer):
        relay.stall()
        writer.write(b"late")
        assert await nothing(reader)
        relay.resume()
        assert await reader.readexactly(4) == b"late"


async def test_a_stall_of_one_direction_leaves_the_other_one() -> None:
    async with scene() as (relay, reader, writer):
        relay.stall(directions=[Direction.DOWN])
        writer.write(b"late")
        await eventually(lambda: relay.counts[Direction.UP].passed == 4, "it gets there")
        assert await nothing(reader)
        relay.resume()
        assert await reader.readexactly(4) == b"late"


async def test_a_stall_ends_by_itself_unless_another_one_replaces_it() -> None:
    async with scene() as (relay, reader, writer):
        relay.stall(0.01)
        relay.stall()
        writer.write(b"late")
        assert await nothing(reader)
        relay.stall(0.01)
        assert await reader.readexactly(4) == b"late"


@pytest.mark.parametrize("reset", [True, False])
async def test_a_cut_ends_both_sides_at_once(reset: bool) -> None:
    async with scene(TcpPath(delay=60.0)) as (relay, reader, writer):
        writer.write(b"lost")
        await eventually(lambda: relay.connections == 1, "the relay has both connections")
        await asyncio.sleep(SOON)
        relay.cut(reset=reset)
        if reset:
            with pytest.raises(ConnectionResetError):
                await reader.read()
        else:
            assert await reader.read() == b""
        await eventually(lambda: relay.connections == 0, "nothing is left")


async def test_a_cut_after_some_bytes_passes_exactly_those() -> None:
    async with scene(TcpPath(max_write=100), seed=1) as (relay, reader, writer):
        relay.cut_after(1_234, Direction.DOWN, reset=False)
        writer.write(bytes(10_000))
        assert len(await reader.read()) == 1_234
        assert relay.counts[Direction.DOWN].cut == 1


async def test_a_half_open_connection_swallows_bytes_and_the_end_of_one_direction() -> None:
    async with scene() as (relay, reader, writer):
        relay.half_open([Direction.UP])
        writer.write(b"lost")
        writer.write_eof()
        assert await nothing(reader)
        assert relay.counts[Direction.UP].swallowed == 4
        assert relay.connections == 1
        relay.end_half_open()
        again, other = await asyncio.open_connection(*relay.address.split(":"))
        other.write(b"passes")
        assert await again.readexactly(6) == b"passes"
        other.close()


async def test_the_end_of_a_side_passes_behind_its_bytes() -> None:
    async with scene(TcpPath(delay=0.02)) as (relay, reader, writer):
        writer.write(b"last")
        writer.write_eof()
        assert await reader.read() == b"last"
        await eventually(lambda: relay.connections == 0, "both directions have ended")


async def test_a_server_that_is_not_there_resets_the_client() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with asyncio.timeout(TIMEOUT), TcpRelay("{}:{}".format(*unused.getsockname())) as to:
            reader, writer = await asyncio.open_connection(*to.address.split(":"))
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
            writer.close()


@pytest.mark.parametrize(
    "wrong", [{"delay": -1.0}, {"jitter": -0.1}, {"max_write": -1}, {"rate": 0.0}, {"max_held": 0}]
)
def test_a_path_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        TcpPath(**wrong)  # type: ignore[arg-type]


async def test_the_command_relays_until_it_is_stopped_and_prints_counts() -> None:
    async with asyncio.timeout(TIMEOUT), echoing() as address:
        words = ["-m", "aqueduct.testing.tcp_relay", "--to", address, "--stall", "60:1"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdout=asyncio.subprocess.PIPE, env=dict(os.environ)
        )
        assert process.stdout is not None
        where = json.loads(await process.stdout.readline())["address"]
        reader, writer = await asyncio.open_connection(*where.split(":"))
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        process.send_signal(signal.SIGINT)
        counts = json.loads(await process.stdout.readline())
        assert counts["up"]["passed"] == counts["down"]["passed"] == 5
        assert await process.wait() == 0
        writer.close()


@pytest.mark.parametrize("words", [["--to", "nowhere"], ["--to", "a:1", "--stall", "now"]])
def test_wrong_arguments_are_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert words[-1] in capsys.readouterr().err
