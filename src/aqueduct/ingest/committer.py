"""Group commit: records of all producers wait a moment, are synced together, and are answered."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

from aqueduct.ingest.faults import IngestError
from aqueduct.ingest.messages import Records
from aqueduct.ingest.metrics import Metrics
from aqueduct.ingest.store import Store, group_by_topic
from aqueduct.ingest.topic import Submission, Topic

_log = logging.getLogger("aqueduct.ingest")

RECORD_OVERHEAD = 64
"""What a record costs in memory besides its bytes."""
HEADER_OVERHEAD = 128
"""What a header costs: it is a tuple of two objects."""
_LARGEST = 4
"""Times `group_size` that one group holds at most: its rows are in memory three times over while it
is written, and those behind it hardly wait longer."""
_PAUSE = 0.05
_OVER = "this server stores nothing any more: it is ending"


def size_of(records: Records) -> int:
    """What records count for while they wait."""
    size = records.size() + RECORD_OVERHEAD * len(records.values)
    if records.headers is not None:
        size += HEADER_OVERHEAD * sum(map(len, records.headers))
    return size


class _Waiting:
    """A submission, and who waits for it."""

    __slots__ = ("done", "since", "size", "submission", "topic")

    def __init__(
        self, topic: Topic, submission: Submission, size: int, done: asyncio.Future[None]
    ) -> None:
        self.topic = topic
        self.submission = submission
        self.size = size
        self.done = done
        self.since = time.perf_counter()


class Committer:
    """Stores what is submitted, group after group, in a thread of its own."""

    def __init__(self, store: Store, writer: ThreadPoolExecutor, metrics: Metrics) -> None:
        self._store = store
        self._writer = writer
        self._metrics = metrics
        self._waiting: deque[_Waiting] = deque()
        self._size = 0
        self._held = 0
        self._something = asyncio.Event()
        self._enough = asyncio.Event()
        self._room: deque[asyncio.Future[None]] = deque()
        self._is_over = False

    async def wait_for_room(self) -> None:
        """Wait until something more may be submitted."""
        while self._held >= self._store.limits.max_waiting and not self._is_over:
            await self._wait_for_turn()

    async def _wait_for_turn(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._room.append(turn)
        await turn

    async def submit(self, topic: Topic, submission: Submission) -> asyncio.Future[None]:
        """Have records stored; waits for room, and returns what is done when they are."""
        limits = self._store.limits
        size = size_of(submission.records)
        while self._held and self._held + size > limits.max_waiting and not self._is_over:
            await self._wait_for_turn()
        if self._is_over:
            raise IngestError(_OVER)
        done = asyncio.get_running_loop().create_future()
        waiting = _Waiting(topic, submission, size, done)
        self._waiting.append(waiting)
        self._size += size
        self._held += size
        self._something.set()
        if self._size >= limits.group_size:
            self._enough.set()
        return waiting.done

    async def run(self) -> None:
        """Store groups until cancelled."""
        try:
            while True:
                await self._something.wait()
                try:
                    await self._linger()
                    await self._store_next()
                except Exception:  # noqa: BLE001 -- one group may fail, and others have to be stored
                    _log.exception("a group was not stored as it should be, and the next one is")
                    await asyncio.sleep(_PAUSE)  # what fails at once would let nobody else run
        finally:
            self._is_over = True
            self._fail(self._waiting, IngestError(_OVER))
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
            self._fail(group, IngestError(_OVER))
            raise
        finally:
            self._answer(group)

    def _fail(self, group: Iterable[_Waiting], fault: IngestError) -> None:
        for waiting in group:
            waiting.submission.fault = waiting.submission.fault or fault

    def _take(self) -> list[_Waiting]:
        """The next group: what came first, and no more than is good for memory."""
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
        """Wait for more, but not long: what came during the last commit has waited already."""
        waited = time.perf_counter() - self._waiting[0].since
        left = self._store.limits.linger - waited
        if left <= 0:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left):
                await self._enough.wait()

    def _commit(self, group: list[_Waiting]) -> None:
        submissions = ((waiting.topic, waiting.submission) for waiting in group)
        try:
            self._store.commit(group_by_topic(submissions))
        except Exception as error:  # noqa: BLE001 -- whoever waits has to know, whatever it is
            fault = IngestError(f"could not be stored: {error!r}")
            for waiting in group:
                if not waiting.submission.is_done:
                    waiting.submission.fault = waiting.submission.fault or fault

    def _answer(self, group: Collection[_Waiting]) -> None:
        now = time.perf_counter()
        for waiting in group:
            self._held -= waiting.size
            if not waiting.done.done():
                waiting.done.set_result(None)
        while self._room:
            turn = self._room.popleft()
            if not turn.done():
                turn.set_result(None)
        for waiting in group:
            self._metrics.committed(waiting.submission, now - waiting.since)
