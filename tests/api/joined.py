"""Two ends of a connection in one process, and channels between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

import aqueduct
from aqueduct import ClientConnection, Limits, Receiver, Sender, ServerConnection

SECONDS = 60
"""Timeout in seconds, enough for a busy machine."""

T = TypeVar("T")


class GiveReceiver(msgspec.Struct, Generic[T]):
    half: Receiver[T]


class GiveSender(msgspec.Struct, Generic[T]):
    half: Sender[T]


give_receiver: Any = GiveReceiver
give_sender: Any = GiveSender
"""The same classes, subscriptable at run time."""


class Ends(NamedTuple):
    """Both connections: what the client sends on its entrypoint, the server receives."""

    client: ClientConnection[Any]
    server: ServerConnection[Any]


@asynccontextmanager
async def joined(
    kind: Any = bytes,
    server_kind: Any = None,
    *,
    limits: Limits | None = None,
    delivery: aqueduct.Delivery | None = None,
    address: str = "127.0.0.1:0",
    **options: Any,
) -> AsyncIterator[Ends]:
    """Connect a client and a server; the server may have other types, limits and delays."""
    async with (
        asyncio.timeout(SECONDS),
        aqueduct.serve(
            address,
            server_kind or kind,
            tls=aqueduct.dev_tls(),
            limits=limits,
            delivery=delivery,
        ) as server,
        aqueduct.connect(
            server.address, kind, trust=aqueduct.dev_trust(), timeout=SECONDS, **options
        ) as client,
    ):
        accepted = await server.accept()
        assert accepted is not None
        yield Ends(client, accepted)


@asynccontextmanager
async def sending(
    kind: Any = bytes, their_kind: Any = None, *, limits: Limits | None = None, **options: Any
) -> AsyncIterator[tuple[Sender[Any], Receiver[Any]]]:
    """Yield a sender at the client and its receiver at the server."""
    async with joined(give_receiver[kind], give_receiver[their_kind or kind], limits=limits) as (
        client,
        server,
    ):
        sender, receiver = aqueduct.channel(kind, **options)
        await client.entrypoint.send(GiveReceiver(receiver))
        theirs = (await server.entrypoint.receive()).half
        async with theirs:
            yield sender, theirs
        sender.cancel()


@asynccontextmanager
async def receiving(
    kind: Any = bytes, their_kind: Any = None
) -> AsyncIterator[tuple[Sender[Any], Receiver[Any]]]:
    """Yield a sender at the server and its receiver at the client."""
    async with joined(give_sender[kind], give_sender[their_kind or kind]) as (client, server):
        sender, receiver = aqueduct.channel(kind)
        await client.entrypoint.send(GiveSender(sender))
        theirs = (await server.entrypoint.receive()).half
        async with receiver:
            yield theirs, receiver
        theirs.cancel()
