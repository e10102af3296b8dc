"""Two processes over TCP paths that stall, half-open, or end with one of the processes."""

from __future__ import annotations

import asyncio
import signal

import pytest

import aqueduct
from aqueduct import DELIVERED, LOST, CloseCode, Mode, channel, oneshot
from aqueduct.testing.relay import Direction
from aqueduct.testing.tcp_relay import TcpPath, TcpRelay
from tests.processes.lab import Ask, Collect, Report, Request, numbered
from tests.processes.peers import TCP, bounded, connect, lab, send_until_error

SCHEMES = (TCP,)
IDLE = aqueduct.QuicSettings(idle_timeout=1.0)


@bounded
@pytest.mark.parametrize("mode", list(Mode))
async def test_every_mode_keeps_its_guarantees_when_the_path_stalls(mode: Mode) -> None:
    """AQ-TCP-10: what is unreliable and would be late is dropped, and its sender is told."""
    async with (
        lab() as server,
        TcpRelay(server.address, TcpPath(delay=0.005)) as relay,
        connect(f"{TCP}{relay.address}", Request) as connection,
    ):
        sender, receiver = channel(mode=mode)
        report, answer = oneshot(Report)
        await connection.entrypoint.send(Collect(receiver, report))
        receipts = []
        for number in range(150):
            if number == 50:
                relay.stall()
            receipts.append(await sender.send(numbered(number, 300), receipt=True))
            await asyncio.sleep(0.005)
        relay.resume()
        sender.finish()
        result = await answer.receive()
        outcomes = [await receipt for receipt in receipts if receipt is not None]
        assert result.ended == "EndOfChannel"
        assert result.count == outcomes.count(DELIVERED)
        if mode is Mode.UNRELIABLE:
            assert outcomes[-1] is LOST, "half a second after the path has stalled"
        else:
            assert result.count == 150
        if mode is Mode.ORDERED:
            assert result.in_order


@bounded
@pytest.mark.parametrize("fault", ["stall", "half open", "half open for the client"])
async def test_a_path_that_died_ends_the_connection_in_both_processes(fault: str) -> None:
    """AQ-IDLE-1."""
    async with lab("--idle", "1.0") as server, TcpRelay(server.address) as relay:
        async with connect(f"{TCP}{relay.address}", Request, options=IDLE) as connection:
            tasks, answers = [], []
            for mode in Mode:
                sender, receiver = channel(mode=mode)
                report, answer = oneshot(Report)
                answers.append(answer)
                await connection.entrypoint.send(Collect(receiver, report))
                tasks.append(asyncio.create_task(send_until_error(sender, b"x" * 100, 0.01)))
            await asyncio.sleep(0.1)
            if fault == "stall":
                relay.stall()
            else:
                relay.half_open([Direction.DOWN] if fault != "half open" else list(Direction))
            for error in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(error, aqueduct.ConnectionLost)
                assert error.code == CloseCode.IDLE
        gone = await server.wait_for("gone")
        assert gone
        async with connect(server.address, Request) as connection:
            assert await connection.entrypoint.call(Ask, text="next") == "NEXT"


@bounded
async def test_a_killed_server_behind_a_relay_is_noticed_at_once() -> None:
    """AQ-TCP-11: also with data of each mode under way; the idle timeout is longer than this."""
    options = aqueduct.QuicSettings(idle_timeout=600.0, keep_alive=None)
    async with (
        lab("--idle", "600") as server,
        TcpRelay(server.address, TcpPath(delay=0.01)) as relay,
        connect(f"{TCP}{relay.address}", Request, options=options) as connection,
    ):
        tasks, answers = [], []
        for mode in Mode:
            sender, receiver = channel(mode=mode)
            report, answer = oneshot(Report)
            answers.append(answer)
            await connection.entrypoint.send(Collect(receiver, report))
            tasks.append(asyncio.create_task(send_until_error(sender, bytes(10_000))))
        await asyncio.sleep(0.2)
        server.signal(signal.SIGKILL)
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(error, aqueduct.ConnectionLost)
            assert (error.code, error.by_peer) == (CloseCode.IDLE, False)
        for answer in answers:
            with pytest.raises(aqueduct.ConnectionLost):
                await answer.receive()
