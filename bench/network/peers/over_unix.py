"""A UNIX socket by hand: length-prefixed messages, and an ack of one byte for each, in order.

An optimized minimal implementation: protocols instead of streams, because the event loop
calls them directly, without a task. Acks of one chunk are sent together.
"""

import asyncio
from collections import deque
from pathlib import Path
from typing import cast

from bench.network import peer
from bench.network.peer import Json
from bench.network.peers.over_streams import LENGTH, Splitter

ANSWER = b"\x01"


class Answering(asyncio.Protocol):
    """The server's end."""

    _transport: asyncio.Transport

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._splitter = Splitter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class is not a subclass

    def data_received(self, data: bytes) -> None:
        count = total = 0
        for message in self._splitter.split(data):
            count += 1
            total += len(message)
        self._server.count += count
        self._server.total += total
        if count:
            self._transport.write(ANSWER * count)


class Asking(asyncio.Protocol):
    """The client's end."""

    def __init__(self) -> None:
        self.waiting: deque[asyncio.Future[None]] = deque()

    def data_received(self, data: bytes) -> None:
        for _ in data:
            self.waiting.popleft().set_result(None)


class Server(peer.Server):
    count = 0
    total = 0

    async def start(self) -> Json:
        path = str(Path(self.setting.certificate).with_name("socket"))
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: Answering(self), path)
        return {"path": path}

    @property
    def taken(self) -> tuple[int, int]:
        return self.count, self.total

    async def stop(self) -> None:
        self._server.close()


class Client(peer.Client):
    async def open(self, info: Json) -> None:
        self._loop = asyncio.get_running_loop()
        made = await self._loop.create_unix_connection(Asking, info["path"])
        self._transport, self._asking = made

    async def deliver(self, payload: bytes) -> None:
        answered = self._loop.create_future()
        self._asking.waiting.append(answered)
        self._transport.writelines((len(payload).to_bytes(LENGTH, "big"), payload))
        await answered

    async def close(self) -> None:
        self._transport.close()
