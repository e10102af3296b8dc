"""Every way a channel or a connection can end, seen from the other process."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import sys

import pytest

import aqueduct
from aqueduct import (
    ChannelCancelled,
    ChannelClosed,
    ConnectionLost,
    EndOfChannel,
    Mode,
    ReceiverClosed,
    channel,
    oneshot,
)
from tests.processes.lab import (
    Ask,
    CloseAfter,
    Collect,
    Keep,
    Leave,
    Produce,
    Report,
    Request,
    Vitals,
    numbered,
)
from tests.processes.peers import (
    BOTH,
    TCP,
    bounded,
    connect,
    eventually,
    lab,
    receive_until_error,
    send_until_error,
)

SCHEMES = BOTH


@bounded
async def test_the_peer_can_read_everything_after_a_finish() -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sender, receiver = channel()
        report, answer = oneshot(Report)
        await connection.entrypoint.send(Collect(receiver, report))
        await sender.send(b"one")
        sender.finish()
        sender.finish()
        result = await answer.receive()
        assert (result.count, result.ended) == (1, "EndOfChannel")
        with pytest.raises(ChannelClosed):
            await sender.send(b"two")


@bounded
async def test_the_peer_sees_a_cancel() -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sender, receiver = channel()
        report, answer = oneshot(Report)
        await connection.entrypoint.send(Collect(receiver, report))
        await sender.send(b"one")
        await sender.flush()
        sender.cancel()
        sender.cancel()
        assert (await answer.receive()).ended == "ChannelCancelled"
        with pytest.raises(ChannelClosed):
            await sender.send(b"two")


@bounded
async def test_an_exception_in_the_with_block_cancels() -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sender, receiver = channel()
        report, answer = oneshot(Report)
        await connection.entrypoint.send(Collect(receiver, report))

        async def fail() -> None:
            async with sender:
                await sender.send(b"one")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert (await answer.receive()).ended == "ChannelCancelled"


@bounded
@pytest.mark.parametrize("ending", ["close", "drop"])
async def test_a_closed_or_garbage_collected_receiver_stops_the_sender(ending: str) -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sender, receiver = channel()
        await connection.entrypoint.send(CloseAfter(2, ending, receiver))
        with pytest.raises(ReceiverClosed):
            await send_until_error(sender, bytes(1000))
        with pytest.raises(ReceiverClosed):
            await sender.send(b"again")
        sender.finish()
    assert ("> was not closed" in server.errors) == (ending == "drop")


@bounded
@pytest.mark.parametrize(
    ("ending", "expected"),
    [("finish", EndOfChannel), ("flush and cancel", ChannelCancelled), ("drop", ChannelCancelled)],
)
async def test_the_client_sees_how_the_server_ends_its_sender(
    ending: str, expected: type[Exception]
) -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sink, source = channel()
        report, outcome = oneshot(str)
        await connection.entrypoint.send(Produce(3, 10, ending, sink, report))
        with pytest.raises(expected):
            await receive_until_error(source)
        with pytest.raises(expected):
            await source.receive()
        assert await outcome.receive() == ending
    assert ("> was not closed" in server.errors) == (ending == "drop")


@bounded
async def test_closing_a_receiver_stops_the_sending_process() -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sink, source = channel()
        report, outcome = oneshot(str)
        await connection.entrypoint.send(Produce(1_000_000, 100, "finish", sink, report))
        await source.receive()
        source.close()
        assert await outcome.receive() == "ReceiverClosed"
        with pytest.raises(ChannelClosed):
            await source.receive()


@bounded
async def test_a_garbage_collected_sender_warns_and_cancels() -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sender, receiver = channel()
        report, answer = oneshot(Report)
        await connection.entrypoint.send(Collect(receiver, report))
        await sender.send(b"one")
        with pytest.warns(ResourceWarning, match="<Sender .* was not closed"):
            del sender
        assert (await answer.receive()).ended == "ChannelCancelled"


@bounded
async def test_a_garbage_collected_receiver_warns_and_closes() -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sink, source = channel()
        report, outcome = oneshot(str)
        await connection.entrypoint.send(Produce(1_000_000, 100, "finish", sink, report))
        await source.receive()
        with pytest.warns(ResourceWarning, match="<Receiver .* was not closed"):
            del source
        assert await outcome.receive() == "ReceiverClosed"


@bounded
async def test_ended_halves_do_not_warn(recwarn: pytest.WarningsRecorder) -> None:
    gc.collect()  # collect what earlier tests left
    recwarn.clear()
    async with lab() as server, connect(server.address, Request) as connection:
        assert await connection.entrypoint.call(Ask, text="hi") == "HI"
        sink, source = channel()
        report, outcome = oneshot(str)
        await connection.entrypoint.send(Produce(3, 10, "finish", sink, report))
        assert len([payload async for payload in source]) == 3
        assert await outcome.receive() == "finish"
        del source, outcome, sink, report
        gc.collect()
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []


@bounded
@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("ending", ["finish", "cancel", "an error", "forget"])
async def test_in_every_mode_the_other_process_sees_how_a_sender_ends(
    mode: Mode, ending: str
) -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sender, receiver = channel(mode=mode)
        report, answer = oneshot(Report)
        await connection.entrypoint.send(Collect(receiver, report))
        await sender.send(b"one")
        await sender.flush()
        if ending == "finish":
            sender.finish()
        elif ending == "cancel":
            sender.cancel()
        elif ending == "an error":
            with pytest.raises(ZeroDivisionError):
                async with sender:
                    raise ZeroDivisionError
        else:
            with pytest.warns(ResourceWarning, match="<Sender .* was not closed"):
                del sender
        result = await answer.receive()
        assert result.ended == ("EndOfChannel" if ending == "finish" else "ChannelCancelled")
        assert result.count == 1 or mode is Mode.UNRELIABLE


@bounded
@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("ending", ["close", "drop"])
async def test_in_every_mode_a_sender_sees_that_its_receiver_has_closed(
    mode: Mode, ending: str
) -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sender, receiver = channel(mode=mode)
        await connection.entrypoint.send(CloseAfter(1, ending, receiver))
        with pytest.raises(ReceiverClosed):
            await send_until_error(sender, bytes(1000))
        with pytest.raises(ReceiverClosed):
            await sender.flush()


@bounded
@pytest.mark.parametrize("mode", list(Mode))
async def test_in_every_mode_the_end_of_the_connection_ends_both_halves(mode: Mode) -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sender, receiver = channel(mode=mode)
        sink, source = channel()
        await connection.entrypoint.send(Keep(receiver, sink))
        await connection.entrypoint.send(Leave("close"))
        with pytest.raises(ConnectionLost, match="enough"):
            await send_until_error(sender, bytes(1000))
        with pytest.raises(ConnectionLost, match="enough"):
            await receive_until_error(source)


@bounded
async def test_the_client_closes_the_connection_after_its_messages() -> None:
    async with lab() as server:
        async with connect(server.address, Request) as connection:
            await server.wait_for("connection")
            sender, receiver = channel()
            report, answer = oneshot(Report)
            await connection.entrypoint.send(Collect(receiver, report))
            await sender.send(b"one")
        gone = await server.wait_for("gone")
        assert gone["error"] == ""
        with pytest.raises(ConnectionLost) as caught:
            await sender.send(b"two")
        assert caught.value.by_peer is False
        with pytest.raises(ConnectionLost):
            await answer.receive()


@bounded
@pytest.mark.parametrize(
    ("how", "code", "reason"),
    [
        ("close", aqueduct.CloseCode.NO_ERROR, "enough"),
        ("fail", aqueduct.CloseCode.INTERNAL, "broken"),
    ],
)
async def test_the_server_closes_the_connection(how: str, code: int, reason: str) -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sender, receiver = channel()
        sink, source = channel()
        await connection.entrypoint.send(Keep(receiver, sink))
        await sender.send(b"one")
        assert await source.receive() == b"one"
        waiting = asyncio.create_task(source.receive())
        await connection.entrypoint.send(Leave(how))
        with pytest.raises(ConnectionLost, match=reason) as caught:
            await waiting
        assert (caught.value.code, caught.value.by_peer) == (code, True)
        with pytest.raises(ConnectionLost):
            await sender.send(b"two")
        with pytest.raises(ConnectionLost):
            await sender.flush()
        with pytest.raises(ConnectionLost):
            await connection.entrypoint.call(Ask, text="hi")
        assert not connection.is_open


@bounded
async def test_a_client_notices_a_killed_server_and_can_connect_to_the_next() -> None:
    async with lab() as first:
        address = first.address
        options = aqueduct.QuicSettings(idle_timeout=3.0, keep_alive=1.0)
        async with connect(address, Request, options=options) as connection:
            assert await connection.entrypoint.call(Ask, text="one") == "ONE"
            sender, receiver = channel()
            report, answer = oneshot(Report)
            await connection.entrypoint.send(Collect(receiver, report))
            first.signal(signal.SIGKILL)
            with pytest.raises(ConnectionLost) as caught:
                await answer.receive()
            assert (caught.value.code, caught.value.by_peer) == (aqueduct.CloseCode.IDLE, False)
            with pytest.raises(ConnectionLost):
                await sender.send(b"late")
    async with lab("--listen", address) as second, connect(second.address, Request) as connection:
        assert second.address == address
        assert await connection.entrypoint.call(Ask, text="two") == "TWO"


@bounded
async def test_a_client_that_keeps_sending_notices_a_killed_server(scheme: str) -> None:
    """AQ-IDLE-1: in each mode, and also after a second. AQ-TCP-11: at once over TCP."""
    options = aqueduct.QuicSettings(idle_timeout=1.0)
    async with lab() as server, connect(server.address, Request, options=options) as connection:
        tasks, answers = [], []
        for mode in Mode:
            sender, receiver = channel(mode=mode)
            report, answer = oneshot(Report)
            answers.append(answer)
            await connection.entrypoint.send(Collect(receiver, report))
            tasks.append(asyncio.create_task(send_until_error(sender, b"x" * 100, 0.01)))
        await asyncio.sleep(0.1)
        server.signal(signal.SIGKILL)
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(error, ConnectionLost)
            assert (error.code, error.by_peer) == (aqueduct.CloseCode.IDLE, False)
            if scheme == TCP:
                assert "disconnected without a close" in str(error)
            else:
                where = server.address.removeprefix(scheme)
                assert re.search(rf"nothing came from {where} for \d+\.\d s$", str(error))


@bounded
async def test_a_restarted_server_tells_its_old_clients(scheme: str) -> None:
    """AQ-IDLE-3; over TCP the kernel tells them (AQ-TCP-11)."""
    expected = ("disconnected without a close", aqueduct.CloseCode.IDLE)
    if scheme != TCP:
        expected = ("may have been restarted", aqueduct.CloseCode.TRANSPORT)
    options = aqueduct.QuicSettings(idle_timeout=600.0, keep_alive=0.2)
    async with lab() as first:
        address = first.address
        async with connect(address, Request, options=options) as connection:
            assert await connection.entrypoint.call(Ask, text="one") == "ONE"
            await first.kill()
            async with lab("--listen", address):
                await connection.wait_closed()
            with pytest.raises(ConnectionLost, match=expected[0]) as caught:
                await connection.entrypoint.call(Ask, text="two")
            assert caught.value.code == expected[1]


@bounded
async def test_a_client_notices_a_stopped_server_and_can_connect_to_the_next() -> None:
    async with lab() as first:
        address = first.address
        async with connect(address, Request) as connection:
            assert await connection.entrypoint.call(Ask, text="one") == "ONE"
            assert await first.stop() == 0
            with pytest.raises(ReceiverClosed, match="connect again"):
                await connection.entrypoint.call(Ask, text="late")
            await connection.wait_closed()
            assert not connection.is_open
    async with lab("--listen", address) as second, connect(second.address, Request) as connection:
        assert await connection.entrypoint.call(Ask, text="two") == "TWO"


CLIENT = """
import asyncio, sys, aqueduct, tests.processes.lab as lab
async def main():
    async with aqueduct.connect(sys.argv[1], lab.Request, trust=aqueduct.dev_trust()) as c:
        held = []
        for _ in range(100):
            sender, receiver = aqueduct.channel()
            sink, source = aqueduct.channel()
            await c.entrypoint.send(lab.Keep(receiver, sink))
            await sender.send(bytes(1000))
            held.append((sender, source))
        for _, source in held:
            await source.receive()
        print("up", flush=True)
        await asyncio.sleep(3600)
