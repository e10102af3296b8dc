"""One end of a path: reads commands as lines of JSON, and answers in the same form.

The client sends messages of a channel as fast as the path takes them, and small messages beside
it, each with the time at which it was sent. All processes share a clock.

python -m bench.paths.worker server|client TRANSPORT '{"authority": ..., ...}'
"""

import asyncio
import contextlib
import json
import socket
import ssl
import sys
import time
from asyncio import StreamReader, StreamWriter
from collections import Counter
from typing import Any

import msgspec

import aqueduct
from aqueduct import Mode, QuicSettings
from bench.network.peer import HOST, Json, Setting, probe, sent_at
from bench.network.worker import Control, loop_factory
from bench.paths import link

PIECE = 16 * 1024
"""Bytes of a message in bulk."""
BIN = 100_000_000
"""Nanoseconds over which bytes that arrive are added up."""
PAUSE = 0.02
"""Seconds between two small messages of a mode."""
SMALL = 100
MODES = {mode.value: mode for mode in Mode}
PACKET = 1_452
"""Bytes of a UDP payload through a relay: as on a real path, and not as on loopback."""
LONGEST_END = 30.0
"""Seconds in which small messages that were sent have to arrive."""


class Bulk(msgspec.Struct, tag=True):
    """Requests that bytes are counted."""

    data: aqueduct.Receiver[bytes]


class Probes(msgspec.Struct, tag=True):
    """Requests that the delays of messages are noted."""

    mode: str
    data: aqueduct.Receiver[bytes]
    done: aqueduct.Sender[int]


Request = Bulk | Probes


class Found:
    """What a server has received since the last report."""

    def __init__(self) -> None:
        self.bins: Counter[int] = Counter()
        self.delays: dict[str, list[int]] = {}

    def add_bulk(self, size: int) -> None:
        self.bins[time.monotonic_ns() // BIN] += size

    def add_probe(self, mode: str, payload: bytes) -> None:
        self.delays.setdefault(mode, []).append(time.monotonic_ns() - sent_at(payload))

    def report(self) -> Json:
        bins, delays = dict(self.bins), self.delays
        self.__init__()  # type: ignore[misc]
        return {"bins": [[at, size] for at, size in sorted(bins.items())], "delays": delays}


# Aqueduct


class OurServer:
    """Receives on channels, over QUIC or TCP."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.found = Found()
        self._stack = contextlib.AsyncExitStack()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        options = self.setting.options
        tls = aqueduct.tls(self.setting.certificate, self.setting.key)
        address = f"aqueduct+{options['transport']}://{options['host']}:0"
        server = await self._stack.enter_async_context(
            aqueduct.serve(address, Request, tls=tls, options=quic_settings(self.setting))
        )
        running = asyncio.create_task(server.run(self._handle))
        self._stack.callback(running.cancel)
        return server.address

    async def stop(self) -> None:
        await self._stack.aclose()

    async def _handle(self, connection: aqueduct.Connection[Any]) -> None:
        with contextlib.suppress(aqueduct.ChannelError):
            async for request in connection.entrypoint:
                work = self._count if isinstance(request, Bulk) else self._time
                task = asyncio.create_task(work(request))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _count(self, request: Bulk) -> None:
        with contextlib.suppress(aqueduct.ChannelError):
            async with request.data:
                async for payload in request.data:
                    self.found.add_bulk(len(payload))

    async def _time(self, request: Probes) -> None:
        with contextlib.suppress(aqueduct.ChannelError):
            async with request.data, request.done:
                async for payload in request.data:
                    self.found.add_probe(request.mode, payload)
                await request.done.send(0)


class OurClient:
    """Sends on channels of one connection."""

    modes = tuple(MODES)

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    async def open(self, address: str) -> None:
        self._connection = await aqueduct.connect(
            address,
            Request,
            trust=aqueduct.trust(self.setting.authority),
            options=quic_settings(self.setting),
            timeout=30,
        )

    async def send_bulk(self) -> None:
        """Send until this task is cancelled."""
        sender, data = aqueduct.channel(bytes)
        await self._connection.entrypoint.send(Bulk(data))
        payload = bytes(PIECE)
        try:
            while True:
                await sender.send(payload)
        finally:
            sender.cancel()

    async def send_probes(self, mode: str, seconds: float) -> int:
        """Send small messages for some seconds; return how many."""
        sender, data = aqueduct.channel(bytes, mode=MODES[mode])
        done, all_received = aqueduct.oneshot(int)
        await self._connection.entrypoint.send(Probes(mode, data, done))
        async with sender:
            count = await send_for(seconds, sender.send)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(all_received.receive(), LONGEST_END)
        return count

    def statistics(self) -> Json:
        return self._connection.statistics()

    async def close(self) -> None:
        await self._connection.close()


def quic_settings(setting: Setting) -> QuicSettings:
    """Return the defaults; through a relay, with packets as on a real path."""
    return QuicSettings(max_packet=None if setting.options["link"] else PACKET, idle_timeout=60.0)


# The kernel's TCP, with TLS by asyncio


class StreamsServer:
    """Receives on a TCP connection for bulk, and on another one for small messages."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.found = Found()

    async def start(self) -> str:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.setting.certificate, self.setting.key)
        host = self.setting.options["host"]
        self._server = await asyncio.start_server(self._handle, host, 0, ssl=context, limit=2**18)
        return f"{host}:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self._server.close()

    async def _handle(self, reader: StreamReader, writer: StreamWriter) -> None:
        ends = (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError)
        with contextlib.suppress(*ends):
            if await reader.readexactly(1) == b"B":
                while True:
                    self.found.add_bulk(len(await reader.readexactly(PIECE)))
            while True:
                payload = await reader.readexactly(SMALL)
                self.found.add_probe(Mode.ORDERED.value, payload)
                writer.write(b".")
        writer.close()


