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
from aqueduct.ingest.dedup.scope import Fingerprint
from aqueduct.ingest.errors import NotAllowed, UnknownTopic
from aqueduct.ingest.identity import TopicPosition
from aqueduct.spark.backend import Place, ask_topics, servers
from aqueduct.spark.errors import SinkError, WrongOption
from aqueduct.spark.option_values import CONTINUE
from aqueduct.spark.sink.columns import choose_columns
from aqueduct.spark.sink.options import SinkOptions, sink_options
from aqueduct.spark.sink.task_writer import (
    Sink,
    Step,
    clients,
    drop_if_broken,
    failed,
    merged,
    write_part,
)
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
    rows: dict[tuple[str, str], Fingerprint] = field(default_factory=dict)
    """By server and topic. Spark commits one attempt of each task, so the sum over all tasks is the
    fingerprint of the batch, however its rows are distributed."""
    positions: dict[tuple[str, str], list[TopicPosition]] = field(default_factory=dict)
    """By server and topic, the positions that the topics must match when the step ends."""


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
    sink = Sink(
        tuple(servers(options)),
        columns,
        options.topic,
        options.partitions,
        is_dense=streaming and options.topic is not None,
        may_be_new=options.on_topic_replaced == CONTINUE,
        allow_extra=not options.fail_on_extra_rows,
    )
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
                    "write %r was done before (its step %d has ended in topic %s on %s): nothing "
                    "is written, and it fails if its rows differ. For a new write, use another "
                    "writeId or a higher writeStep",
                    job, options.write_step, self._sink.topic, self._home,
                )  # fmt: skip

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task."""
        settle()
        written = Written(self._step)
        part = _context().partitionId()
        written.rows = write_part(self._sink, self._step, part, iterator, written.positions)
        return written

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
                _end(self._sink, messages, self._step, self._begun, is_aborted=True)

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
        written = Written(step)
        part = context.partitionId()
        written.rows = write_part(self._sink, step, part, iterator, written.positions)
        return written

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 -- Spark's name
    ) -> None:
        """All tasks of a batch are done."""
        end_batch(self._sink, messages)

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


def end_batch(sink: Sink, messages: Sequence[WriterCommitMessage | None]) -> None:
    """End a batch of a stream, also in a topic that it has no rows for.

    A topic that does not know the previous batch has therefore been replaced. This also detects a
    batch that had rows in an earlier run.
    """
    done = [each for each in messages if isinstance(each, Written)]
    if done and sink.topic is not None and not any(each.rows for each in done):
        home = sink.home_of(sink.topic)
        sink.producer(sink.topic, home, done[0].step, 0).abandon()
        done[0].rows[home.server, sink.topic] = Fingerprint()
    _end(sink, messages)


def _end(
    sink: Sink,
    messages: Sequence[WriterCommitMessage | None],
    begun: Step | None = None,
    more: Sequence[tuple[str, str]] = (),
    is_aborted: bool = False,
) -> None:
    """End a step on all servers, with the fingerprint of its rows.

    Raise if a server has other rows for that step. An aborted write has no fingerprint.
    """
    done = [each for each in messages if isinstance(each, Written)]
    places = {place.server: place for place in sink.places}
    step = begun or next((each.step for each in done), None)
    if step is None:
        return
    rows: dict[tuple[str, str], Fingerprint] = dict.fromkeys(more, Fingerprint())
    for each in done:
        for where, found in each.rows.items():
            rows[where] = rows.get(where, Fingerprint()) + found
    for (server, topic), total in sorted(rows.items(), key=lambda item: item[0]):
        place = places[server]
        stored = merged(at for each in done for at in each.positions.get((server, topic), ()))
        try:
            clients.get(place).end_step(
                topic,
                step.job,
                step.number,
                step.run,
                positions=stored,
                rows=None if is_aborted else total,
                allow_extra=sink.allow_extra,
            )
        except AqueductError as error:
            drop_if_broken(place, error)
            raise failed(topic, place, error) from error
        _log.info("%d rows written to topic %s on %s (%s)", total.count, topic, place, step)