asyncio.run(main())
"""


@bounded
async def test_a_server_notices_a_killed_client_and_frees_its_state() -> None:
    async with lab("--idle", "3.0") as server:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        client = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            CLIENT,
            server.address,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
        )
        assert client.stdout is not None
        assert await client.stdout.readline() == b"up\n"
        async with connect(server.address, Request) as connection:
            before = await connection.entrypoint.call(Vitals)
            assert before["connections"] == 2
            assert before["tasks"] >= 100
            client.kill()
            await client.wait()

            async def freed() -> bool:
                now = await connection.entrypoint.call(Vitals)
                return bool(now["connections"] == 1 and now["tasks"] <= 2)

            await eventually(freed, "the server frees the state of the client")
        gone = [event for event in server.events if event["event"] == "gone"]
        gone += [await server.wait_for("gone")]
        assert gone


@bounded
async def test_a_drained_server_finishes_its_work_and_accepts_no_more() -> None:
    async with lab() as server:
        async with connect(server.address, Request) as connection:
            sender, receiver = channel()
            sink, source = channel()
            await connection.entrypoint.send(Keep(receiver, sink))
            await sender.send(b"before")
            assert await source.receive() == b"before"
            await connection.entrypoint.send(Leave("drain"))
            await server.wait_for("draining")
            with pytest.raises(aqueduct.ConnectError):
                await aqueduct.connect(
                    server.address, Request, trust=aqueduct.dev_trust(), timeout=0.5
                )
            await sender.send(b"during")
            assert await source.receive() == b"during"
            sender.finish()
            with pytest.raises(EndOfChannel):
                await source.receive()
            connection.entrypoint.finish()
            await connection.wait_closed()
        await server.wait_for("drained")


@bounded
async def test_messages_received_before_a_cancel_are_a_prefix() -> None:
    async with lab() as server, connect(server.address, Request) as connection:
        sink, source = channel()
        report, outcome = oneshot(str)
        await connection.entrypoint.send(Produce(500, 100, "cancel", sink, report))
        received: list[bytes] = []
        with pytest.raises(ChannelCancelled):
            await receive_until_error(source, received)
        assert received == [numbered(number, 100) for number in range(len(received))]
        assert await outcome.receive() == "cancel"
