"""Queries whose topic was recreated, or restored from an older copy, while they were stopped."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from aqueduct.security import ServerTLS, trust
from aqueduct.spark.backend import Backend
from aqueduct.spark.errors import SinkError, SourceError
from aqueduct.spark.sink.columns import ColumnNames
from aqueduct.spark.sink.task_writer import Sink, Step, write_part
from aqueduct.spark.sink.writer import TaskCommit, end_batch
from aqueduct.spark.source import fetch
from aqueduct.spark.source.reader import StreamReader
from aqueduct.spark.source.rows import row_schema
from tests.ingest.storing import spread, stored
from tests.spark.landing import Landing, stored_values

ROWS = row_schema(include_headers=False)
REPLACED = "it was (recreated|restored from an older copy)"
CASES = pytest.mark.parametrize(
    ("restored", "grown"),
    [(False, 10), (False, 600), (True, 10), (True, 600)],
    ids=["recreated", "recreated and longer", "restored", "restored and longer"],
)
Rows = list[tuple[int, int, bytes]]
SECONDS = 300
"""Far more than a query takes, also on a machine that is busy."""


@pytest.fixture(autouse=True)
def no_retry_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "RETRY_DELAYS", (0.0,))


class Source:
    """A landing that is read from its directory or from servers, and replaced in between."""

    def __init__(self, landing: Landing, tls: ServerTLS | None, trust_ca: str) -> None:
        self.landing = landing
        self._tls = tls
        self._trust_ca = trust_ca

    def copy(self) -> None:
        shutil.copytree(self.landing.directory / "logs", self.landing.directory.parent / "copy")

    def replace(self, restored: bool, grown: int, known: int = 200) -> None:
        shutil.rmtree(self.landing.directory / "logs")
        self.landing._next.pop("logs")
        if restored:
            copy = self.landing.directory.parent / "copy"
            shutil.copytree(copy, self.landing.directory / "logs")
            self.landing._next["logs"] = known + 1
        self.landing.write("logs", grown)

    @contextmanager
    def options(self) -> Iterator[dict[str, str]]:
        if self._tls is None:
            yield {"path": self.landing.path}
            return
        with self.landing.served(self._tls) as server:
            yield {"servers": server.address, "trustCa": self._trust_ca}

    def run(self, start: dict[str, Any] | None, **more: str) -> tuple[dict[str, Any], Rows]:
        """Run one batch of a query from some offsets; return its end offsets and its rows."""
        with self.options() as where:
            given = {"subscribe": "logs", "startingOffsets": "earliest", **where, **more}
            reader = StreamReader(given, ROWS)
            begun = reader.initialOffset() if start is None else start
            end = reader.latestOffset(begun, reader.getDefaultReadLimit())
            return end, self.read(reader, begun, end)

    def again(self, start: dict[str, Any], end: dict[str, Any], **more: str) -> Rows:
        """Return the rows of a batch that was planned before."""
        with self.options() as where:
            reader = StreamReader({"subscribe": "logs", **where, **more}, ROWS)
            return self.read(reader, start, end)

    def read(self, reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> Rows:
        return sorted(
            (row["partition"], row["offset"], row["value"])
            for partition in reader.partitions(start, end)
            for batch in reader.read(partition)
            for row in batch.to_pylist()
        )


@pytest.fixture(params=["path", "servers"])
def source(
    request: pytest.FixtureRequest, landing: Landing, tls: ServerTLS, trust_ca: str
) -> Source:
    return Source(landing, tls if request.param == "servers" else None, trust_ca)


def read_before(source: Source) -> tuple[dict[str, Any], dict[str, Any], Rows]:
    """Run a query over 300 rows, of which the last 100 are not in the copy."""
    source.landing.write("logs", 200)
    source.copy()
    middle, first = source.run(None)
    source.landing.write("logs", 100)
    end, second = source.run(middle)
    return middle, end, first + second


@CASES
def test_a_stream_from_a_checkpoint_fails_without_on_topic_replaced(
    source: Source, restored: bool, grown: int
) -> None:
    middle, end, rows = read_before(source)
    assert len(rows) == 300
    source.landing.write("logs", 1)  # it is the same topic, also after a restart
    assert len(source.run(end)[1]) == 1
    source.replace(restored, grown)
    for _ in range(2):
        with pytest.raises(SourceError, match=REPLACED):
            source.run(end)
        with pytest.raises(SourceError, match=REPLACED):
            source.again(middle, end)
    source.landing.write("logs", 700)  # restarting the query does not help
    with pytest.raises(SourceError, match=REPLACED):
        source.run(end)
    there = source.run(None)[1]
    for option in ({"failOnDataLoss": "false"}, {"onTopicReplaced": "restart"}):
        now, fresh = source.run(end, **option)
        assert fresh == there
        assert source.again(end, now) == fresh
        assert source.again(middle, end, **option) == []
        assert source.run(now) == (now, [])
    kept, rest = source.run(end, failOnDataLoss="false", onTopicReplaced="continue")
    ends = {int(part): at for part, at in end["topics"]["logs"]["offsets"].items()}
    assert rest == [row for row in there if row[1] >= ends[row[0]]]
    assert source.run(kept) == (kept, [])


def test_a_stream_that_the_copy_covers_continues(source: Source) -> None:
    source.landing.write("logs", 200)
    middle, first = source.run(None, maxOffsetsPerTrigger="150")
    source.copy()
    source.landing.write("logs", 100)
    source.replace(restored=True, grown=50)
    _, second = source.run(middle)
    assert sorted(first + second) == source.run(None)[1]


def test_a_restarted_stream_continues_where_the_copy_differs(
    source: Source, landing: Landing
) -> None:
    landing._next["logs"] = 301
    with landing.opened() as store:
        stored(store, spread(1, 200), "logs")
        source.copy()  # while a server runs: the copy has the same epochs
        stored(store, spread(201, 100), "logs")
    end, first = source.run(None)
    source.replace(restored=True, grown=50)
    with pytest.raises(SourceError, match=REPLACED):
        source.run(end)
    _, second = source.run(end, onTopicReplaced="restart")
    assert len(second) == 50
    before = set(source.run(None)[1]) - set(second)
    assert len(before) == 200
    assert before <= set(first)


def test_a_checkpoint_without_identity_is_accepted_with_one_warning(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    source.landing.write("logs", 200)
    end, first = source.run(None)
    old = {"version": 1, "topics": {"logs": end["topics"]["logs"]["offsets"]}}
    source.landing.write("logs", 50)
    now, second = source.run(old)
    assert caplog.text.count("lacks the identity of topic logs") == 1
    assert sorted(first + second) == source.run(None)[1]
    assert now["version"] == 2
    assert source.run(now) == (now, [])
    assert caplog.text.count("lacks the identity of topic logs") == 1
    source.replace(restored=False, grown=600)
    with pytest.raises(SourceError, match=REPLACED):
        source.run(now)


def test_a_task_does_not_read_a_topic_replaced_after_planning(
    source: Source,
) -> None:
    source.landing.write("logs", 200)
    with source.options() as where:
        reader = StreamReader({"subscribe": "logs", "startingOffsets": "earliest", **where}, ROWS)
        start = reader.initialOffset()
        partitions = reader.partitions(
            start, reader.latestOffset(start, reader.getDefaultReadLimit())
        )
    source.landing.directory.joinpath("logs").rename(source.landing.directory.parent / "away")
    source.landing._next.clear()
    source.landing.write("logs", 600)
    with source.options() as where:
        for partition in partitions:
            if "servers" in where:
                object.__setattr__(partition.backend, "server", where["servers"])  # type: ignore[attr-defined]
            with pytest.raises(SourceError, match=REPLACED):
                list(reader.read(partition))


# Writing


class Target:
    """A topic that a query writes into, and that is replaced while no server runs."""

    def __init__(self, landing: Landing, tls: ServerTLS, authority: ServerTLS) -> None:
        self.landing = landing
        self._tls = tls
        self._authority = authority

    def write(self, number: int, *values: str, **more: bool) -> Counter[bytes]:
        """Write one batch of a query; return the stored values."""
        with self.landing.served(self._tls) as server:
            backend = Backend(server=server.address, trust=trust(self._authority.certificate))
            sink = Sink((backend,), ColumnNames("value"), "logs", is_dense=True, **more)
            step = Step("query", number, uuid.uuid4().hex)
            written = TaskCommit(step)
            batches = [pa.record_batch({"value": list(values)})] if values else []
            written.rows = write_part(sink, step, 0, batches, written.positions)
            end_batch(sink, [written])
            return stored_values(backend, "logs")


@pytest.fixture
def target(landing: Landing, tls: ServerTLS, authority: ServerTLS) -> Target:
    return Target(landing, tls, authority)


@CASES
def test_a_batch_is_not_written_to_a_replaced_topic(
    target: Target, restored: bool, grown: int
) -> None:
    target.write(0, "a")
    source = Source(target.landing, None, "")
    source.copy()
    target.write(1, "b")
    target.write(2)
    target.landing._next["logs"] = 1
    source.replace(restored, grown, known=0)
    before = target.landing.ends("logs")
    for _ in range(2):
        with pytest.raises(SinkError, match="recreated or restored from an older copy"):
            target.write(3, "c")
    assert target.landing.ends("logs") == before
    target.write(3, "c", may_be_new=True)
    stored = target.write(4, "d")
    assert (stored[b"a"], stored[b"b"], stored[b"c"], stored[b"d"]) == (restored, 0, 1, 1)


def test_only_the_first_batch_creates_a_topic(target: Target) -> None:
    target.write(0, "a")
    shutil.rmtree(target.landing.directory / "logs")
    with pytest.raises(SinkError, match="job 'query' has ended its step 0 in it, but it does not"):
        target.write(1, "b")
    assert not (target.landing.directory / "logs").exists()


def test_empty_batches_end_their_step_in_the_topic(target: Target) -> None:
    for number in range(4):
        target.write(number)
    assert target.write(4, "a") == {b"a": 1}
    assert target.write(4, "a") == {b"a": 1}  # a batch that is replayed
    target.write(5)
    assert target.write(6, "b") == {b"a": 1, b"b": 1}


# In a real Spark


def copy_stream(spark: SparkSession, checkpoint: Path, source: dict[str, str], **sink: str) -> None:
    """Copy what is new from one topic to another."""
    stream = spark.readStream.format("aqueduct").options(
        subscribe="logs", startingOffsets="earliest", **source
    )
    query = (
        stream.load()
        .select("value")
        .writeStream.format("aqueduct")
        .options(topic="copies", **sink)
        .option("checkpointLocation", str(checkpoint))
        .queryName(f"q{uuid.uuid4().hex}")
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()


def test_a_spark_query_does_not_write_to_a_replaced_topic(
    spark: SparkSession,
    landing: Landing,
    tls: ServerTLS,
    authority: ServerTLS,
    trust_ca: str,
    tmp_path: Path,
) -> None:
    target = Landing(tmp_path / "target")

    def run(**sink: str) -> None:
        with target.served(tls) as server:
            to = {"servers": server.address, "trustCa": trust_ca, **sink}
            copy_stream(spark, tmp_path / "checkpoint", {"path": landing.path}, **to)

    landing.write("logs", 50)
    run()
    shutil.copytree(target.directory / "copies", tmp_path / "copy")
    landing.write("logs", 50)
    run()
    shutil.rmtree(target.directory / "copies")
    shutil.copytree(tmp_path / "copy", target.directory / "copies")
    target.write("copies", 300)
    landing.write("logs", 50)
    with pytest.raises(StreamingQueryException, match=r"recreated or restored from an older"):
        run()
    run(onTopicReplaced="continue")
    with target.served(tls) as server:
        backend = Backend(server=server.address, trust=trust(authority.certificate))
        assert stored_values(backend, "copies").total() == 50 + 300 + 50


def test_a_spark_query_does_not_read_a_replaced_topic(
    spark: SparkSession, landing: Landing, tls: ServerTLS, trust_ca: str, tmp_path: Path
) -> None:
    target = Landing(tmp_path / "target")

    def run(**more: str) -> None:
        with landing.served(tls) as server, target.served(tls) as sink:
            where = {"servers": server.address, "trustCa": trust_ca, **more}
            to = {"servers": sink.address, "trustCa": trust_ca}
            copy_stream(spark, tmp_path / "checkpoint", where, **to)

    landing.write("logs", 100)
    run()
    shutil.rmtree(landing.directory / "logs")
    landing._next.clear()
    landing.write("logs", 150)
    with pytest.raises(StreamingQueryException, match="it was recreated"):
        run()
    run(onTopicReplaced="restart")
    assert sum(target.ends("copies").values()) == 250
