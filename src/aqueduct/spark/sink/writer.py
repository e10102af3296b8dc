"""The writers that Spark calls: created on the driver, pickled for tasks, and committed by it.

Spark creates the writer of a stream for each batch, and again for its commit. The writer is
therefore stateless, and reads the ids of the query, the run and the batch from the task context.
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
from aqueduct.spark.backend import Backend, list_topics, server_backends
from aqueduct.spark.errors import SinkError, WrongOption
from aqueduct.spark.options import CONTINUE, SinkOptions, sink_options
from aqueduct.spark.sink.columns import choose_columns
from aqueduct.spark.sink.task_writer import (
    Sink,
    Step,
    clients,
    drop_if_broken,
    merged,
    write_error,
    write_part,
)
from aqueduct.spark.worker import freeze_heap

_log = logging.getLogger("aqueduct.spark")

_QUERY = "sql.streaming.queryId"
_RUN = "spark.jobGroup.id"
_BATCH = "streaming.sql.batchId"
"""Local properties of the tasks of a streaming query."""


@dataclass
class TaskCommit(WriterCommitMessage):
    """What a task has written, for the commit on the driver."""

    step: Step
    rows: dict[tuple[str, str], Fingerprint] = field(default_factory=dict)
    """By server and topic. Spark commits one attempt of each task, so the sum over all tasks is the
    fingerprint of the batch, however its rows are distributed."""
    positions: dict[tuple[str, str], list[TopicPosition]] = field(default_factory=dict)
    """By server and topic, the positions that the topics must match when the step ends."""


def _prepare(
    option_values: Mapping[str, str], schema: StructType, overwrite: bool, streaming: bool
) -> tuple[Sink, SinkOptions]:
    """Validate the options and the schema."""
    if overwrite:
        raise WrongOption(
            "topics are only appended to and never replaced: write with mode('append'), or in a "
            "stream with outputMode('append')"
        )
    options = sink_options(option_values, streaming=streaming)
    columns = choose_columns(schema, options)
    sink = Sink(
        tuple(server_backends(options)),
        columns,
        options.topic,
        options.partitions,
        is_dense=streaming and options.topic is not None,
        may_be_new=options.on_topic_replaced == CONTINUE,
        allow_extra=not options.fail_on_extra_rows,
    )
    return sink, options


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch; connects to the servers before the job starts, to report errors early."""

    def __init__(
        self, option_values: Mapping[str, str], schema: StructType, overwrite: bool
    ) -> None:
        self._sink, options = _prepare(option_values, schema, overwrite, streaming=False)
        self._is_named = options.write_id is not None
        job = options.write_id or uuid.uuid4().hex
        self._step = Step(job, options.write_step, uuid.uuid4().hex)
        self._backend: Backend | None = None
        _check_servers(self._sink)
        if self._sink.topic is not None:
            # Open and abandon a producer as a task does: this creates the topic, checks the
            # permission to write, and supersedes an earlier run that may still be writing.
            self._backend = self._sink.backend_of(self._sink.topic)
            producer = self._sink.producer(self._sink.topic, self._backend, self._step, 0)
            producer.abandon()
            if producer.is_done:
                _log.warning(
                    "write %r was completed before (its step %d has ended in topic %s on %s): "
                    "nothing is written, and it fails if its rows differ. For a new write, use "
                    "another writeId or a higher writeStep",
                    job, options.write_step, self._sink.topic, self._backend,
                )  # fmt: skip

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Write the rows of one task."""
        freeze_heap()
        written = TaskCommit(self._step)
        part = _context().partitionId()
        written.rows = write_part(self._sink, self._step, part, iterator, written.positions)
        return written

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """End the write; all tasks have succeeded."""
        _end(self._sink, messages, self._step, self._begun)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the write after a failed task. Stored rows stay; a retry adds the missing ones.

        A write without a name cannot be retried, so it ends here: otherwise the server would keep
        its state for a week.
        """
        if not self._is_named:
            with suppress(AqueductError):  # the error of the task is the one to report
                _end(self._sink, messages, self._step, self._begun, is_aborted=True)

    @property
    def _begun(self) -> list[tuple[str, str]]:
        """The server and topic in which the write began before any task ran."""
        return [] if self._backend is None else [(self._backend.server, self._sink.topic or "")]


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes one batch of a stream."""

    def __init__(
        self, option_values: Mapping[str, str], schema: StructType, overwrite: bool
    ) -> None:
        self._sink, _ = _prepare(option_values, schema, overwrite, streaming=True)
        _check_servers(self._sink)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Write the rows of one task."""
        freeze_heap()
        context = _context()
        step = step_of(context)
        written = TaskCommit(step)
        part = context.partitionId()
        written.rows = write_part(self._sink, step, part, iterator, written.positions)
        return written

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 -- Spark's name
    ) -> None:
        """End the batch; all its tasks have succeeded."""
        end_batch(self._sink, messages)

    def abort(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 -- Spark's name
    ) -> None:
        """Do nothing after a failed task: stored rows stay, and a restart adds the missing ones."""


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise SinkError("rows can only be written in a Spark task")
    return context


