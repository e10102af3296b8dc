"""The API as a type checker sees it: `mypy --strict` checks this file, and it is never run.

Code that must be an error has an ignore comment; an unused ignore is an error as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_type

import msgspec

import aqueduct
from aqueduct import (
    Channel,
    Headers,
    Message,
    Mode,
    Outcome,
    Receipt,
    Receiver,
    Sender,
    blocking,
    ingest,
    ipc,
)


class Sum(msgspec.Struct):
    numbers: Receiver[int]
    reply: Sender[int]


class Ask(msgspec.Struct):
    text: str
    reply: Sender[str]


# Channels


async def channels() -> None:
    tx, rx = aqueduct.channel(int)
    assert_type(tx, Sender[int])
    assert_type(rx, Receiver[int])
    await tx.send(1)
    await tx.send("one")  # type: ignore[arg-type]
    tx.send_nowait(b"one")  # type: ignore[arg-type]
    assert_type(await rx.receive(), int)
    assert_type(rx.receive_nowait(), int)
    assert_type(await rx.receive_many(10), list[int])
    assert_type(await rx.receive_message(), Message[int])
    async for number in rx:
        assert_type(number, int)
    async with tx as same:
        assert_type(same, Sender[int])
    async with rx as other:
        assert_type(other, Receiver[int])

    assert_type(aqueduct.channel(), Channel[bytes])
    assert_type(aqueduct.channel(Sum, mode=Mode.UNORDERED, capacity=2), Channel[Sum])
    assert_type(aqueduct.oneshot(str).receiver, Receiver[str])
    assert_type(aqueduct.oneshot(), Channel[bytes])
    assert_type(aqueduct.oneshot(int, mode=Mode.UNRELIABLE), Channel[int])
    assert_type(tx.mode, Mode)
    assert_type(tx.is_closed, bool)
    await tx.wait_closed()
    tx.mode = Mode.UNORDERED
    tx.mode = "unordered"  # type: ignore[assignment]
    rx.mode = Mode.UNORDERED  # type: ignore[attr-defined]
    aqueduct.channel(int, mode="ordered")  # type: ignore[call-overload]
    aqueduct.oneshot(int, priority="high")  # type: ignore[call-overload]
    assert_type(aqueduct.channel(int, priority=0).sender.priority, int)
    assert_type(await aqueduct.channel(int).sender.send_many([1, 2]), int)
    assert_type(blocking.channel(int).sender.send_many([1, 2]), int)
    assert_type(blocking.channel(int, priority=0).sender.priority, int)
    tx.priority = "high"  # type: ignore[assignment]
    assert_type(aqueduct.channel(int, encode=True).receiver, aqueduct.Receiver[int])
    assert_type(blocking.oneshot(int, encode=True).receiver, blocking.Receiver[int])
    aqueduct.channel(int, headers={"name": "value"})
    aqueduct.channel(int, headers=[("name", b"value")])


async def attachments(tx: Sender[bytes], given: Receiver[int]) -> None:
    await tx.send(b"payload", attach=[given])
    tx.send_nowait(b"payload", attach=(given, tx))
    await tx.send(b"payload", attach=given)  # type: ignore[arg-type]


async def unions_and_lists() -> None:
    either = aqueduct.channel(Sum | Ask)
    assert_type(await either.receiver.receive(), Sum | Ask)
    await either.sender.send("text")  # type: ignore[arg-type]
    assert_type(aqueduct.oneshot(int | None).receiver, Receiver[int | None])
    assert_type(blocking.channel(Sum | Ask).sender, blocking.Sender[Sum | Ask])
    assert_type(await aqueduct.channel(list[int]).receiver.receive(), list[int])


async def receipts(tx: Sender[int]) -> None:
    receipt = await tx.send(1, headers={"a": "b"}, receipt=True)
    assert_type(receipt, Receipt | None)
    assert receipt is not None
    assert_type(await receipt, Outcome)
    assert (await receipt) in (aqueduct.DELIVERED, aqueduct.LOST)
    await tx.flush()
    tx.finish()
    tx.cancel()
    assert_type(tx.statistics(), dict[str, int])


async def messages(rx: Receiver[Sum]) -> None:
    message = await rx.receive_message()
    assert_type(message.payload, Sum)
    assert_type(message.headers, Headers)
    assert_type(message.number, int)
    assert_type(message.headers.text("name"), str | None)
    async for request in rx:
        assert_type(await request.numbers.receive(), int)
        await request.reply.send("no number")  # type: ignore[arg-type]


# Calls


class Add(aqueduct.Request[int]):
    a: int
    b: int = 2


class Join(aqueduct.Request[list[str]]):
    words: Receiver[str]


class Ping(aqueduct.Request[None]):
    pass


async def calls() -> None:
    trust = aqueduct.dev_trust()
    async with aqueduct.connect("localhost:4433", Add, trust=trust) as connection:
        assert_type(await connection.entrypoint.call(Add(a=1, b=2), timeout=2), int)
        assert_type(await connection.entrypoint.call(Add(1)), int)
        assert_type(await connection.entrypoint.call(Add, a=1), Any)
        print(await connection.entrypoint.call(Add(1)))  # also where any object is expected
        await connection.entrypoint.call(Add(a=1, bb=2))  # type: ignore[call-arg]
        await connection.entrypoint.call(Add(a="one"))  # type: ignore[arg-type]
        await connection.entrypoint.call(Add(b=2))  # type: ignore[call-arg]
        await connection.entrypoint.call(17)  # type: ignore[call-overload]
    async with aqueduct.connect("localhost:4433", Add | Join, trust=trust) as either:
        assert_type(await either.entrypoint.call(Add(1)), int)
        _, words = aqueduct.channel(str)
        assert_type(await either.entrypoint.call(Join(words=words)), list[str])
        assert_type(either.entrypoint, Sender[Add | Join])
        await either.entrypoint.send(Ping())  # type: ignore[arg-type]
    with blocking.connect("localhost:4433", Add | Ping, trust=trust) as thread:
        assert_type(thread.entrypoint.call(Add(a=1), timeout=2), int)
        assert_type(thread.entrypoint.call(Add, a=1), Any)
        thread.entrypoint.call(Ping())  # its reply is None
        assert_type(thread.entrypoint, blocking.Sender[Add | Ping])
    async with aqueduct.serve("localhost:4433", Add | Ping, tls=aqueduct.dev_tls()) as server:
        assert_type(server, aqueduct.Server[Add | Ping])
        await server.serve(reply_to_either)
        await server.serve(reply_to_add)  # type: ignore[arg-type]
    with blocking.serve("localhost:4433", Add | Ping, tls=aqueduct.dev_tls()) as threads:
        assert_type(threads, blocking.Server[Add | Ping])


async def reply_to_either(request: Add | Ping) -> int | None:
    return request.a if isinstance(request, Add) else None


async def answers(request: Add) -> None:
    assert_type(request.reply, Sender[int])
    await request.reply.send("text")  # type: ignore[arg-type]


# Connections


async def client() -> None:
    trust = aqueduct.dev_trust()
    async with aqueduct.connect("localhost:4433", Sum, trust=trust) as connection:
        assert_type(connection, aqueduct.ClientConnection[Sum])
        assert_type(connection.entrypoint, Sender[Sum])
        tx, rx = aqueduct.channel(int)
        reply, answer = aqueduct.oneshot(int)
        await connection.entrypoint.send(Sum(rx, reply))
        await connection.entrypoint.send(17)  # type: ignore[arg-type]
        assert_type(await answer.receive(), int)
        assert_type(connection.headers, Headers)
        assert_type(connection.peer, tuple[str, int])
        assert_type(connection.statistics(), dict[str, float])
        tx.finish()
        await connection.drain(1.0)
        await connection.close(aqueduct.CloseCode.GOING_AWAY, "done")
    assert_type(
        await aqueduct.connect("localhost:4433", trust=aqueduct.pin("ab" * 32)),
        aqueduct.ClientConnection[bytes],
    )
    async with aqueduct.connect("localhost:4433", Sum, trust=trust, early_data=True) as early:
        await early.wait_ready()
        assert_type((early.early_data, early.is_ready), tuple[bool, bool])
    await aqueduct.connect("localhost:4433")  # type: ignore[call-overload]


async def handle(connection: aqueduct.ServerConnection[Sum]) -> None:
    assert_type(connection.entrypoint, Receiver[Sum])
    async for request in connection.entrypoint:
        assert_type(request, Sum)


async def handle_sum(request: Sum) -> None:
    assert_type(request.numbers, Receiver[int])


async def reply_to_add(request: Add) -> int:
    return request.a + request.b


async def serve_requests(
    connection: aqueduct.ServerConnection[Add], mailbox: Receiver[Add], error: aqueduct.CallError
) -> None:
    await connection.serve(reply_to_add)
    await mailbox.serve(reply_to_add, concurrency=1)
    await mailbox.serve(handle_sum)  # type: ignore[arg-type]
    assert_type((error.code, error.text, error.by_peer), tuple[str, str, bool])


async def handle_any(connection: aqueduct.Connection[Any]) -> None:
    """A handler can accept connections of either side."""
    await connection.wait_closed()


def accept(headers: Headers, peer: tuple[str, int]) -> aqueduct.Accept:
    if headers.get("password") is None:
        raise aqueduct.Refuse("who are you?", unauthenticated=True)
    return aqueduct.Accept("ada", {"hello": peer[0]})


async def accept_later(headers: Headers, peer: tuple[str, int]) -> aqueduct.Accept:
    return aqueduct.Accept()


def accept_wrongly(headers: Headers, peer: tuple[str, int]) -> dict[str, str]:
    return {"hello": peer[0]}


def accept_by_accident(headers: Headers, peer: tuple[str, int]) -> bool:
    return headers.get("password") is not None


def accept_callbacks() -> None:
    """A callback that can return anything but `Accept` is an error of its caller."""
    tls = aqueduct.dev_tls()
    aqueduct.serve("127.0.0.1:0", tls=tls, accept=accept_later)
    aqueduct.serve("127.0.0.1:0", tls=tls, accept=accept_wrongly)  # type: ignore[arg-type]
    aqueduct.serve("127.0.0.1:0", tls=tls, accept=accept_by_accident)  # type: ignore[arg-type]


async def server() -> None:
    tls = aqueduct.dev_tls()
    limits = aqueduct.Limits(channel_window=100_000)
    async with aqueduct.serve(
        "127.0.0.1:0",
        Sum,
        tls=tls,
        accept=accept,
        limits=limits,
        options=aqueduct.QuicSettings(),
        early_data=True,
    ) as running:
        assert_type(running, aqueduct.Server[Sum])
        assert_type(running.address, str)
        async for connection in running:
            assert_type(connection, aqueduct.ServerConnection[Sum])
        assert_type(await running.accept(), aqueduct.ServerConnection[Sum])
        asyncio.ensure_future(running.run(handle_any)).cancel()
        await running.run(handle)
        await running.serve(handle_sum, concurrency=10)
        await running.serve(reply_to_add)  # type: ignore[arg-type]
        await running.drain(1.0)
        await running.close()


def errors(error: aqueduct.AqueductError) -> None:
    if isinstance(error, aqueduct.ChannelLostInTransit):
        assert_type(error.lineage, tuple[int, ...])
    elif isinstance(error, aqueduct.ConnectionLost):
        assert_type(error.code, int)
        assert_type(error.by_peer, bool)
    elif isinstance(error, aqueduct.RemoteProtocolError):
        assert_type(error.rule, str)


# Threads


def threads() -> None:
    tx, rx = blocking.channel(int)
    assert_type(tx, blocking.Sender[int])
    assert_type(rx, blocking.Receiver[int])
    tx.send("one")  # type: ignore[arg-type]
    tx.send(1, timeout=0.1)
    assert_type(rx.receive(timeout=0.1), int)
    for number in rx:
        assert_type(number, int)
    with blocking.connect("localhost:4433", Sum, trust=aqueduct.dev_trust()) as connection:
        assert_type(connection, blocking.ClientConnection[Sum])
        assert_type(connection.entrypoint, blocking.Sender[Sum])
        assert_type(rx.asynchronous, Receiver[int])
        connection.entrypoint.send(Sum(rx.asynchronous, tx.asynchronous))
        connection.entrypoint.send(Sum(rx, tx))  # type: ignore[arg-type]
    with blocking.serve("127.0.0.1:0", Sum, tls=aqueduct.dev_tls()) as running:
        assert_type(running.accept(), blocking.ServerConnection[Sum])
        for request in running.accept().entrypoint:
            assert_type(blocking.Receiver(request.numbers), blocking.Receiver[int])
            assert_type(sum(blocking.Receiver(request.numbers)), int)
            list(request.numbers)  # type: ignore[call-overload]
            assert_type(blocking.Sender(request.reply), blocking.Sender[int])
        assert_type(running.accept().entrypoint, blocking.Receiver[Sum])


async def messages_without_connections() -> None:
    async with ipc.Endpoint("udp://127.0.0.1:0") as plain:
        assert_type(plain, ipc.Endpoint[bytes])
        assert_type((await plain.receive()).payload, bytes)
        await plain.send("udp://127.0.0.1:1", "text")  # type: ignore[arg-type]

    def on_message(message: ipc.ReceivedMessage[int]) -> None:
        assert_type(message.payload, int)

    async with ipc.Endpoint("udp://127.0.0.1:0", int, on_message=on_message) as typed:
        assert_type(typed, ipc.Endpoint[int])
        async for message in typed:
            assert_type(message, ipc.ReceivedMessage[int])
    async with ipc.Endpoint("tls://", int | str, limits=ipc.TcpLimits()) as either:
        assert_type(either, ipc.Endpoint[Any])
    with ipc.blocking.Endpoint("tls://", int | str, limits=ipc.TcpLimits()) as one:
        assert_type(one, ipc.blocking.Endpoint[Any])
    with ipc.blocking.Endpoint("udp://127.0.0.1:0", str) as endpoint:
        assert_type(endpoint.receive().payload, str)


# Ingest


async def durable_records(headers: Mapping[str, bytes]) -> None:
    limits = ingest.IngestSettings(partitions=8, retention_age=86_400.0)
    permissions = ingest.Permissions({"token": ingest.Grant(write=["a.*"], read=["*"])})
    assert_type(ingest.read_permissions(Path("tokens.json")), ingest.Permissions)
    async with ingest.IngestServer(
        "127.0.0.1:0", "data", tls=aqueduct.dev_tls(), limits=limits, permissions=permissions
    ) as running:
        assert_type(running, ingest.IngestServer)
        assert_type(running.address, str)
        assert_type(running.topics(), list[ingest.TopicInfo])
        assert_type(running.statistics(), ingest.Metrics)
        assert_type(running.metrics_text(), str)
    async with ingest.Producer("localhost:4434", "logs", producer_id="me", token="t") as producer:
        assert_type(producer, ingest.Producer)
        await producer.send(b"value", key=b"key", headers=headers, timestamp=1.5, sequence=1)
        await producer.send("text")  # type: ignore[arg-type]
        stored = await producer.send_and_wait(b"value", partition=0)
        assert_type(stored, ingest.Stored)
        assert_type((stored.partition, stored.offset), tuple[int, int | None])
        await producer.flush()
        assert_type((producer.committed, producer.is_connected), tuple[int, bool])
    async with ingest.Reader("localhost:4434", trust=aqueduct.dev_trust()) as reader:
        (topic,) = await reader.topics("logs")
        assert_type(topic.partitions, list[ingest.PartitionInfo])
        assert_type(await reader.offsets_at("logs", 1.5), dict[int, int])
        await reader.advance("me", "logs", {0: 7})
        async for batch in reader.read("logs", 0, 0, 7):
            batch.to_pylist()


def durable_records_for_threads() -> None:
    with ingest.blocking.Producer("localhost:4434", "logs") as producer:
        producer.send(b"value", key=b"key")
        producer.send_many([b"a", b"b"], partition=1)
        assert_type(producer.send_and_wait(b"value"), ingest.Stored)
        producer.flush(timeout=1.0)
    with ingest.blocking.Reader("localhost:4434") as reader:
        assert_type(reader.topics(), list[ingest.TopicInfo])
        for batch in reader.read("logs", 0, 0, 7):
            batch.to_pylist()
    assert_type(ingest.DirectoryReader("data").topics(), list[ingest.TopicInfo])
    assert issubclass(ingest.CorruptFile, ingest.IngestError)
