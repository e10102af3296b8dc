"""pyzmq with asyncio and CURVE: PUSH to PULL for streams, DEALER to ROUTER for round trips.

The client verifies the server's key; the server accepts any client.
"""

import asyncio
import time
from typing import Any

import zmq
import zmq.asyncio

from bench.network import peer
from bench.network.measures import Manner
from bench.network.peer import Closing, Counted, Json


def make_socket(context: Any, kind: int) -> Any:
    made = context.socket(kind)
    made.linger = 0
    return made


class Server(peer.Server):
    async def start(self) -> Json:
        context = zmq.asyncio.Context()
        self._public, self._secret = zmq.curve_keypair()
        self._pull, pull_port = self._bind(context, zmq.PULL)
        self._router, router_port = self._bind(context, zmq.ROUTER)
        self._answering = asyncio.create_task(self._answer())
        return {"push": pull_port, "ask": router_port, "key": self._public.decode()}

    async def receive(self, manner: Manner, size: int, count: int) -> Counted:
        total = 0
        receive = self._pull.recv
        for _ in range(count):
            total += len(await receive())
        return Counted(count, total, time.monotonic_ns())

    async def stop(self) -> None:
        self._answering.cancel()

    async def _answer(self) -> None:
        while True:
            await self._router.send_multipart(await self._router.recv_multipart())

    def _bind(self, context: Any, kind: int) -> tuple[Any, int]:
        made = make_socket(context, kind)
        made.curve_server = True
        made.curve_secretkey, made.curve_publickey = self._secret, self._public
        return made, made.bind_to_random_port(f"tcp://{peer.HOST}")


class Client(peer.Client):
    async def open(self, info: Json) -> None:
        self._info = info
        self._context = zmq.asyncio.Context()
        self._public, self._secret = zmq.curve_keypair()
        self._push = self._dial(zmq.PUSH, info["push"])
        self._dealer = self._dial(zmq.DEALER, info["ask"])

    async def send(self, manner: Manner, payload: bytes, count: int) -> None:
        send = self._push.send
        for _ in range(count):
            await send(payload)

    async def trip(self, payload: bytes) -> bytes:
        return await ask(self._dealer, payload)

    async def fresh(self, payload: bytes) -> tuple[bytes, Closing]:
        dealer = self._dial(zmq.DEALER, self._info["ask"])

        async def close() -> None:
            dealer.close()

        return await ask(dealer, payload), close

    def _dial(self, kind: int, port: int) -> Any:
        made = make_socket(self._context, kind)
        made.curve_serverkey = self._info["key"].encode()
        made.curve_secretkey, made.curve_publickey = self._secret, self._public
        made.connect(f"tcp://{peer.HOST}:{port}")
        return made


async def ask(dealer: Any, payload: bytes) -> bytes:
    await dealer.send(payload)
    answer: bytes = await dealer.recv()
    return answer
