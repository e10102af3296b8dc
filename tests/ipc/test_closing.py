"""Closing an endpoint: from any task, at any time, and repeatedly."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from aqueduct import ipc
from aqueduct.errors import EndpointClosed, LocalProtocolError, MessageRefused


class Slow:
    """A slow handler that is also slow to be cancelled."""

    def __init__(self) -> None:
        self.began: list[bytes] = []
        self.has_begun = asyncio.Event()
        self.ended = 0
        self.may_end = asyncio.Event()

    async def __call__(self, message: ipc.ReceivedMessage[bytes]) -> None:
        self.began.append(message.payload)
        self.has_begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            await self.may_end.wait()
            self.ended += 1


async def begun(slow: Slow, sender: ipc.Endpoint[bytes], to: str) -> asyncio.Task[None]:
    sending = asyncio.create_task(sender.send(to, b"1"))
    await slow.has_begun.wait()
    return sending


async def test_no_function_starts_while_the_endpoint_closes() -> None:
    slow = Slow()
    receiver = ipc.Endpoint("local://", on_message=slow)
    await receiver.open()
    async with ipc.Endpoint("local://") as sender:
        first = await begun(slow, sender, receiver.address)
        closing = asyncio.create_task(receiver.close())
        await asyncio.sleep(0.01)
        second = asyncio.create_task(sender.send(receiver.address, b"2"))
        await asyncio.sleep(0.05)
        slow.may_end.set()
        await closing
        for sending in (first, second):
            with pytest.raises(MessageRefused):
                await sending
    assert slow.began == [b"1"]
    assert slow.ended == 1


async def test_a_cancelled_close_continues_and_the_next_close_waits_for_it() -> None:
    slow = Slow()
    receiver = ipc.Endpoint("udp://127.0.0.1:0", on_message=slow)
    await receiver.open()
    address = receiver.address
    async with ipc.Endpoint("udp://127.0.0.1:0") as sender:
        sending = await begun(slow, sender, address)
        stuck = asyncio.create_task(receiver.send("udp://127.0.0.1:9", b"x"))
        await asyncio.sleep(0.01)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receiver.close(), 0.02)
        with pytest.raises(EndpointClosed):
            await asyncio.wait_for(stuck, 60)  # the function has not returned
        others = [asyncio.create_task(receiver.close()) for _ in range(2)]
        await asyncio.sleep(0.02)
        assert not any(closing.done() for closing in others)
        slow.may_end.set()
        await asyncio.gather(*others)
        async with ipc.Endpoint(address):
            pass  # its port is free
        with pytest.raises(MessageRefused):
            await sending


async def test_an_endpoint_that_is_closed_while_it_opens_leaves_nothing_open() -> None:
    endpoint = ipc.Endpoint("udp://localhost:0")
    opening = asyncio.create_task(endpoint.open())
    await asyncio.sleep(0)
    with pytest.raises(LocalProtocolError, match="once"):
        await endpoint.open()
    await endpoint.close()
    assert opening.done()
    with pytest.raises(EndpointClosed, match="being opened"):
        await opening


async def test_an_unopened_endpoint_can_be_closed_and_then_not_opened() -> None:
    endpoint = ipc.Endpoint("local://")
    await endpoint.close()
    with pytest.raises(LocalProtocolError, match="once"):
        await endpoint.open()


async def test_a_function_may_close_its_endpoint_and_has_taken_its_message() -> None:
    after: list[bytes] = []

    async def end(message: ipc.ReceivedMessage[bytes]) -> None:
        await receiver.close()
        await asyncio.sleep(0.01)
        after.append(message.payload)

    async with ipc.Endpoint("udp://127.0.0.1:0") as sender:
        receiver = ipc.Endpoint("udp://127.0.0.1:0", on_message=end)
        await receiver.open()
        await sender.send(receiver.address, b"the last one")
        assert after == [b"the last one"]
        await receiver.close()
        assert sender.statistics().sent == 1


async def test_two_functions_that_close_do_not_wait_for_each_other() -> None:
    async def end(message: ipc.ReceivedMessage[bytes]) -> None:
        try:
            await asyncio.sleep(60 if message.payload == b"1" else 0.02)
        finally:
            await receiver.close()

    async with ipc.Endpoint("local://") as sender:
        receiver = ipc.Endpoint("local://", on_message=end)
        await receiver.open()
        sends = [asyncio.create_task(sender.send(receiver.address, each)) for each in (b"1", b"2")]
        refused, taken = await asyncio.wait_for(asyncio.gather(*sends, return_exceptions=True), 50)
        assert isinstance(refused, MessageRefused)
        assert taken is None
        await receiver.close()


async def test_a_function_that_is_cancelled_refuses_its_message() -> None:
    async def give_up(message: ipc.ReceivedMessage[bytes]) -> None:
        raise asyncio.CancelledError

    async with (
        ipc.Endpoint("local://") as sender,
        ipc.Endpoint("local://", on_message=give_up) as receiver,
    ):
        with pytest.raises(MessageRefused):
            await sender.send(receiver.address, b"x")


def test_an_endpoint_that_was_not_closed_causes_a_warning() -> None:
    async def forget() -> weakref.ref[ipc.Endpoint[bytes]]:
        endpoint = ipc.Endpoint("udp://127.0.0.1:0")
        await endpoint.open()
        endpoint._transport._socket.socket.close()  # type: ignore[attr-defined]
        return weakref.ref(endpoint)

    def is_collected() -> bool:
        forgotten = asyncio.run(forget())
        gc.collect()
        return forgotten() is None

    with pytest.warns(ResourceWarning, match="Endpoint udp://127.0.0.1:.* was not closed"):
        assert is_collected()