class StreamsClient:
    """Sends on these."""

    modes = (Mode.ORDERED.value,)

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    async def open(self, address: str) -> None:
        self._where = address.rsplit(":", 1)
        self._trust = ssl.create_default_context(cafile=self.setting.authority)
        self._reader, self._writer = await self._connect()
        self._writer.write(b"P")

    async def send_bulk(self) -> None:
        _, writer = await self._connect()
        writer.write(b"B")
        payload = bytes(PIECE)
        try:
            while True:
                writer.write(payload)
                await writer.drain()
        finally:
            writer.transport.abort()

    async def send_probes(self, mode: str, seconds: float) -> int:
        async def send(payload: bytes) -> None:
            self._writer.write(payload)

        count = await send_for(seconds, send)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._reader.readexactly(count), LONGEST_END)
        return count

    def statistics(self) -> Json:
        return {}

    async def close(self) -> None:
        self._writer.close()

    async def _connect(self) -> tuple[StreamReader, StreamWriter]:
        host, port = self._where
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        return await asyncio.open_connection(sock=sock, ssl=self._trust, server_hostname=host)


async def send_for(seconds: float, send: Any) -> int:
    """Send small messages at a fixed pace; return how many."""
    until = time.monotonic() + seconds
    count = 0
    while time.monotonic() < until:
        await send(probe())
        count += 1
        await asyncio.sleep(PAUSE)
    return count


# The processes


async def serve(control: Control, server: OurServer | StreamsServer) -> None:
    control.write(address=await server.start())
    while (await control.read())["order"] != "quit":
        control.write(**server.found.report())
    async with asyncio.timeout(5):
        await server.stop()


async def ask(control: Control, client: OurClient | StreamsClient) -> None:
    await client.open((await control.read())["address"])
    control.write(ready=True)
    while (order := await control.read())["order"] != "quit":
        bulk = asyncio.create_task(client.send_bulk()) if order["order"] == "bulk" else None
        begun = time.monotonic_ns()
        await asyncio.sleep(order["warm"])
        async with asyncio.TaskGroup() as group:
            tasks = {
                mode: group.create_task(client.send_probes(mode, order["seconds"]))
                for mode in client.modes
            }
            if bulk is not None:
                await asyncio.sleep(order["seconds"])
                ended = time.monotonic_ns()
                statistics = client.statistics()
                bulk.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await bulk
            else:
                ended, statistics = time.monotonic_ns(), {}
        sent = {mode: task.result() for mode, task in tasks.items()}
        control.write(begun=begun, ended=ended, sent=sent, statistics=statistics)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5):
            await client.close()


class ControlledSocket(socket.socket):
    """A socket whose TCP has the congestion control `control`; otherwise a setting of the host."""

    control = b""

    def __init__(self, family: int = -1, kind: int = -1, *rest: Any, **named: Any) -> None:
        super().__init__(family, kind, *rest, **named)
        if self.control and self.type == socket.SOCK_STREAM and self.family == socket.AF_INET:
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, self.control)


def main(role: str, setting: Setting) -> None:
    control = Control()
    options = setting.options
    where = link.SERVER if role == "server" else link.CLIENT
    if options["link"]:
        link.hand_over(link.enter(where), options["link"], where)
    ControlledSocket.control = options["control"].encode()
    socket.socket = ControlledSocket  # type: ignore[misc,assignment]
    options["host"] = link.SERVER if options["link"] else HOST
    ours = options["transport"] != "streams"
    with asyncio.Runner(loop_factory=loop_factory(True)) as runner:
        if role == "server":
            runner.run(serve(control, (OurServer if ours else StreamsServer)(setting)))
        else:
            runner.run(ask(control, (OurClient if ours else StreamsClient)(setting)))


if __name__ == "__main__":
    main(sys.argv[1], Setting(**json.loads(sys.argv[3])))
