"""A conversation that shows every fate, recorded at both ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

import aqueduct
from aqueduct import Mode, Receiver, Sender
from aqueduct.observe import ObserverFactory
from aqueduct.observe.trace import Trace


class Errand(msgspec.Struct):
    what: str
    numbers: Receiver[bytes] | None = None
    answers: Sender[bytes] | None = None
    carriers: Receiver[Errand] | None = None


class Conversation:
    """One client and one server; `play` returns when both are closed."""

    def __init__(
        self,
        client: Path | Trace | None,
        server: Path | Trace | None,
        address: str = "127.0.0.1:0",
        observers: Sequence[ObserverFactory] = (),
    ) -> None:
        self.traces = client, server
        self.address = address
        self.observers = observers
        self.taken: list[bytes] = []
        self.may_close = asyncio.Event()
        self.closed = asyncio.Event()
        self.heard_cancel = asyncio.Event()
        self._left_open: list[Receiver[bytes]] = []

    async def play(self) -> None:
        async with (
            asyncio.timeout(120),
            aqueduct.serve(
                self.address,
                Errand,
                tls=aqueduct.dev_tls(),
                trace=self.traces[1],
                observers=self.observers,
            ) as server,
        ):
            serving = asyncio.create_task(server.run(self.handle))
            async with aqueduct.connect(
                server.address,
                Errand,
                trust=aqueduct.dev_trust(),
                headers={"token": "hush-header"},
                trace=self.traces[0],
                observers=self.observers,
            ) as connection:
                await self.talk(connection)
            serving.cancel()

    async def handle(self, connection: aqueduct.Connection[Errand]) -> None:
        async for errand in connection.entrypoint:
            if errand.what == "take":
                async for one in errand.numbers or nothing():
                    self.taken.append(one)
                if errand.answers is not None:
                    await errand.answers.send(b"done", headers={"secret": "hush-header"})
            elif errand.what == "close":
                if errand.numbers is not None:
                    await self.may_close.wait()
                    errand.numbers.close()
                elif errand.carriers is not None:
                    errand.carriers.close()
                self.closed.set()
            elif errand.what == "cancelled":
                with contextlib.suppress(aqueduct.ChannelCancelled):
                    async for one in errand.numbers or nothing():
                        self.taken.append(one)
                self.heard_cancel.set()
            elif errand.numbers is not None:
                self._left_open.append(errand.numbers)

    async def talk(self, connection: aqueduct.Connection[Errand]) -> None:
        for mode in Mode:
            await self.stream(connection, mode)
        await self.be_closed_on(connection)
        await self.lose_a_channel(connection)
        await self.cancel(connection)
        tx, rx = aqueduct.channel(bytes)
        await connection.entrypoint.send(Errand("left open", numbers=rx))
        await connection.entrypoint.flush()
        await tx.send(b"hush-payload")
        await connection.close()
        tx.cancel()

    async def stream(self, connection: aqueduct.Connection[Errand], mode: Mode) -> None:
        tx, rx = aqueduct.channel(bytes, mode=mode)
        reply, answer = aqueduct.oneshot(bytes)
        await connection.entrypoint.send(Errand("take", numbers=rx, answers=reply))
        for number in range(300):
            await tx.send(b"hush-payload" + bytes(number))
        if mode is Mode.UNRELIABLE:
            await tx.send(bytes(5_000))  # does not fit a datagram
        tx.finish()
        async with answer:
            assert await answer.receive() == b"done"

    async def be_closed_on(self, connection: aqueduct.Connection[Errand]) -> None:
        tx, rx = aqueduct.channel(bytes)
        await connection.entrypoint.send(Errand("close", numbers=rx))
        for _ in range(5):
            await tx.send(b"acked, and never read")
        await tx.flush()
        self.may_close.set()
        await self.closed.wait()
        with contextlib.suppress(aqueduct.ChannelError):
            await tx.send(b"nacked")
            await tx.flush()
        tx.cancel()

    async def lose_a_channel(self, connection: aqueduct.Connection[Errand]) -> None:
        """Send a carrier to a receiver that has just closed, so that its channel is lost."""
        carriers, received = aqueduct.channel(Errand)
        self.closed.clear()
        await connection.entrypoint.send(Errand("close", carriers=received))
        await self.closed.wait()
        # CLOSE_RECEIVER is in flight: this side does not know of the close yet.
        tx, rx = aqueduct.channel(bytes)
        await carriers.send(Errand("lost", numbers=rx))
        await tx.send(b"lost with its channel")
        with contextlib.suppress(aqueduct.ChannelError):
            await tx.flush()
        tx.cancel()
        carriers.cancel()

    async def cancel(self, connection: aqueduct.Connection[Errand]) -> None:
        tx, rx = aqueduct.channel(bytes)
        await connection.entrypoint.send(Errand("cancelled", numbers=rx))
        await tx.send(b"one")
        await tx.flush()
        await tx.send(b"never leaves")
        tx.cancel()
        await self.heard_cancel.wait()


async def nothing() -> AsyncIterator[bytes]:
    """Yield no messages."""
    for one in list[bytes]():
        yield one


def record(client: Path | Trace, server: Path | Trace) -> Conversation:
    """Run the conversation; the traces are complete afterwards."""
    conversation = Conversation(client, server)
    asyncio.run(conversation.play())
    return conversation
