"""grpc.aio over TLS with plain bytes: no serializers, no protobuf.

Streams are client-streaming calls with ``write``, round trips use one open
bidirectional call, and a new connection makes a unary call: each the fastest of its kind.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from bench.network import peer
from bench.network.measures import BULK_SIZE, Manner
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
        self._cancelled: list[int] = []
        self._server = grpc.aio.server(options=OPTIONS)
        handlers = {
            "Push": grpc.stream_unary_rpc_method_handler(self._push),
            "Echo": grpc.unary_unary_rpc_method_handler(self._echo),
            "Pong": grpc.stream_stream_rpc_method_handler(self._pong),
            "Bulk": grpc.stream_unary_rpc_method_handler(self._drain),
            "Probe": grpc.stream_unary_rpc_method_handler(self._probe),
            "Doom": grpc.stream_stream_rpc_method_handler(self._doom),
            "Times": grpc.unary_unary_rpc_method_handler(self._tell_times),
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

    async def _drain(self, messages: AsyncIterator[bytes], context: Any) -> bytes:
        async for _ in messages:
            pass
        return b""

    async def _probe(self, messages: AsyncIterator[bytes], context: Any) -> bytes:
        clock = time.monotonic_ns
        return json.dumps([clock() - peer.sent_at(one) async for one in messages]).encode()

    async def _doom(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Wait until the call is cancelled, and note when."""
        try:
            async for message in messages:
                yield message
        finally:
            self._cancelled.append(time.monotonic_ns())

    async def _tell_times(self, request: bytes, context: Any) -> bytes:
        times, self._cancelled = self._cancelled, []
        return json.dumps(times).encode()

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

    probes = ("message", "cancel")

    async def probe(self, kind: str, count: int) -> list[int]:
        if kind == "cancel":
            return await self._probe_cancels(count)
        call = self._channel.stream_unary("/bench.Peer/Probe")()
        for _ in range(count):
            await asyncio.sleep(peer.PROBE_PAUSE)
            await call.write(peer.probe())
        await call.done_writing()
        times: list[int] = json.loads(await call)
        return times

    async def _probe_cancels(self, count: int) -> list[int]:
        started = []
        times: list[int] = []
        ask = self._channel.unary_unary("/bench.Peer/Times")
        for _ in range(count):
            call = self._channel.stream_stream("/bench.Peer/Doom")()
            await call.write(b"first")
            await call.read()
            await asyncio.sleep(peer.PROBE_PAUSE)
            started.append(time.monotonic_ns())
            call.cancel()
        while len(times) < count:
            await asyncio.sleep(0.02)
            times += json.loads(await ask(b""))
        return [end - start for start, end in zip(started, times, strict=True)]

    async def start_bulk(self, channels: int) -> None:
        self._is_sending = True
        self._bulk = [asyncio.create_task(self._send_bulk()) for _ in range(channels)]

    async def _send_bulk(self) -> int:
        call = self._channel.stream_unary("/bench.Peer/Bulk")()
        sent = 0
        payload = bytes(BULK_SIZE)
        while self._is_sending:
            await call.write(payload)
            sent += BULK_SIZE
        await call.done_writing()
        await call
        return sent

    async def stop_bulk(self) -> int:
        self._is_sending = False
        return sum(await asyncio.gather(*self._bulk))

    async def fresh(self, payload: bytes) -> tuple[bytes, Closing]:
        channel = self._connect()
        return await channel.unary_unary("/bench.Peer/Echo")(payload), channel.close

    async def close(self) -> None:
        self._ping.cancel()
        await self._channel.close()

    def _connect(self) -> Any:
        return grpc.aio.secure_channel(self._target, self._credentials, options=OPTIONS)
