"""grpc.aio over TLS with plain bytes: no serializers, no protobuf.

Streams are client-streaming calls with ``write``, round trips use one open
bidirectional call, and a new connection makes a unary call: each the fastest of its kind.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from bench.network import peer
from bench.network.measures import Manner
from bench.network.peer import Closing, Counted, Json

OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # so that a new channel is a new connection
]


def read(path: str) -> bytes:
    return Path(path).read_bytes()


class Server(peer.Server):
    async def start(self) -> Json:
        self._wanted: asyncio.Queue[int] = asyncio.Queue()
        self._counted: asyncio.Queue[Counted] = asyncio.Queue()
        self._server = grpc.aio.server(options=OPTIONS)
        handlers = {
            "Push": grpc.stream_unary_rpc_method_handler(self._push),
            "Echo": grpc.unary_unary_rpc_method_handler(self._echo),
            "Pong": grpc.stream_stream_rpc_method_handler(self._pong),
        }
        generic = grpc.method_handlers_generic_handler("bench.Peer", handlers)
        self._server.add_generic_rpc_handlers((generic,))
        shown = (read(self.setting.key), read(self.setting.certificate))
        credentials = grpc.ssl_server_credentials([shown])
        port = self._server.add_secure_port(f"{peer.HOST}:0", credentials)
        await self._server.start()
        return {"port": port}

    async def receive(self, manner: Manner, size: int, count: int) -> Counted:
        self._wanted.put_nowait(count)
        return await self._counted.get()

    async def stop(self) -> None:
        await self._server.stop(0.2)

    async def _push(self, messages: AsyncIterator[bytes], context: Any) -> bytes:
        wanted = await self._wanted.get()
        count = total = 0
        async for message in messages:
            count += 1
            total += len(message)
            if count == wanted:
                self._counted.put_nowait(Counted(count, total, time.monotonic_ns()))
        return b""

    async def _echo(self, request: bytes, context: Any) -> bytes:
        return request

    async def _pong(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for message in messages:
            yield message


class Client(peer.Client):
    async def open(self, info: Json) -> None:
        self._target = f"{peer.HOST}:{info['port']}"
        self._credentials = grpc.ssl_channel_credentials(read(self.setting.authority))
        self._channel = self._connect()
        await self._channel.channel_ready()
        self._push = self._channel.stream_unary("/bench.Peer/Push")
        self._ping = self._channel.stream_stream("/bench.Peer/Pong")()

    async def send(self, manner: Manner, payload: bytes, count: int) -> None:
        call = self._push()
        write = call.write
        for _ in range(count):
            await write(payload)
        await call.done_writing()
        await call

    async def trip(self, payload: bytes) -> bytes:
        await self._ping.write(payload)
        answer: bytes = await self._ping.read()
        return answer

    async def fresh(self, payload: bytes) -> tuple[bytes, Closing]:
        channel = self._connect()
        return await channel.unary_unary("/bench.Peer/Echo")(payload), channel.close

    async def close(self) -> None:
        self._ping.cancel()
        await self._channel.close()

    def _connect(self) -> Any:
        return grpc.aio.secure_channel(self._target, self._credentials, options=OPTIONS)