def step_of(context: TaskContext) -> Step:
    """Return the step for the query and the batch of a task."""
    found = [context.getLocalProperty(name) for name in (_QUERY, _BATCH, _RUN)]
    query, batch, run = found
    if query is None or batch is None or run is None:
        raise SinkError(
            f"the task does not know its query and batch ({_QUERY}, {_BATCH}, {_RUN} are "
            f"{found}), so its rows cannot be deduplicated"
        )
    try:
        return Step(query, int(batch), uuid.UUID(run).hex)
    except ValueError:
        raise SinkError(
            f"the job group ({_RUN}) of a streaming query is the id of its run, and here it is "
            f"{run!r}; do not set a job group inside a query"
        ) from None


_reached: set[Backend] = set()


def _check_servers(sink: Sink) -> None:
    """Raise `Unreachable` unless all servers answer; checked once per process."""
    for backend in sink.backends:
        if backend in _reached:
            continue
        with suppress(UnknownTopic, NotAllowed):
            list_topics(backend, sink.topic or "any", SinkError)
        _reached.add(backend)


def end_batch(sink: Sink, messages: Sequence[WriterCommitMessage | None]) -> None:
    """End a batch of a stream, also in a topic that it has no rows for.

    A topic that does not know the previous batch has therefore been replaced. This also detects a
    batch that had rows in an earlier run.
    """
    done = [each for each in messages if isinstance(each, TaskCommit)]
    if done and sink.topic is not None and not any(each.rows for each in done):
        backend = sink.backend_of(sink.topic)
        sink.producer(sink.topic, backend, done[0].step, 0).abandon()
        done[0].rows[backend.server, sink.topic] = Fingerprint()
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
    done = [each for each in messages if isinstance(each, TaskCommit)]
    backends = {backend.server: backend for backend in sink.backends}
    step = begun or next((each.step for each in done), None)
    if step is None:
        return
    rows: dict[tuple[str, str], Fingerprint] = dict.fromkeys(more, Fingerprint())
    for each in done:
        for topic_key, found in each.rows.items():
            rows[topic_key] = rows.get(topic_key, Fingerprint()) + found
    for (server, topic), total in sorted(rows.items(), key=lambda item: item[0]):
        backend = backends[server]
        stored = merged(at for each in done for at in each.positions.get((server, topic), ()))
        try:
            clients.get(backend).end_step(
                topic,
                step.job,
                step.number,
                step.run,
                positions=stored,
                rows=None if is_aborted else total,
                allow_extra=sink.allow_extra,
            )
        except AqueductError as error:
            drop_if_broken(backend, error)
            raise write_error(topic, backend, error) from error
        _log.info("%d rows written to topic %s on %s (%s)", total.count, topic, backend, step)
