"""The ingest server: takes records over channels, stores them, answers, and serves readers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from aqueduct.channel.handles import Sender
from aqueduct.channel.headers import Headers
from aqueduct.channel.server import Server, ServerConnection, serve
from aqueduct.errors import ChannelError, EndOfChannel, MessageError
from aqueduct.ingest.committer import Committer
from aqueduct.ingest.faults import IngestError, RefusedRecords, refusal_of
from aqueduct.ingest.limits import IngestLimits
from aqueduct.ingest.messages import Answer, Done, EndStep, Fetch, Open, Opened, Request, TopicInfo
from aqueduct.ingest.metrics import Metrics, Now
from aqueduct.ingest.once import Once
from aqueduct.ingest.permissions import Grant, Permissions
from aqueduct.ingest.places import Places
from aqueduct.ingest.reading import Reading, Slots
from aqueduct.ingest.store import Store
from aqueduct.ingest.stream import Stream
from aqueduct.ingest.topic import Topic, check_name
from aqueduct.quic.tls import ServerTLS
from aqueduct.quic.udp import Address

_log = logging.getLogger("aqueduct.ingest")

_REQUESTS = 256
"""Requests of one connection that are served at once; then the next wait."""
_NICENESS = 10
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
        self._places = Places()
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """By topic and job, who looks at what is known of it."""
        self._sending = 0
        self._stack = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._server: Server[Any]
        self._store: Store
        self._committer: Committer
        self._reading: Reading

    # Opening and closing

    async def open(self) -> None:
        """Recover what is stored, and listen; ``async with`` does it."""
        loop = asyncio.get_running_loop()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="aqueduct-writer")
        self._others = ThreadPoolExecutor(4, thread_name_prefix="aqueduct-ingest")
        self._upkeep = ThreadPoolExecutor(
            1, thread_name_prefix="aqueduct-upkeep", initializer=_stand_back
        )
        try:
            self._store = await loop.run_in_executor(
                self._writer, Store, self._directory, self.limits
            )
            # The last thing to go: nobody else may have the directory while a thread is at work.
            self._stack.callback(self._store.close)
            self._stack.push_async_callback(self._stop_threads)
            self._committer = Committer(self._store, self._writer, self.metrics)
            self._reading = Reading(self._store, self.metrics, self._in_thread, self._in_writer)
            self._server = await self._stack.enter_async_context(
                serve(
                    self._asked_address,
                    Request,
                    tls=self._tls,
                    accept=self._accept,
                )
            )
        except BaseException:
            await self._stop_threads()
            await self._stack.aclose()
            raise
        self._tasks = [
            asyncio.create_task(work)
            for work in (self._committer.run(), self._keep_up(), self._server.run(self._handle))
        ]

    async def _stop_threads(self) -> None:
        for threads in (self._writer, self._others, self._upkeep):
            await asyncio.to_thread(threads.shutdown)

    def _accept(self, headers: Headers, peer: Address) -> None:
        self._permissions.grant(headers)  # raises for a token that nobody knows

    async def close(self, grace: float = 1.0) -> None:
        """Stop listening, let producers have their last answers, and close all files."""
        if not self._tasks:
            return
        await self._server.drain(grace)
        committing, *rest = self._tasks
        self._tasks = []
        # First those who send, then what stores: nobody is to hear that the server refuses records.
        for tasks in (rest, [committing]):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        await self._in_writer(self._store.rotate_old, True)
        await self._stack.aclose()

    async def wait_closed(self) -> None:
        """Wait until it was closed; raises what ended it if that was something else."""
        if self._tasks:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled():
                    task.result()
            if self._tasks:
                raise IngestError("the server has ended, and nobody closed it")

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
        return self._store.info()

    def statistics(self) -> Metrics:
        """Counts since it was opened."""
        return self.metrics

    def metrics_text(self) -> str:
        """The same in the text format of Prometheus."""
        topics = self.topics()
        segments = sum(
            part.segments_size
            for topic in list(self._store.topics.values())
            for part in topic.partitions
        )
        everything = sum(part.size for topic in topics for part in topic.partitions)
        now = Now(self._store.free_bytes(), max(everything - segments, 0), self._sending)
        return self.metrics.text(topics, now)

    # Upkeep

    async def _keep_up(self) -> None:
        """Turn logs into segments, and remove segments that may go."""
        while True:
            await asyncio.sleep(_UPKEEP)
            try:
                await self._in_writer(self._store.rotate_old)
                self.metrics.segments += await self._in(self._upkeep, self._store.roll)
            except (IngestError, OSError) as error:
                _log.error("upkeep failed, and will be tried again: %s", error)
            except Exception:  # noqa: BLE001 -- without upkeep logs would grow for ever
                _log.exception("upkeep failed, and will be tried again")

    async def _in_writer(self, call: Any, *arguments: Any) -> Any:
        return await self._in(self._writer, call, *arguments)

    async def _in_thread(self, call: Any, *arguments: Any) -> Any:
        return await self._in(self._others, call, *arguments)

    async def _in(self, threads: ThreadPoolExecutor, call: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(threads, call, *arguments)

    # Requests

    async def _handle(self, connection: ServerConnection[Request]) -> None:
        client = _Client(self._permissions.grant(connection.headers), self.limits)
        async with asyncio.TaskGroup() as group:
            while True:
                await client.requests.acquire()
                try:
                    request = await connection.entrypoint.receive()
                except MessageError as error:
                    _log.warning("a request from %s: %s", connection.peer, error)
                    client.requests.release()
                    continue
                except (EndOfChannel, ChannelError):
                    return
                serving = group.create_task(self._serve(request, client))
                serving.add_done_callback(lambda _: client.requests.release())

    async def _serve(self, request: Request, client: _Client) -> None:
        try:
            if isinstance(request, Open):
                await self._produce(request, client)
            elif isinstance(request, Fetch):
                await self._reading.fetch(request, client.grant, client.fetches)
            elif isinstance(request, EndStep):
                await self._end_step(request, client.grant)
            else:
                await self._reading.answer(request, client.grant)
        except ChannelError:
            pass  # who asked is gone
        except Exception:  # noqa: BLE001 -- a request that fails leaves others alone
            _log.exception("a request failed, and others go on: %s", type(request).__name__)

    async def _produce(self, request: Open, client: _Client) -> None:
        async with request.answers as answers, request.records as records:
            try:
                client.grant.check_write(request.topic)
                with self._place_for_stream(client):
                    topic = await self._in_writer(
                        self._store.topic_to_write, request.topic, request.partitions
                    )
                    once = request.once
                    stream = Stream(
                        topic,
                        request.producer_id if once is None else once.producer_id,
                        records,
                        answers,
                        self._committer,
                        self.limits.max_record,
                        once,
                    )
                    if once is None:
                        await self._run_stream(stream, topic, request, answers)
                    else:
                        again = request.again is not None
                        await self._run_part(stream, topic, once, answers, again)
            except (IngestError, OSError) as error:
                await answers.send(refusal_of(error))

    async def _run_part(
        self, stream: Stream, topic: Topic, once: Once, answers: Sender[Answer], again: bool
    ) -> None:
        """Let a part of a job be sent, by as many as like to: ids tell what is new."""
        async with self._turns.setdefault((topic.name, once.job), asyncio.Lock()):
            is_done, missing = await self._in_writer(self._store.begin, topic, once, again)
            if missing is not None:
                # Nothing of the part is stored until this is known, and others go on meanwhile.
                await self._in_thread(missing.read, topic.partitions)
                await self._in_writer(self._store.recall, topic, missing)
        await answers.send(Opened(len(topic.partitions), 0, self.limits.max_record, is_done))
        await stream.run()

    async def _end_step(self, request: EndStep, grant: Grant) -> None:
        async with request.reply as reply:
            try:
                grant.check_write(request.topic)
                await self._in_writer(
                    self._store.end_step, request.topic, request.job, request.step, request.run
                )
            except (IngestError, OSError) as error:
                await reply.send(refusal_of(error))
            else:
                await reply.send(Done())

    async def _run_stream(
        self, stream: Stream, topic: Topic, request: Open, answers: Sender[Answer]
    ) -> None:
        """Let a producer send, who takes the place of any before it with the same id."""
        producer_id, instance = request.producer_id, request.instance
        if instance:
            check_name(instance, "producer's instance")
        with self._places.entered(topic.name, producer_id) as place:
            async with place.turn:
                if request.again is not None:
                    topic.check_owner(producer_id, instance, request.again)
                await place.clear()
                known = await self._in_writer(
                    self._store.register,
                    topic,
                    producer_id,
                    instance,
                    self._places.ids(topic.name),
                )
                place.stream = stream
            await answers.send(Opened(len(topic.partitions), known, self.limits.max_record))
            await stream.run()

    @contextlib.contextmanager
    def _place_for_stream(self, client: _Client) -> Iterator[None]:
        if self._sending >= self.limits.max_streams:
            raise RefusedRecords(
                f"{self._sending} producers send already (max_streams); try again later"
            )
        if client.streams >= self.limits.max_connection_streams:
            raise RefusedRecords(
                f"{client.streams} producers send over this connection already "
                "(max_connection_streams); open another"
            )
        self._sending += 1
        client.streams += 1
        try:
            yield
        finally:
            self._sending -= 1
            client.streams -= 1


class _Client:
    """A connection: what it may do, and what it has of the server."""

    def __init__(self, grant: Grant, limits: IngestLimits) -> None:
        self.grant = grant
        self.streams = 0
        self.fetches = Slots(limits.max_connection_fetches)
        self.requests = asyncio.Semaphore(_REQUESTS)


def _stand_back() -> None:
    """Let the thread that asks for it have the processor last: what it does can wait."""
    if sys.platform == "linux":  # elsewhere threads have no niceness of their own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
