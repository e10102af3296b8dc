"""``aqueduct echo``: a diagnostic server that answers every message.

The server answers each message on every sender attached to it, with the same payload and headers,
and reads every attached receiver in the same way.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from aqueduct.api.connection import Connection
from aqueduct.api.handles import Receiver, Sender
from aqueduct.api.server import serve
from aqueduct.cli import options, running
from aqueduct.errors import AqueductError, EndOfChannel, MessageError
from aqueduct.runtime.ports import Message
from aqueduct.security import ServerTLS, Trust


def echo(
    listen: options.Listen = "127.0.0.1:4433",
    cert: options.Certificate = None,
    key: options.Key = None,
    client_ca: options.ClientAuthority = None,
    grace: options.Grace = 2.0,
    trace: options.TraceDirectory = None,
) -> None:
    """Answer every message on the senders attached to it.

    Prints its address when it is ready, and serves until Ctrl-C.

    Example: aqueduct echo --listen 127.0.0.1:4433
    """
    tls, clients = options.server_tls(cert, key), options.trust_in_clients(client_ca)
    running.run(_serve(listen, tls, clients, grace, options.trace_directory(trace)))


async def _serve(
    address: str, tls: ServerTLS, clients: Trust | None, grace: float, trace: Path | None
) -> None:
    serving = serve(address, bytes, tls=tls, client_trust=clients, trace=trace)
    async with running.interrupts() as stop, serving as server:
        print(server.address, flush=True)
        await running.serve_until_interrupted(server, handle, stop, grace)


async def handle(connection: Connection[bytes]) -> None:
    """Echo on all channels of a connection, until its client closes it."""
    async with asyncio.TaskGroup() as group:
        await read(connection.entrypoint, group)
    await connection.wait_closed()


async def read(receiver: Receiver[bytes], group: asyncio.TaskGroup) -> None:
    """Echo the messages of one channel; read attached channels in tasks of their own."""
    async with receiver:
        while True:
            try:
                message = await receiver.receive_message()
            except MessageError:
                continue
            except (EndOfChannel, AqueductError):
                return
            for half in message.attachments:
                if isinstance(half, Sender):
                    await answer(half, message)
                else:
                    group.create_task(read(half, group))


async def answer(sender: Sender[Any], message: Message[bytes]) -> None:
    """Send a message back, and finish the channel."""
    try:
        async with sender:
            await sender.send(message.payload, headers=message.headers)
    except AqueductError:
        pass  # the client closed the channel, or its limits are lower
