"""Writers, as Spark calls them: made on the driver, pickled for tasks, and asked to commit.

Spark makes the writer of a stream anew for each batch, and once more to commit it. So nothing is
kept in it, and which query, run and batch it is for is learnt from where the tasks run.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from aqueduct.errors import AqueductError
from aqueduct.ingest.faults import NotAllowed, UnknownTopic
from aqueduct.spark.columns import choose_columns
from aqueduct.spark.faults import SinkError, WrongOption
from aqueduct.spark.origin import Place, ask_topics, servers
from aqueduct.spark.sink import Sink, Step, clients, drop_if_broken, failed, write_part
from aqueduct.spark.sink_options import SinkOptions, sink_options
from aqueduct.spark.worker import settle

_log = logging.getLogger("aqueduct.spark")

_QUERY = "sql.streaming.queryId"
_RUN = "spark.jobGroup.id"
_BATCH = "streaming.sql.batchId"
"""Local properties of the tasks of a streaming query."""


@dataclass
class Written(WriterCommitMessage):
    """What a task has written."""

    step: Step
    rows: dict[tuple[str, str], int] = field(default_factory=dict)
    """By server and topic."""


def _prepare(
    given: Mapping[str, str], schema: StructType, overwrite: bool, streaming: bool
) -> tuple[Sink, SinkOptions]:
    """What to write where."""
    if overwrite:
        raise WrongOption(
            "topics are added to and never replaced: write with mode('append'), or in a stream "
            "with outputMode('append')"
        )
    options = sink_options(given, streaming=streaming)
    columns = choose_columns(schema, options)
    sink = Sink(tuple(servers(options)), columns, options.topic, options.partitions)
    return sink, options


class BatchWriter(DataSourceArrowWriter):
    """Writes once. The servers are asked before there is a job, so that what is wrong is told."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._sink, options = _prepare(given, schema, overwrite, streaming=False)
        self._is_named = options.write_id is not None
        job = options.write_id or uuid.uuid4().hex
        self._step = Step(job, options.write_step, uuid.uuid4().hex)
        self._home: Place | None = None
        _reach(self._sink)
        if self._sink.topic is not None:
            # What a task would do first: it shows that the topic is there, or can be, and may be
            # written, and it puts an end to what a run before this one may still be writing.
            self._home = self._sink.home_of(self._sink.topic)
            producer = self._sink.producer(self._sink.topic, self._home, self._step, 0)
            producer.abandon()
            if producer.is_done:
                _log.warning(
                    "write %r was done before (its step %d is over in topic %s on %s), and nothing "
                    "is written; what is another write has another writeId, or a higher writeStep",
                    job, options.write_step, self._sink.topic, self._home,
                )  # fmt: skip

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task."""
        settle()
        rows = write_part(self._sink, self._step, _context().partitionId(), iterator)
        return Written(self._step, rows)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All tasks are done."""
        _end(self._sink, messages, self._step, self._begun)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """A task has failed for good. What is stored stays; a further try adds what is missing.

        Nobody can try a write again that has no name. It is over, or the server would keep its rows
        and its place among the jobs for a week.
        """
        if not self._is_named:
            with suppress(AqueductError):  # why it has failed is what is to be told
                _end(self._sink, messages, self._step, self._begun)

    @property
    def _begun(self) -> list[tuple[str, str]]:
        """Where the write has begun though no task may have written: server and topic."""
        return [] if self._home is None else [(self._home.server, self._sink.topic or "")]


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes batch after batch."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._sink, _ = _prepare(given, schema, overwrite, streaming=True)
        _reach(self._sink)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task."""
        settle()
        context = _context()
        step = step_of(context)
        return Written(step, write_part(self._sink, step, context.partitionId(), iterator))

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 -- Spark's name
    ) -> None:
        """All tasks of a batch are done."""
        _end(self._sink, messages)

    def abort(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 -- Spark's name
    ) -> None:
        """A task has failed for good. What is stored stays; a restart adds what is missing."""


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise SinkError("rows are written by tasks of Spark, and this is none")
    return context


def step_of(context: TaskContext) -> Step:
    """Which batch of which query a task is of."""
    found = [context.getLocalProperty(name) for name in (_QUERY, _BATCH, _RUN)]
    query, batch, run = found
    if query is None or batch is None or run is None:
        raise SinkError(
            f"Spark does not tell which batch of which query this is ({_QUERY}, {_BATCH}, {_RUN} "
            f"are {found}), so rows could not be told from those that are stored already"
        )
    try:
        return Step(query, int(batch), uuid.UUID(run).hex)
    except ValueError:
        raise SinkError(
            f"a streaming query has its run's id as job group ({_RUN}), and here that is {run!r}; "
            "do not set a job group inside of a query"
        ) from None


_reached: set[Place] = set()


def _reach(sink: Sink) -> None:
    """Raise unless there are servers; asked once in a process."""
    for place in sink.places:
        if place in _reached:
            continue
        with suppress(UnknownTopic, NotAllowed):
            ask_topics(place, sink.topic or "any", SinkError)
        _reached.add(place)


def _end(
    sink: Sink,
    messages: Sequence[WriterCommitMessage | None],
    begun: Step | None = None,
    more: Sequence[tuple[str, str]] = (),
) -> None:
    """Tell all servers that a step is over: its rows need not be remembered one by one."""
    done = [each for each in messages if isinstance(each, Written)]
    places = {place.server: place for place in sink.places}
    step = begun or next((each.step for each in done), None)
    if step is None:
        return
    rows: dict[tuple[str, str], int] = dict.fromkeys(more, 0)
    for each in done:
        for where, count in each.rows.items():
            rows[where] = rows.get(where, 0) + count
    for (server, topic), count in sorted(rows.items()):
        place = places[server]
        try:
            clients.get(place).end_step(topic, step.job, step.number, step.run)
        except AqueductError as error:
            drop_if_broken(place, error)
            raise failed(topic, place, error) from error
        _log.info("%d rows written to topic %s on %s (%s)", count, topic, place, step)
