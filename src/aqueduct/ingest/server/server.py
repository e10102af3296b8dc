"""The ingest server: stores the records of producers, acknowledges them, and serves readers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from aqueduct.api.handles import Sender
from aqueduct.api.server import Accept, Refuse, Server, ServerConnection, serve
from aqueduct.api.waiting import wait_for_next
from aqueduct.errors import ChannelError, CloseCode, EndOfChannel, MessageError
from aqueduct.ingest.dedup.jobs import RECALLERS
from aqueduct.ingest.dedup.recollection import Recollection
from aqueduct.ingest.dedup.scope import WriteScope
from aqueduct.ingest.errors import IngestError, RefusedRecords, refusal_of
from aqueduct.ingest.protocol import (
    AUTHORIZATION,
    MAX_SEQUENCE,
    Advance,
    Answer,
    Done,
    EndStep,
    Fetch,
    Offsets,
    Open,
    Opened,
    Refusal,
    Request,
    TopicInfo,
    Topics,
)
from aqueduct.ingest.server.committer import Committer
from aqueduct.ingest.server.metrics import Metrics, Now
from aqueduct.ingest.server.owners import check_owner, read_key, tagged
from aqueduct.ingest.server.permissions import Grant, Permissions, digest_of
from aqueduct.ingest.server.producer_leases import ProducerLeases
from aqueduct.ingest.server.reader_offsets import Progress
from aqueduct.ingest.server.reading import Reading
from aqueduct.ingest.server.requests import MAX_REQUEST, Account, Decoded, Reservation
from aqueduct.ingest.server.store import Store
from aqueduct.ingest.server.stream import Stream
from aqueduct.ingest.server.token_throttle import TokenThrottle
from aqueduct.ingest.server.topic import Topic
from aqueduct.ingest.settings import IngestSettings
from aqueduct.ingest.storage.base import check_name
from aqueduct.ingest.storage.local.file_modes import check_mode, open_directory
from aqueduct.ingest.storage.local.storage import LocalStorage
from aqueduct.runtime.headers import Headers
from aqueduct.security import ServerTLS
from aqueduct.transport.address import Address

_log = logging.getLogger("aqueduct.ingest")

_REQUESTS = 256
"""Concurrent requests of one connection; further ones wait."""
_ADVANCES = 32
"""Concurrent advances of one connection; further ones wait. Each may be for another topic, which is
two syncs that other readers wait for."""
_OTHERS = 4
"""Threads that read rows and look up offsets for readers."""
_NICENESS = 10
_UNLOCKED = contextlib.nullcontext()
_UPKEEP = 0.5
"""Seconds between two passes of upkeep."""


class IngestServer:
    """Stores the records of producers in a directory, and serves readers, until it is closed.

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
        limits: IngestSettings | None = None,
        permissions: Permissions | None = None,
        directory_mode: int | None = None,
    ) -> None:
        """Configure the server; `async with` opens it.

        ``directory_mode`` is the mode of topic directories; their files get the same mode without
        the execute bits. By default new directories get ``0o750``, and existing ones lose all
        permissions beyond it. With ``directory_mode`` all directories get exactly that mode, also
        the server's: ``0o755`` makes topics world-readable.
        """
        self._directory_mode = None if directory_mode is None else check_mode(directory_mode)
        self._asked_address = address
        self._directory = Path(directory)
        self._tls = tls
        self.limits = limits or IngestSettings()
        self._permissions = permissions or Permissions()
        self.metrics = Metrics()
        self._throttle = TokenThrottle()
        self._owners_key = b""
        self._leases = ProducerLeases()
        self._decoded = Decoded()
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """By topic and job, the lock that serialises opening parts and ending steps."""
        self._sending = 0
        self._stack = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._server: Server[Any]
        self._store: Store
        self._committer: Committer
        self._reading: Reading

    # Opening and closing

    async def open(self) -> None:
        """Recover the topics, and listen. Called by ``async with``."""
        loop = asyncio.get_running_loop()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="aqueduct-writer")
        self._others = ThreadPoolExecutor(_OTHERS, thread_name_prefix="aqueduct-ingest")
        # Separate threads: a recall may read a whole topic, and must not delay readers.
        self._recallers = ThreadPoolExecutor(RECALLERS, thread_name_prefix="aqueduct-recall")
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="aqueduct-readers")
        self._upkeep = ThreadPoolExecutor(
            1, thread_name_prefix="aqueduct-upkeep", initializer=_lower_priority
        )
        try:
            self._store = await loop.run_in_executor(
                self._writer,
                self._open_store,
            )
            # Closed last: the directory stays locked while a thread may write to it.
            self._stack.callback(self._store.close)
            self._stack.push_async_callback(self._stop_threads)
            if self._directory_mode is not None:
                await self._in_writer(open_directory, self._directory, self._directory_mode)
            if not self._permissions.is_open:
                self._owners_key = await self._in_writer(read_key, self._directory)
            self._committer = Committer(self._store, self._writer, self.metrics)
            self._progress = Progress(self.limits, partial(self._in, self._readers))
            self._stack.push_async_callback(self._progress.close)
            self._reading = Reading(self._store, self.metrics, self._in_thread, self._progress)
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

    def _open_store(self) -> Store:
        storage = LocalStorage(self._directory, mode=self._directory_mode)
        return Store(storage, self.limits, scratch=self._directory)

    async def _stop_threads(self) -> None:
        pools = (self._writer, self._others, self._recallers, self._readers, self._upkeep)
        for threads in pools:
            await asyncio.to_thread(threads.shutdown)

    async def _accept(self, headers: Headers, peer: Address) -> Accept:
        """Accept a client with a valid token, after a delay if its address sent wrong ones."""
        if self._permissions.is_open:
            return Accept()
        host = peer[0]
        digest = digest_of(headers)
        try:
            pause = 0.0 if self._throttle.was_valid(host, digest) else self._throttle.pause(host)
            if pause:
                await asyncio.sleep(pause)
            try:
                self._permissions.grant(headers)  # raises for an unknown token
            except Refuse:
                self._throttle.record_invalid(host, has_token=bool(headers.text(AUTHORIZATION)))
                raise
            self._throttle.record_valid(host, digest)
            return Accept()
        finally:
            self.metrics.tokens_refused = self._throttle.refused
            self.metrics.tokens_turned_away = self._throttle.turned_away

    async def close(self, grace: float = 1.0) -> None:
        """Stop listening, acknowledge received records, and close all files.

        Waits up to ``grace`` seconds for open connections to finish.
        """
        if not self._tasks:
            return
        await self._server.drain(grace)
        committing, *rest = self._tasks
        self._tasks = []
        # Connections end before the committer, so that no producer sees its records rejected.
        for tasks in (rest, [committing]):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        await self._in_writer(self._store.rotate_old, True)
        await self._stack.aclose()

    async def wait_closed(self) -> None:
        """Wait until the server is closed; raise the error if one stopped it."""
        if self._tasks:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled():
                    task.result()
            if self._tasks:
                raise IngestError("the server stopped without being closed")

    async def __aenter__(self) -> IngestServer:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def address(self) -> str:
        """The address that it listens at, as ``host:port``."""
        return self._server.address

    def topics(self) -> list[TopicInfo]:
        """Return what every topic contains."""
        return self._store.info()

    def statistics(self) -> Metrics:
        """Return the counters since the server was opened."""
        return self.metrics

    def metrics_text(self) -> str:
        """Return the metrics in the text format of Prometheus."""
        topics = self.topics()
        logs = sum(
            part.log_bytes
            for topic in list(self._store.topics.values())
            for part in topic.partitions
        )
        now = Now(self._store.storage.free_bytes(), logs, self._sending, time.time())
        return self.metrics.text(topics, now)

    # Upkeep

    async def _keep_up(self) -> None:
        """Periodically turn logs into segments, and remove expired segments."""
        while True:
            await asyncio.sleep(_UPKEEP)
            try:
                await self._in_writer(self._store.rotate_old)
                self.metrics.segments += await self._in(self._upkeep, self._store.roll)
                await self._reading.trim()
            except (IngestError, OSError) as error:
                _log.error("upkeep failed and will be retried: %s", error)
            except Exception:  # noqa: BLE001 -- without upkeep logs grow without limit
                _log.exception("upkeep failed and will be retried")

    async def _in_writer(self, call: Any, *arguments: Any) -> Any:
        return await self._in(self._writer, call, *arguments)

    async def _in_turn(self, client: _Client, call: Any, *arguments: Any) -> Any:
        """Run a call in the writer thread, one at a time for each client.

        Otherwise many requests of one client, some of which sync, would delay all records.
        """
        async with client.writing:
            return await self._in_writer(call, *arguments)

    async def _in_thread(self, call: Any, *arguments: Any) -> Any:
        return await self._in(self._others, call, *arguments)

    async def _in(self, threads: ThreadPoolExecutor, call: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(threads, call, *arguments)

    # Requests

    async def _handle(self, connection: ServerConnection[Request]) -> None:
        headers = connection.headers
        owner = self._permissions.owner(headers, self._owners_key)
        client = _Client(self._permissions.grant(headers), owner, Account(self._decoded))
        async with asyncio.TaskGroup() as group:
            while True:
                await client.requests.acquire()
                size = await wait_for_next(connection.entrypoint)
                if size > MAX_REQUEST:
                    reason = f"a request of {size:,} bytes is larger than {MAX_REQUEST:,}"
                    _log.warning("%s is closed: %s", connection.peer, reason)
                    await connection.close(CloseCode.LIMIT_EXCEEDED, reason)
                    return
                room = await client.decoded.reserve(size)
                try:
                    request = await connection.entrypoint.receive()
                except MessageError as error:
                    _log.warning("a request from %s: %s", connection.peer, error)
                    room.free()
                    client.requests.release()
                    continue
                except (EndOfChannel, ChannelError):
                    room.free()
                    return
                serving = group.create_task(self._serve(request, client, room))
                serving.add_done_callback(partial(client.served, room))
                del request, serving  # otherwise they live until the next request arrives

    async def _serve(self, request: Request, client: _Client, room: Reservation) -> None:
        try:
            if isinstance(request, Open):
                await self._produce(request, client, room)
            elif isinstance(request, Fetch):
                await self._reading.fetch(request, client.grant, client, room.free)
            elif isinstance(request, EndStep):
                await self._end_step(request, client, room)
            else:
                async with client.share_of(request):
                    await self._reading.answer(
                        request, client.grant, client.checked_owner, room.free
                    )
        except ChannelError:
            pass  # the client has disconnected
        except Exception:  # noqa: BLE001 -- fails only this request
            _log.exception("a request failed: %s", type(request).__name__)

    async def _produce(self, request: Open, client: _Client, room: Reservation) -> None:
        async with request.answers as answers, request.records as records:
            try:
                client.grant.check_write(request.topic)
                with self._stream_slot(client):
                    self._store.check_position(request.topic, request.position)
                    if request.scope is not None:
                        self._store.check_after(request.topic, request.scope, request.after)
                    topic = await self._in_turn(
                        client, self._store.topic_to_write, request.topic, request.partitions
                    )
                    request.position = None  # checked; the stream may be open for days
                    room.free()
                    scope = request.scope
                    stream = Stream(
                        topic,
                        request.producer_id if scope is None else scope.producer_id,
                        records,
                        answers,
                        self._committer,
                        self.limits.max_record,
                        scope,
                        client.turn,
                    )
                    if scope is None:
                        await self._run_stream(stream, topic, request, answers, client)
                    else:
                        await self._run_part(stream, topic, scope, request, client)
            except (IngestError, OSError) as error:
                await answers.send(refusal_of(error))

    async def _run_part(
        self, stream: Stream, topic: Topic, scope: WriteScope, request: Open, client: _Client
    ) -> None:
        """Serve a producer of a part; several may write it at once: ids identify the rows."""
        is_reconnect, is_dense = request.resume_after is not None, request.after is not None
        assert stream.attempt is not None
        try:
            async with self._turn(topic.name, scope.job):
                begin = partial(self._store.begin, topic, scope, is_reconnect, is_dense)
                is_done, missing = await self._in_turn(
                    client, partial(begin, client.checked_owner, stream.attempt)
                )
                if missing is not None:
                    # The part is not written before its ids are read back; other jobs are.
                    await self._recall(missing, topic, client)
                    await self._in_turn(client, self._store.recall, topic, missing)
            await request.answers.send(self._opened(topic, 0, is_done))
            await stream.run()
        finally:
            stream.attempt.is_open = False

    async def _end_step(self, request: EndStep, client: _Client, room: Reservation) -> None:
        async with request.reply as reply:
            outcome: Done | Refusal = Done()
            try:
                await self._end(request, client)
            except (IngestError, OSError) as error:
                outcome = refusal_of(error)
            request.positions = []  # the client may take its time to receive the answer
            room.free()
            await reply.send(outcome)

    async def _end(self, request: EndStep, client: _Client) -> None:
        client.grant.check_write(request.topic)
        end = partial(
            self._store.end_step,
            request.topic,
            request.job,
            request.step,
            request.run,
            request.rows,
            allow_extra=request.allow_extra,
            positions=request.positions,
            owner=client.checked_owner,
        )
        async with self._turn(request.topic, request.job):
            missing = await self._in_turn(client, end)
            if missing is not None:
                await self._recall(missing, self._store.topics[request.topic], client)
                await self._in_turn(client, partial(end, read=missing))

    async def _recall(self, missing: Recollection, topic: Topic, client: _Client) -> None:
        """Read the ids of a step back, one step at a time for each client."""
        async with client.recalling:
            await self._in(self._recallers, missing.read, topic.partitions)

    def _turn(self, topic: str, job: str) -> asyncio.Lock:
        return self._turns.setdefault((topic, job), asyncio.Lock())

    async def _run_stream(
        self,
        stream: Stream,
        topic: Topic,
        request: Open,
        answers: Sender[Answer],
        client: _Client,
    ) -> None:
        """Serve a producer; it replaces an earlier one with the same id and token."""
        producer_id = request.producer_id
        if request.instance:
            check_name(request.instance, "producer's instance")
        with self._leases.acquired(topic.name, producer_id) as lease:
            async with lease.turn:
                # Before the current producer with that id is affected.
                known = topic.owner_of(producer_id)
                check_owner("producer id", producer_id, known, client.checked_owner)
                instance = tagged(known or client.owner, request.instance)
                if request.resume_after is not None:
                    if not 0 <= request.resume_after <= MAX_SEQUENCE:
                        raise RefusedRecords(f"invalid sequence number {request.resume_after}")
                    topic.check_owner(producer_id, instance, request.resume_after)
                await lease.clear()
                committed = await self._in_turn(
                    client,
                    self._store.register,
                    topic,
                    producer_id,
                    instance,
                    self._leases.ids(topic.name),
                )
                lease.stream = stream
            await answers.send(self._opened(topic, committed))
            await stream.run()

    def _opened(self, topic: Topic, committed: int, is_done: bool = False) -> Opened:
        return Opened(
            len(topic.partitions),
            committed,
            self.limits.max_record,
            is_done,
            topic.history.topic_id,
            topic.epoch,
        )

    @contextlib.contextmanager
    def _stream_slot(self, client: _Client) -> Iterator[None]:
        if self._sending >= self.limits.max_streams:
            raise RefusedRecords(
                f"{self._sending} producers send already (max_streams); retry later"
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
    """A connection: its grant, and its shares of the server."""

    def __init__(self, grant: Grant, owner: str, decoded: Account) -> None:
        self.grant = grant
        self.owner = owner
        """The owner of names that this client uses first; empty without tokens."""
        self.streams = 0
        self.turn = asyncio.Lock()
        """Held while a message is decoded: one at a time over all streams of the connection."""
        self.requests = asyncio.Semaphore(_REQUESTS)
        self.decoded = decoded
        """The memory of its requests."""
        self.writing = asyncio.Lock()
        """Held during a call in the writer thread."""
        self.recalling = asyncio.Lock()
        """Held while the ids of a step are read back."""
        self.lookup_lock = asyncio.Lock()
        """Held while offsets are looked up or topics listed: a listing takes megabytes."""
        self.advancing = asyncio.Semaphore(_ADVANCES)
        """Held while a named reader advances."""

    def served(self, room: Reservation, _: object = None) -> None:
        """Release the memory and the slot of a finished request."""
        room.free()
        self.requests.release()

    def share_of(self, request: Request) -> contextlib.AbstractAsyncContextManager[None]:
        """Return the lock to hold during a request, which limits its kind per connection."""
        if isinstance(request, Offsets | Topics):
            return self.lookup_lock
        return self.advancing if isinstance(request, Advance) else _UNLOCKED

    @property
    def checked_owner(self) -> str:
        """The owner to check; empty for an admin, which may use every name."""
        return "" if self.grant.admin else self.owner


def _lower_priority() -> None:
    """Lower the priority of the calling thread below that of the threads that serve clients."""
    if sys.platform == "linux":  # only Linux has a niceness per thread
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
