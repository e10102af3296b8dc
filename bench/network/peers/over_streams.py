"""asyncio streams over TLS with length-prefixed messages: an optimized implementation by hand.

Small frames are joined to 64 KiB for each ``write``, and read 256 KiB at a time and split; large
ones are written and read one by one, which is faster for them.
"""

import asyncio
import contextlib
import ssl
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator

from bench.network import peer
from bench.network.measures import Manner
from bench.network.peer import Closing, Counted, Json

READ_SIZE = 256 * 1024
JOIN_SIZE = 64 * 1024
SMALL = 4096
LENGTH = 4
CALLS, STREAM = b"C", b"S"


def frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(LENGTH, "big") + payload


async def read_frame(reader: StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(LENGTH), "big")
    return await reader.readexactly(size)


class Splitter:
    """Splits the chunks of a stream into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def split(self, chunk: bytes) -> Iterator[bytes]:
        data = self._rest + chunk if self._rest else chunk
        position, end = 0, len(data)
        while end - position >= LENGTH:
            start = position + LENGTH
            stop = start + int.from_bytes(data[position:start], "big")
            if stop > end:
                break
            yield data[start:stop]
            position = stop
        self._rest = data[position:]


class Server(peer.Server):
    async def start(self) -> Json:
        self._wanted: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
        self._counted: asyncio.Queue[Counted] = asyncio.Queue()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.setting.certificate, self.setting.key)
        self._server = await asyncio.start_server(
            self._handle, peer.HOST, 0, ssl=context, limit=2 * READ_SIZE
        )
        return {"port": self._server.sockets[0].getsockname()[1]}

    async def receive(self, manner: Manner, size: int, count: int) -> Counted:
        self._wanted.put_nowait((size, count))
        return await self._counted.get()

    async def stop(self) -> None:
        self._server.close()

    async def _handle(self, reader: StreamReader, writer: StreamWriter) -> None:
        # asyncio prints a traceback for a handler that is cancelled when the program ends.
        ends = (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError)
        with contextlib.suppress(*ends):
            if await reader.readexactly(1) == CALLS:
                while True:
                    writer.write(frame(await read_frame(reader)))
                    await writer.drain()
            while True:
                size, count = await self._wanted.get()
                total = await (one_by_one if size > SMALL else split)(reader, count)
                self._counted.put_nowait(Counted(count, total, time.monotonic_ns()))
        writer.close()


async def one_by_one(reader: StreamReader, count: int) -> int:
    total = 0
    for _ in range(count):
        total += len(await read_frame(reader))
    return total


async def split(reader: StreamReader, count: int) -> int:
    splitter = Splitter()
    received = total = 0
    while received < count:
        chunk = await reader.read(READ_SIZE)
        if not chunk:
            raise asyncio.IncompleteReadError(b"", None)
        for message in splitter.split(chunk):
            received += 1
            total += len(message)
    return total


class Client(peer.Client):
    async def open(self, info: Json) -> None:
        self._port = info["port"]
        self._trust = ssl.create_default_context(cafile=self.setting.authority)
        _, self._stream = await self._connect()
        self._stream.write(STREAM)
        self._reader, self._writer = await self._connect()
        self._writer.write(CALLS)

    async def send(self, manner: Manner, payload: bytes, count: int) -> None:
        writer = self._stream
        frames: list[bytes] = []
        size = 0
        for _ in range(count):
            message = frame(payload)
            frames.append(message)
            size += len(message)
            if size >= JOIN_SIZE:
                writer.write(b"".join(frames))
                frames.clear()
                size = 0
                await writer.drain()
        writer.write(b"".join(frames))
        await writer.drain()

    async def trip(self, payload: bytes) -> bytes:
        self._writer.write(frame(payload))
        return await read_frame(self._reader)

    async def fresh(self, payload: bytes) -> tuple[bytes, Closing]:
        reader, writer = await self._connect()
        writer.write(CALLS + frame(payload))

        async def close() -> None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

        return await read_frame(reader), close

    async def close(self) -> None:
        for writer in (self._stream, self._writer):
            writer.close()

    async def _connect(self) -> tuple[StreamReader, StreamWriter]:
        return await asyncio.open_connection(peer.HOST, self._port, ssl=self._trust)
