"""Messages of aqueduct.ipc between processes over UDP, on a bad network and through `kill -9`."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import signal
from collections import Counter
from random import Random
from typing import Any

import pytest

from aqueduct import ipc
from aqueduct.errors import DeliveryError, MessageTooLarge, PeerRestarted, SendTimeout
from aqueduct.testing.relay import Direction, Impairments, Relay
from tests.ports import free_port
from tests.processes.courier import letter, number_of
from tests.processes.peers import TIMEOUT, Peer, bounded, eventually

ANYWHERE = "udp://127.0.0.1:0"
MIB = 1024 * 1024
ROUNDS = 10
LONG_TIMEOUTS = ipc.IpcSettings(ack_timeout=TIMEOUT, receive_timeout=TIMEOUT)


class Listener(Peer):
    """``aqueduct ipc listen``, whose lines are read as they come."""

    def __init__(self, address: str = ANYWHERE, *arguments: str) -> None:
        super().__init__("aqueduct", "ipc", "listen", address, "--json", *arguments)
        self._collecting: asyncio.Task[None] | None = None

    async def _wait_ready(self) -> str:
        ready = await self.next_event()
        self.events.clear()
        self._collecting = asyncio.create_task(super()._drain_output())
        return str(ready["address"])

    async def _drain_output(self) -> None:
        if self._collecting is None:
            await super()._drain_output()
        else:
            await self._collecting

    @property
    def printed(self) -> list[bytes]:
        return [base64.b64decode(event["payload_base64"]) for event in self.events]

    @property
    def numbers(self) -> list[int]:
        return [number_of(payload) for payload in self.printed]


def courier(to: str, **options: Any) -> Peer:
    """Return a process that sends, see ``tests/processes/courier.py``."""
    arguments = [f"--{name}={value}" for name, value in options.items()]
    return Peer("tests.processes.courier", f"--to={to}", *arguments)


def acked(peer: Peer) -> set[int]:
    return {event["number"] for event in peer.events if event["event"] == "acked"}


def free_address() -> str:
    return f"udp://127.0.0.1:{free_port()}"


class Stream:
    """Sends messages concurrently until it is stopped."""

    def __init__(self, endpoint: ipc.Endpoint[bytes], to: str, seed: int) -> None:
        self._endpoint = endpoint
        self._to = to
        self._random = Random(seed)
        self._next = 0
        self._enough = False
        self.acked: set[int] = set()
        self.failed: dict[int, DeliveryError] = {}

    async def run(self, parallel: int) -> None:
        await asyncio.gather(*(self._work() for _ in range(parallel)))

    async def more(self, count: int) -> None:
        """Wait until ``count`` more were acknowledged."""
        enough = len(self.acked) + count
        await eventually(lambda: len(self.acked) >= enough, f"{count} acknowledgements")

    def end(self) -> None:
        self._enough = True

    async def _work(self) -> None:
        while not self._enough:
            number = self._next
            self._next += 1
            size = self._random.choice((4, 100, 100, 1_000, 150_000))
            try:
                await self._endpoint.send(self._to, letter(number, size))
            except DeliveryError as error:
                self.failed[number] = error
            else:
                self.acked.add(number)
            await asyncio.sleep(self._random.uniform(0, 0.01))


@bounded
async def test_messages_of_every_size_arrive_unchanged() -> None:
    fits = 59_958  # the payload of one PDU
    sizes = [0, 1, 4, fits, fits + 1, 2 * fits, 65_535, 65_536, 65_537, MIB, 16 * MIB]
    async with Listener() as listener, ipc.Endpoint(ANYWHERE) as sender:
        for size in sizes:
            await sender.send(listener.address, letter(size, size))
        with pytest.raises(MessageTooLarge):
            await sender.send(listener.address, bytes(16 * MIB + 1))
        await eventually(lambda: len(listener.events) == len(sizes), "all lines")
        for size, event in zip(sizes, listener.events, strict=True):
            assert event["size"] == size
            assert base64.b64decode(event["payload_base64"]) == letter(size, size)
            assert event["from"] == sender.address


@bounded
async def test_a_thousand_messages_can_be_in_flight() -> None:
    async with Listener() as listener, ipc.Endpoint(ANYWHERE, config=LONG_TIMEOUTS) as sender:
        listener.signal(signal.SIGSTOP)
        sends = [
            asyncio.create_task(sender.send(listener.address, letter(number, 100)))
            for number in range(1_000)
        ]
        await asyncio.sleep(0.1)
        assert not any(send.done() for send in sends)
        listener.signal(signal.SIGCONT)
        await asyncio.gather(*sends)
        await eventually(lambda: len(listener.events) == 1_000, "all lines")
        assert sorted(listener.numbers) == list(range(1_000))


@bounded
@pytest.mark.parametrize("size", [100, 200_000])
async def test_messages_arrive_once_over_loss_duplication_and_delay(size: int) -> None:
    weather = Impairments(loss=0.2, duplicate=0.1, reorder=0.1, delay=0.001, jitter=0.002)
    count = 500 if size < 1_000 else 40
    async with Listener() as listener:
        to = listener.address.removeprefix("udp://")
        async with (
            Relay(to, weather, seed=size) as relay,
            courier(f"udp://{relay.address}", count=count, size=size, parallel=100) as sender,
        ):
            done = await sender.wait_for("done")
            for way in Direction:
                assert min(relay.counts[way].lost, relay.counts[way].duplicated) > 0
        assert done["failed"] == 0
        assert acked(sender) == set(range(count))
        await eventually(lambda: len(listener.events) >= count, "all lines")
    assert sorted(listener.numbers) == list(range(count))


@bounded
async def test_a_killed_receiver_loses_no_acknowledged_message_and_duplicates_none() -> None:
    listeners = [Listener()]
    random = Random(1)
    async with contextlib.AsyncExitStack() as stack, ipc.Endpoint(ANYWHERE) as sender:
        listener = await stack.enter_async_context(listeners[0])
        stream = Stream(sender, listener.address, seed=2)
        sending = asyncio.create_task(stream.run(parallel=20))
        for _ in range(ROUNDS):
            await stream.more(20)
            await asyncio.sleep(random.uniform(0, 0.05))
            await listener.kill()
            listener = await stack.enter_async_context(Listener(listener.address))
            listeners.append(listener)
        await stream.more(100)
        stream.end()
        await sending
        await listener.kill()

    printed = Counter(number for listener in listeners for number in listener.numbers)
    assert [number for number, times in printed.items() if times > 1] == []
    assert stream.acked - set(printed) == set()
    certain = {number for number, error in stream.failed.items() if not error.may_have_arrived}
    assert certain & set(printed) == set()
    assert {type(error) for error in stream.failed.values()} <= {PeerRestarted, SendTimeout}
    assert all(error.to == listeners[0].address for error in stream.failed.values())


@bounded
async def test_a_killed_sender_loses_no_acknowledged_message_and_duplicates_none() -> None:
    random = Random(3)
    reported: set[int] = set()
    own = free_address()
    async with Listener() as listener:
        for turn in range(ROUNDS):
            size = random.choice((4, 100, 70_000))
            options = {"from": own, "first": turn * 1_000_000, "size": size}
            async with courier(listener.address, **options) as sender:
                for _ in range(random.randrange(1, 100)):
                    await sender.wait_for("acked")
                await sender.kill()
                reported |= acked(sender)
        await eventually(
            lambda: reported <= set(listener.numbers), "all acknowledged messages arrive"
        )
        async with courier(listener.address, first=2**31, count=100) as sender:
            assert (await sender.wait_for("done"))["failed"] == 0
    printed = Counter(listener.numbers)
    assert [number for number, times in printed.items() if times > 1] == []
    assert reported - set(printed) == set()


@bounded
async def test_a_message_that_a_killed_receiver_may_have_taken_is_not_sent_to_the_next() -> None:
    async with contextlib.AsyncExitStack() as stack, ipc.Endpoint(ANYWHERE) as sender:
        first = await stack.enter_async_context(Listener())
        await sender.send(first.address, b"before")
        first.signal(signal.SIGSTOP)  # packets now stay in its socket
        sending = asyncio.create_task(sender.send(first.address, b"between"))
        await asyncio.sleep(0.02)
        await first.kill()
        second = await stack.enter_async_context(Listener(first.address))
        with pytest.raises(PeerRestarted, match="restarted") as raised:
            await sending
        assert raised.value.may_have_arrived
        await sender.send(second.address, b"after")
        await second.kill()
        assert (first.printed, second.printed) == ([b"before"], [b"after"])


@bounded
async def test_a_send_to_a_stopped_receiver_says_whether_it_may_have_arrived() -> None:
    async with Listener() as listener, ipc.Endpoint(ANYWHERE) as sender:
        await sender.send(listener.address, b"to one that is alive")
        listener.signal(signal.SIGSTOP)
        with pytest.raises(SendTimeout, match="it may have received the message") as raised:
            await sender.send(listener.address, b"to one that is stopped", timeout=0.5)
        assert raised.value.may_have_arrived
        await listener.kill()
        with pytest.raises(SendTimeout):  # the kernel reports that the port is closed
            await sender.send(listener.address, b"to one that is dead", timeout=0.5)
        with pytest.raises(SendTimeout, match="nothing answers there") as raised:
            await sender.send(listener.address, b"to one that is dead", timeout=0.5)
        assert not raised.value.may_have_arrived


@bounded
async def test_a_sender_may_start_before_the_receiver() -> None:
    address = free_address()
    async with ipc.Endpoint(ANYWHERE, config=LONG_TIMEOUTS) as sender:
        sends = [
            asyncio.create_task(sender.send(address, letter(number, size)))
            for number, size in enumerate((4, 1_000, 200_000))
        ]
        await asyncio.sleep(0.3)
        async with Listener(address) as listener:
            await asyncio.gather(*sends)
        assert sorted(listener.numbers) == [0, 1, 2]


@bounded
async def test_malformed_datagrams_are_ignored_and_counted() -> None:
    numbers: list[int] = []

    def take(message: ipc.ReceivedMessage[bytes]) -> None:
        numbers.append(number_of(message.payload))

    async with (
        ipc.Endpoint(ANYWHERE, on_message=take) as receiver,
        courier(receiver.address, garbage=4),
        courier(receiver.address, garbage=5),
    ):
        await eventually(lambda: receiver.statistics().malformed > 1_000, "garbage")
        before = receiver.statistics().malformed
        async with courier(receiver.address, count=300, size=70_000) as sender:
            assert (await sender.wait_for("done"))["failed"] == 0
        assert receiver.statistics().malformed > before
        assert receiver.statistics().misdirected > 0
    assert sorted(numbers) == list(range(300))
