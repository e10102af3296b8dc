"""A program that writes with Spark while tasks fail, workers are killed and queries are stopped.

It is a separate process because it needs a session that retries failed tasks.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

import aqueduct.spark

VALUES, REPEATED = 2_000, 4
"""The number of distinct values, and of tasks that write each."""
WIDTH = 400
"""The length of a value; large, so that rows pass the buffers between processes."""
SMALL = {"spark.sql.execution.arrow.maxRecordsPerBatch": 250}
SECONDS = 60

Batches = Iterator[pa.RecordBatch]


def stored(topic: str, server: str, certificate: str) -> int:
    """Return the number of rows of a topic."""
    from aqueduct.ingest.errors import UnknownTopic
    from aqueduct.security import trust
    from aqueduct.spark.backend import Backend

    try:
        (info,) = Backend(server=server, trust=trust(certificate)).topics(topic)
    except UnknownTopic:
        return 0
    return sum(part.next_offset for part in info.partitions)


def failing(
    topic: str, server: str, certificate: str, fail: Callable[[int, int], None]
) -> Callable[[Batches], Batches]:
    """Yield rows, and fail when some of them are stored."""

    def function(batches: Batches) -> Batches:
        context = TaskContext.get()
        assert context is not None
        before = stored(topic, server, certificate)
        for number, batch in enumerate(batches):
            yield batch
            if number == 4:
                until = time.monotonic() + 20
                while stored(topic, server, certificate) <= before and context.attemptNumber() == 0:
                    assert time.monotonic() < until, "nothing was stored"
                    time.sleep(0.01)
                fail(context.partitionId(), context.attemptNumber())

    return function


def raise_at_first(part: int, attempt: int) -> None:
    """Let every task fail once."""
    if attempt == 0:
        raise RuntimeError(f"part {part} fails at its first attempt")


def kill_the_others(part: int, attempt: int) -> None:
    """Kill the workers of all running tasks, also those that write."""
    if part == 0 and attempt == 0:
        for process in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == os.getppid() and int(process.name) != os.getpid():
                os.kill(int(process.name), signal.SIGKILL)


def raise_always(part: int, attempt: int) -> None:
    """Stop a query in the middle of a batch."""
    if part == 0:
        raise RuntimeError("part 0 always fails")


def main(server: str, certificate: str, directory: str) -> None:
    spark = aqueduct.spark.session("failing", "local[2,2]", **SMALL)
    there = {"servers": server, "trustCa": certificate}

    def broken(frame: DataFrame, topic: str, fail: Callable[[int, int], None]) -> DataFrame:
        return frame.mapInArrow(failing(topic, server, certificate, fail), frame.schema)

    rows = spark.range(0, VALUES * REPEATED, 1, REPEATED).select(
        f.lpad((f.col("id") % VALUES).cast("string"), WIDTH, "0").alias("value")
    )
    for topic, fail in (("raised", raise_at_first), ("killed", kill_the_others)):
        writer = broken(rows, topic, fail).write.format("aqueduct").mode("append")
        writer.options(topic=topic, **there).save()

    def copy(tasks: int, fail: Callable[[int, int], None] | None) -> None:
        stream = (
            spark.readStream.format("aqueduct")
            .options(subscribe="raised", startingOffsets="earliest", minPartitions=tasks, **there)
            .load()
            .select("value")
        )
        query = (
            (stream if fail is None else broken(stream, "copy", fail))
            .writeStream.format("aqueduct")
            .options(topic="copy", checkpointLocation=f"{directory}/checkpoint", **there)
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(SECONDS)
        finally:
            query.stop()

    with pytest.raises(Exception, match="part 0 always fails"):
        copy(3, raise_always)
    assert 0 < stored("copy", server, certificate) < VALUES * REPEATED
    copy(5, None)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
