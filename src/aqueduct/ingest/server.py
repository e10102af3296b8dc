"""The ingest server: takes records over channels, stores them, answers, and serves readers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from aqueduct.channel.handles import Receiver, Sender
from aqueduct.channel.headers import Headers
from aqueduct.channel.server import Server, ServerConnection, serve
from aqueduct.errors import ChannelError, EndOfChannel, MessageError
from aqueduct.ingest.committer import Committer
from aqueduct.ingest.faults import IngestError, RefusedRecords, UnknownTopic
from aqueduct.ingest.limits import IngestLimits
from aqueduct.ingest.messages import (
    Advance,
    Answer,
    Committed,
    Done,
    Fetch,
    Found,
    Listing,
    Offsets,
    Open,
    Opened,
    Records,
    Refusal,
    Request,
    TopicInfo,
    Topics,
)
from aqueduct.ingest.metrics import Metrics
from aqueduct.ingest.permissions import Grant, Permissions
from aqueduct.ingest.rows import in_pieces
from aqueduct.ingest.store import Store
from aqueduct.ingest.topic import Submission, Topic
from aqueduct.quic.tls import ServerTLS
from aqueduct.quic.udp import Address

T = TypeVar("T")

_log = logging.getLogger("aqueduct.ingest")

_AHEAD = 64
"""Messages of one producer that may wait to be stored or answered."""
_UPKEEP = 0.5
"""Seconds between looks at what has to be rolled or removed."""


class IngestServer:
    """Stores what producers send under a directory, until it is closed.

    ::

        async with ingest.IngestServer("127.0.0.1:4434", "data", tls=aqueduct.dev_tls()) as server:
            await server.wait_closed()
    """

    def __init__(
        self,
        address: str,
        directory: str | os.PathLike[str],
        *,
        tls: ServerTLS,
        limits: IngestLimits | None = None,
        permissions: Permissions | None = None,
    ) -> None:
        self._asked_address = address
        self._directory = Path(directory)
        self._tls = tls
        self.limits = limits or IngestLimits()
        self._permissions = permissions or Permissions()
        self.metrics = Metrics()
        self._streams = 0
        self._fetches = asyncio.Semaphore(self.limits.max_fetches)
        self._stack = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._server: Server[Any]
        self._store: Store
        self._committer: Committer

    # Opening and closing

    async def open(self) -> None:
        """Recover what is stored, and listen; ``async with`` does it."""
        loop = asyncio.get_running_loop()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="aqueduct-writer")
        self._others = ThreadPoolExecutor(4, thread_name_prefix="aqueduct-ingest")
        self._stack.callback(self._others.shutdown)
        self._stack.callback(self._writer.shutdown)
        try:
            self._store = await loop.run_in_executor(
                self._writer, Store, self._directory, self.limits
            )
            self._stack.callback(self._store.close)
            self._committer = Committer(self._store, self._writer, self.metrics)
            self._server = await self._stack.enter_async_context(
                serve(
                    self._asked_address,
                    Request,
                    tls=self._tls,
                    accept=self._accept,
                )
            )
        except BaseException:
            await self._stack.aclose()
            raise
        self._tasks = [
            asyncio.create_task(work)
            for work in (self._committer.run(), self._keep_up(), self._server.run(self._handle))
        ]

    def _accept(self, headers: Headers, peer: Address) -> None:
        self._permissions.grant(headers)  # raises for a token that nobody knows

    async def close(self, grace: float = 1.0) -> None:
        """Stop listening, let producers have their last answers, and close all files."""
        if not self._tasks:
            return
        await self._server.drain(grace)
        committing, *rest = self._tasks
        self._tasks = []
        for task in (*rest, committing):
            task.cancel()
        await asyncio.wait((*rest, committing))
        await self._in_writer(self._store.rotate_old, True)
        await self._stack.aclose()

    async def wait_closed(self) -> None:
        """Wait until it was closed; raises what ended it if that was something else."""
        if self._tasks:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled():
                    task.result()

    async def __aenter__(self) -> IngestServer:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def address(self) -> str:
        """Where it listens, as ``host:port``."""
        return self._server.address

    def topics(self) -> list[TopicInfo]:
        """What is stored."""
        return [topic.info() for topic in self._store.topics.values()]

    def statistics(self) -> Metrics:
        """Counts since it was opened."""
        return self.metrics

    def metrics_text(self) -> str:
        """The same in the text format of Prometheus."""
        return self.metrics.text(self.topics())

    # Upkeep

    async def _keep_up(self) -> None:
        """Turn logs into segments, and remove segments that may go."""
        while True:
            await asyncio.sleep(_UPKEEP)
            try:
                await self._in_writer(self._store.rotate_old)
                self.metrics.segments += await self._in_thread(self._store.roll)
                await self._in_thread(self._store.retain)
            except (IngestError, OSError) as error:
                _log.error("upkeep failed, and will be tried again: %s", error)

    async def _in_writer(self, call: Any, *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._writer, call, *arguments)

    async def _in_thread(self, call: Any, *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._others, call, *arguments)

    # Requests

    async def _handle(self, connection: ServerConnection[Request]) -> None:
        grant = self._permissions.grant(connection.headers)
        async with asyncio.TaskGroup() as group:
            while True:
                try:
                    request = await connection.entrypoint.receive()
                except MessageError as error:
                    _log.warning("a request from %s: %s", connection.peer, error)
                    continue
                except (EndOfChannel, ChannelError):
                    return
                group.create_task(self._serve(request, grant))

    async def _serve(self, request: Request, grant: Grant) -> None:
        with contextlib.suppress(ChannelError):  # who asked is gone
            if isinstance(request, Open):
                await self._produce(request, grant)
            elif isinstance(request, Fetch):
                await self._fetch(request, grant)
            elif isinstance(request, Topics):
                await _reply(request.reply, self._list(request, grant))
            elif isinstance(request, Offsets):
                await _reply(request.reply, self._offsets(request, grant))
            else:
                await _reply(request.reply, self._advance(request, grant))

    # Producers

    async def _produce(self, request: Open, grant: Grant) -> None:
        async with contextlib.AsyncExitStack() as stack:
            answers = await stack.enter_async_context(request.answers)
            records = await stack.enter_async_context(request.records)
            try:
                grant.check_write(request.topic)
                if self._streams >= self.limits.max_streams:
                    raise RefusedRecords(f"{self._streams} producers send already (max_streams)")
                self._streams += 1
                stack.callback(self._stream_ended)
                topic = await self._in_writer(
                    self._store.topic_to_write, request.topic, request.partitions
                )
                known = await self._in_writer(self._store.register, topic, request.producer_id)
            except IngestError as fault:
                await answers.send(Refusal(fault.code, str(fault)))
                return
            opened = Opened(len(topic.partitions), known, self.limits.max_record)
            await answers.send(opened)
            await self._store_records(topic, request.producer_id, records, answers)

    def _stream_ended(self) -> None:
        self._streams -= 1

    async def _store_records(
        self, topic: Topic, producer_id: str, records: Receiver[Records], answers: Sender[Answer]
    ) -> None:
        """Store what comes, and answer in the same order."""
        queue: asyncio.Queue[tuple[Submission, asyncio.Future[None]] | Refusal | None]
        queue = asyncio.Queue(_AHEAD)
        answering = asyncio.create_task(_answer(queue, answers))
        try:
            async for message in records:
                submission = Submission(producer_id, message)
                try:
                    self._check(topic, message)
                except RefusedRecords as fault:
                    await queue.put(Refusal(fault.code, str(fault)))
                    return
                await queue.put((submission, await self._committer.submit(topic, submission)))
                if answering.done():
                    return
        except MessageError as error:
            await queue.put(Refusal("refused", f"not records: {error}"))
        finally:
            if not answering.done():
                with contextlib.suppress(ChannelError):
                    await queue.put(None)
                    await answering
            else:
                with contextlib.suppress(ChannelError):
                    answering.result()

    def _check(self, topic: Topic, records: Records) -> None:
        """Refuse what cannot be stored, before it is part of a group."""
        count = len(records.values)
        if records.sequence < 1:
            raise RefusedRecords(f"sequence numbers begin at 1, not at {records.sequence}")
        columns = (records.timestamps, records.keys, records.headers)
        if any(column is not None and len(column) != count for column in columns):
            raise RefusedRecords("the columns of records are not all of the same length")
        if records.partition is not None and not 0 <= records.partition < len(topic.partitions):
            raise RefusedRecords(f"topic {topic.name} has no partition {records.partition}")
        limit = self.limits.max_record
        if records.keys is None and records.headers is None:
            if max(map(len, records.values), default=0) <= limit:
                return
        for at, value in enumerate(records.values):
            size = len(value)
            if records.keys is not None:
                size += len(records.keys[at] or b"")
            if records.headers is not None:
                size += sum(len(name) + len(text) for name, text in records.headers[at])
            if size > limit:
                raise RefusedRecords(
                    f"record {records.sequence + at} has {size:,} bytes, more than {limit:,} "
                    "(max_record)"
                )

    # Readers

    async def _list(self, request: Topics, grant: Grant) -> Listing:
        if request.topic is not None:
            grant.check_read(request.topic)
            return Listing([self._store.topic_to_read(request.topic).info()])
        names = [name for name in self._store.topics if grant.may_read(name)]
        return Listing([self._store.topics[name].info() for name in sorted(names)])

    async def _offsets(self, request: Offsets, grant: Grant) -> Found:
        grant.check_read(request.topic)
        topic = self._store.topic_to_read(request.topic)
        offsets = {
            part.number: await self._in_thread(part.offset_at, request.timestamp)
            for part in topic.partitions
        }
        return Found(offsets)

    async def _advance(self, request: Advance, grant: Grant) -> Done:
        grant.check_read(request.topic)
        topic = self._store.topic_to_read(request.topic)
        await self._in_writer(topic.advance, request.reader, request.offsets)
        return Done()

    async def _fetch(self, request: Fetch, grant: Grant) -> None:
        outcome: Done | Refusal
        async with request.rows as rows:
            try:
                grant.check_read(request.topic)
                topic = self._store.topic_to_read(request.topic)
                if not 0 <= request.partition < len(topic.partitions):
                    raise UnknownTopic(f"{topic.name} has no partition {request.partition}")
                part = topic.partitions[request.partition]
                part.check_range(topic.name, request.start, request.end)
                async with self._fetches:
                    async for count, data in self._batches(part, request.start, request.end):
                        await rows.send(data)
                        self.metrics.rows_read += count
                outcome = Done()
            except IngestError as fault:
                outcome = Refusal(fault.code, str(fault))
                rows.cancel()
        await request.reply.send(outcome)

    async def _batches(self, part: Any, start: int, end: int) -> AsyncIterator[tuple[int, bytes]]:
        """Rows as Arrow IPC messages, read in a thread one at a time."""
        reading = in_pieces(part.read(start, end))

        def more() -> tuple[int, bytes] | None:
            batch = next(reading, None)
            return None if batch is None else (batch.num_rows, batch.serialize().to_pybytes())

        while (found := await self._in_thread(more)) is not None:
            yield found


async def _answer(
    queue: asyncio.Queue[tuple[Submission, asyncio.Future[None]] | Refusal | None],
    answers: Sender[Answer],
) -> None:
    """Answer for records once they are stored, in order, until one is not."""
    while (entry := await queue.get()) is not None:
        if isinstance(entry, Refusal):
            await answers.send(entry)
            return
        submission, done = entry
        await done
        if submission.fault is not None:
            await answers.send(Refusal(submission.fault.code, str(submission.fault)))
            return
        records = submission.records
        await answers.send(Committed(records.sequence, len(records.values), submission.offsets))


async def _reply(reply: Sender[Any], work: Coroutine[Any, Any, Any]) -> None:
    try:
        outcome = await work
    except IngestError as fault:
        outcome = Refusal(fault.code, str(fault))
    await reply.send(outcome)
