"""The servers that a campaign attacks.

``python -m tests.hostile.target channels|tcp|ingest|ipc`` starts the servers of one or more areas,
and prints one line of JSON with their addresses. It exits when its standard input is closed, so
that it does not outlive the campaign.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

import aqueduct
from aqueduct import Mode, QuicSettings, Receiver, Sender, ipc
from aqueduct.ipc.transports import tcp
from tests.processes import lab

HONEST_TOKEN = "honest-token-0123456789"
HOSTILE_TOKEN = "hostile-token-0123456789"
TOPIC = "shared"
PUBLIC = "public"
PRODUCER = "honest-producer"
MAX_CONNECTIONS = 1_500
MAX_TCP_CONNECTIONS = 256
"""Less than the defaults, so that an attack of a few seconds reaches them."""


class Poured(msgspec.Struct):
    """The answer to `Pour`: a channel that the server created."""

    content: Receiver[bytes]


class Pour(msgspec.Struct, tag=True):
    """Send `count` messages on an unordered channel, as fast as flow control allows."""

    count: int
    size: int
    reply: Sender[Poured]


Request = lab.Request | Pour


class Target(lab.Lab):
    """The server of the process tests, without its output."""

    async def handle(self, connection: aqueduct.Connection[Any]) -> None:
        """Serve each request in a task."""
        with contextlib.suppress(aqueduct.AqueductError):
            while True:
                try:
                    message = await connection.entrypoint.receive_message()
                except aqueduct.DecodeError:
                    continue
                self.start(connection, message)

    async def serve(
        self, connection: aqueduct.Connection[Any], message: aqueduct.Message[Any]
    ) -> None:
        """Handle one request; errors of its client are ignored."""
        name = f"do_{type(message.payload).__name__.lower()}"
        with contextlib.suppress(aqueduct.AqueductError):
            await getattr(self, name)(connection, message, message.payload)

    async def do_pour(self, _: Any, __: Any, request: Pour) -> None:
        sender, receiver = aqueduct.channel(mode=Mode.UNORDERED)
        async with sender, request.reply as reply:
            await reply.send(Poured(receiver))
            for number in range(request.count):
                await sender.send(lab.numbered(number, request.size))


async def serve_channels(stack: contextlib.AsyncExitStack) -> dict[str, str]:
    target = Target()
    server = await stack.enter_async_context(
        aqueduct.serve(
            "127.0.0.1:0",
            Request,
            tls=aqueduct.dev_tls(),
            options=QuicSettings(max_connections=MAX_CONNECTIONS),
        )
    )
    target.server = server
    running = asyncio.ensure_future(server.run(target.handle))
    stack.callback(running.cancel)
    return {"channels": server.address}


async def serve_tcp(stack: contextlib.AsyncExitStack) -> dict[str, str]:
    """Serve channels over TCP and QUIC; the attacks are on TCP."""
    return {"tcp": (await serve_channels(stack))["channels"]}


async def serve_ingest(stack: contextlib.AsyncExitStack) -> dict[str, str]:
    from aqueduct.ingest import Grant, IngestServer, IngestSettings, Permissions
    from aqueduct.ingest.server.metrics_http import Exposition

    directory = stack.enter_context(tempfile.TemporaryDirectory())
    everything = Grant([TOPIC, PUBLIC], [TOPIC, PUBLIC])
    server = await stack.enter_async_context(
        IngestServer(
            "127.0.0.1:0",
            Path(directory) / "data",
            tls=aqueduct.dev_tls(),
            limits=IngestSettings(low_water=0),
            permissions=Permissions({HONEST_TOKEN: everything, HOSTILE_TOKEN: everything}),
        )
    )
    page = await stack.enter_async_context(Exposition("127.0.0.1:0", server.metrics_text))
    return {"ingest": server.address, "metrics": page.address}


async def serve_ipc(stack: contextlib.AsyncExitStack) -> dict[str, str]:
    limits = functools.partial(tcp.TcpLimits, max_connections=MAX_TCP_CONNECTIONS)
    tcp.TcpLimits = limits  # type: ignore[misc, assignment]
    udp = ipc.Endpoint("udp://127.0.0.1:0", on_message=lambda _: None)
    tls = ipc.Endpoint("tls://127.0.0.1:0", on_message=lambda _: None, tls=aqueduct.dev_tls())
    for endpoint in (udp, tls):
        await stack.enter_async_context(endpoint)
    return {"ipc_udp": udp.address, "ipc_tls": tls.address}


AREAS = {"channels": serve_channels, "tcp": serve_tcp, "ingest": serve_ingest, "ipc": serve_ipc}


async def main(areas: list[str]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    async with contextlib.AsyncExitStack() as stack:
        addresses: dict[str, str] = {}
        for area in areas:
            addresses |= await AREAS[area](stack)
        print(json.dumps(addresses), flush=True)
        await stop.wait()


if __name__ == "__main__":
    from tests.hostile import target

    asyncio.run(target.main(sys.argv[1:]))
