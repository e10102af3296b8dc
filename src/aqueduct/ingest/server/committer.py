"""Group commit: records of all producers are collected briefly and stored with one sync."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from aqueduct.ingest.errors import IngestError
from aqueduct.ingest.records import RecordColumns
from aqueduct.ingest.server.metrics import Metrics
from aqueduct.ingest.server.store import Store
from aqueduct.ingest.server.topic import Submission, Topic

_log = logging.getLogger("aqueduct.ingest")

_LARGEST = 4
"""The largest group, in multiples of `group_size`: a group is in memory three times while it is
written, and the records after it wait hardly longer."""
_PAUSE = 0.05
"""Seconds to wait after an unexpected failure, so that other tasks run if it repeats."""
_CLOSING = "the server is closing and stores no more records"
_NO_RECORDS = RecordColumns(0, [], [])


@dataclass(slots=True, eq=False)
class _WaitingSubmission:
    """A submission, and the future of its caller."""

    topic: Topic
    submission: Submission
    size: int
    done: asyncio.Future[None]
    since: float = field(default_factory=time.perf_counter)


@dataclass(slots=True, eq=False)
class MemoryReservation:
    """Reserved bytes of memory, released when the records that use them are stored or fail."""

    size: int


class Committer:
    """Stores submissions, one group after the other, in the writer thread."""

    def __init__(self, store: Store, writer: ThreadPoolExecutor, metrics: Metrics) -> None:
        self._store = store
        self._writer = writer
        self._metrics = metrics
        self._waiting: deque[_WaitingSubmission] = deque()
        self._size = 0
        self._held = 0
        self._something = asyncio.Event()
        self._enough = asyncio.Event()
        self._room: deque[asyncio.Future[None]] = deque()
        self._reserving: deque[tuple[asyncio.Future[MemoryReservation], int]] = deque()
        """Pending reservations and their sizes, first come, first served."""
        self._is_over = False

    async def wait_for_room(self) -> None:
        """Wait until there is memory for another message."""
        while self._is_full and not self._is_over:
            turn = asyncio.get_running_loop().create_future()
            self._room.append(turn)
            await turn

    @property
    def _is_full(self) -> bool:
        return bool(self._reserving) or self._held >= self._store.limits.max_waiting

    async def reserve(self, size: int) -> MemoryReservation:
        """Wait for room for records that are not decoded yet, in the order of the calls.

        A reservation larger than `max_waiting` is granted when nothing else is reserved.
        """
        if self._is_over:
            raise IngestError(_CLOSING)
        if not self._reserving and self._fits(size):
            self._held += size
            return MemoryReservation(size)
        turn: asyncio.Future[MemoryReservation] = asyncio.get_running_loop().create_future()
        self._reserving.append((turn, size))
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.free(turn.result())
            else:
                self._grant()  # smaller reservations may fit
            raise

    def resize(self, room: MemoryReservation, size: int) -> None:
        """Correct the size of a reservation once the exact size is known."""
        self._held += size - room.size
        room.size = size

    def free(self, room: MemoryReservation) -> None:
        """Release a reservation whose records are not submitted."""
        self._held -= room.size
        self._grant()

    def _fits(self, size: int) -> bool:
        return not self._held or self._held + size <= self._store.limits.max_waiting

    def _grant(self) -> None:
        """Grant pending reservations in order, then wake `wait_for_room`."""
        while self._reserving:
            turn, size = self._reserving[0]
            if turn.done():
                self._reserving.popleft()
            elif self._is_over:
                self._reserving.popleft()
                turn.set_exception(IngestError(_CLOSING))
            elif self._fits(size):
                self._reserving.popleft()
                self._held += size
                turn.set_result(MemoryReservation(size))
            else:
                return
        if self._is_full and not self._is_over:
            return
        while self._room:
            waiting = self._room.popleft()
            if not waiting.done():
                waiting.set_result(None)

    def submit(
        self, topic: Topic, submission: Submission, room: MemoryReservation
    ) -> asyncio.Future[None]:
        """Submit records; return a future that is done when they are stored or have failed."""
        if self._is_over:
            self.free(room)
            raise IngestError(_CLOSING)
        done = asyncio.get_running_loop().create_future()
        self._waiting.append(_WaitingSubmission(topic, submission, room.size, done))
        self._size += room.size
        self._something.set()
        if self._size >= self._store.limits.group_size:
            self._enough.set()
        return done

    async def run(self) -> None:
        """Store groups until cancelled."""
        try:
            while True:
                await self._something.wait()
                try:
                    await self._linger()
                    await self._store_next()
                except Exception:  # noqa: BLE001 -- later groups must be stored
                    _log.exception("a commit group failed; the next one follows")
                    await asyncio.sleep(_PAUSE)
        finally:
            self._is_over = True
            self._fail(self._waiting, IngestError(_CLOSING))
            self._answer(self._waiting)
            self._waiting.clear()

    async def _store_next(self) -> None:
        loop = asyncio.get_running_loop()
        group = self._take()
        try:
            await loop.run_in_executor(self._writer, self._commit, group)
        except Exception as error:
            self._fail(group, IngestError(f"could not be stored: {error!r}"))
            raise
        except BaseException:
            self._fail(group, IngestError(_CLOSING))
            raise
        finally:
            self._answer(group)

    def _fail(self, group: Iterable[_WaitingSubmission], fault: IngestError) -> None:
        for waiting in group:
            waiting.submission.fault = waiting.submission.fault or fault

    def _take(self) -> list[_WaitingSubmission]:
        """Take the next group in order of arrival, up to the largest size."""
        limit = _LARGEST * self._store.limits.group_size
        group = [self._waiting.popleft()]
        size = group[0].size
        while self._waiting and size + self._waiting[0].size <= limit:
            group.append(self._waiting.popleft())
            size += group[-1].size
        self._size -= size
        if not self._waiting:
            self._something.clear()
        if self._size < self._store.limits.group_size:
            self._enough.clear()
        return group

    async def _linger(self) -> None:
        """Wait for more records; those that arrived during the last commit have waited already."""
        waited = time.perf_counter() - self._waiting[0].since
        left = self._store.limits.linger - waited
        if left <= 0:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left):
                await self._enough.wait()

    def _commit(self, group: list[_WaitingSubmission]) -> None:
        by_topic: dict[Topic, list[Submission]] = {}
        for waiting in group:
            by_topic.setdefault(waiting.topic, []).append(waiting.submission)
        try:
            self._store.commit(by_topic)
        except Exception as error:  # noqa: BLE001 -- every submission needs an outcome
            unstored = [each for each in group if not each.submission.is_done]
            self._fail(unstored, IngestError(f"could not be stored: {error!r}"))

    def _answer(self, group: Collection[_WaitingSubmission]) -> None:
        now = time.perf_counter()
        for waiting in group:
            self._held -= waiting.size
            if not waiting.done.done():
                waiting.done.set_result(None)
        for waiting in group:
            self._metrics.committed(waiting.submission, now - waiting.since)
            # Free the records: a producer that does not read its answers keeps the submission.
            waiting.submission.records = _NO_RECORDS
        self._grant()
