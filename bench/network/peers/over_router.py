"""pyzmq with asyncio: a DEALER whose messages a ROUTER answers one by one, in order.

Over zmq's own ``ipc://``, its transport within one host.
"""

import asyncio
from collections import deque
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio

from bench.network import peer
from bench.network.peer import Json
from bench.network.peers.over_zmq import make_socket


class Server(peer.Server):
    async def start(self) -> Json:
        self._count = self._total = 0
        address = f"ipc://{Path(self.setting.certificate).with_name('router')}"
        self._router = make_socket(zmq.asyncio.Context(), zmq.ROUTER)
        self._router.bind(address)
        self._answering = asyncio.create_task(self._answer())
        return {"address": address}

    @property
    def taken(self) -> tuple[int, int]:
        return self._count, self._total

    async def stop(self) -> None:
        self._answering.cancel()

    async def _answer(self) -> None:
        receive, send = self._router.recv_multipart, self._router.send_multipart
        while True:
            sender, payload = await receive()
            self._count += 1
            self._total += len(payload)
            await send((sender, b""))


class Client(peer.Client):
    async def open(self, info: Json) -> None:
        context = zmq.asyncio.Context()
        self._alone, self._dealer = (self._dial(context, info["address"]) for _ in range(2))
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._receiving = asyncio.create_task(self._receive())

    async def deliver(self, payload: bytes) -> None:
        acknowledged = asyncio.get_running_loop().create_future()
        self._waiting.append(acknowledged)
        await self._dealer.send(payload)
        await acknowledged

    async def deliver_alone(self, payload: bytes) -> None:
        await self._alone.send(payload)
        await self._alone.recv()

    async def close(self) -> None:
        self._receiving.cancel()

    async def _receive(self) -> None:
        while True:
            await self._dealer.recv()
            self._waiting.popleft().set_result(None)

    def _dial(self, context: Any, address: str) -> Any:
        made = make_socket(context, zmq.DEALER)
        made.connect(address)
        return made
