"""Writing with a real Spark: batches, streams, restarts, round trips and errors."""

from __future__ import annotations

import pickle
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from aqueduct.ingest.dedup.scope import Fingerprint
from aqueduct.ingest.server.permissions import Grant, Permissions
from aqueduct.security import ServerTLS, trust
from aqueduct.spark.backend import Backend
from aqueduct.spark.errors import SinkError, WrongOption
from aqueduct.spark.sink.columns import ColumnNames
from aqueduct.spark.sink.task_writer import Sink, Step, write_part
from aqueduct.spark.sink.writer import BatchWriter, StreamWriter, TaskCommit, step_of
from tests.spark.landing import Landing, stored_rows, stored_values

SECONDS = 60
TOKEN = "a-long-random-token"
VALUE = StructType([StructField("value", StringType())])


@pytest.fixture
def backend(landing: Landing, tls: ServerTLS, authority: ServerTLS) -> Iterator[Backend]:
    with landing.served(tls) as server:
        yield Backend(server=server.address, trust=trust(authority.certificate))


@pytest.fixture
def there(backend: Backend, trust_ca: str) -> dict[str, str]:
    """Return the options that name the server."""
    return {"servers": backend.server, "trustCa": trust_ca}


def numbers(spark: SparkSession, count: int, tasks: int = 2) -> DataFrame:
    """Return values that occur twice each, in different tasks."""
    return spark.range(0, 2 * count, 1, tasks).select((f.col("id") % count).cast("string"))


def write(frame: DataFrame, **options: str) -> None:
    frame.write.format("aqueduct").mode("append").options(**options).save()


def twice(count: int) -> Counter[bytes]:
    return Counter({b"%d" % each: 2 for each in range(count)})


def test_a_batch_is_stored_with_all_its_columns(
    spark: SparkSession, backend: Backend, there: dict[str, str]
) -> None:
    frame = spark.range(100).select(
        f.concat(f.lit("v"), "id").alias("value"),
        f.col("id").cast("string").cast("binary").alias("key"),
        f.create_map(f.lit("n"), f.col("id").cast("string").cast("binary")).alias("headers"),
        f.timestamp_micros(f.lit(1_700_000_000_123_457) + f.col("id")).alias("timestamp"),
    )
    write(frame, topic="logs", partitions="3", **there)
    rows = sorted(stored_rows(backend, "logs"), key=lambda row: int(row["key"]))
    assert [row["value"] for row in rows] == [b"v%d" % each for each in range(100)]
    assert [row["key"] for row in rows] == [b"%d" % each for each in range(100)]
    assert all({"name": "n", "value": row["key"]} in row["headers"] for row in rows)
    moment = datetime(2023, 11, 14, 22, 13, 20, 123457, UTC)
    assert rows[0]["timestamp"] == moment
    assert rows[99]["timestamp"] == moment.replace(microsecond=123556)
    assert {row["partition"] for row in rows} == {0, 1, 2}


def test_options_map_columns_with_other_names(
    spark: SparkSession, backend: Backend, there: dict[str, str]
) -> None:
    frame = spark.range(10).select(
        f.col("id").cast("string").alias("name"), f.lit("x").alias("text")
    )
    write(frame, topic="logs", key="name", value="text", **there)
    assert {row["key"] for row in stored_rows(backend, "logs")} == {b"%d" % at for at in range(10)}


def test_only_named_writes_are_deduplicated(
    spark: SparkSession, backend: Backend, there: dict[str, str]
) -> None:
    frame = numbers(spark, 50).toDF("value")
    for tasks in (2, 3):
        write(frame.repartition(tasks), topic="named", writeId="copy", **there)
        write(frame, topic="unnamed", **there)
    assert stored_values(backend, "named") == twice(50)
    assert stored_values(backend, "unnamed").total() == 200
    for number in ("1", "2", "2"):
        write(frame, topic="named", writeId="copy", writeStep=number, **there)
    assert stored_values(backend, "named").total() == 300


def test_a_column_selects_the_topic_of_a_row(
    spark: SparkSession, backend: Backend, there: dict[str, str]
) -> None:
    even = f.when(f.col("value") % 2 == 0, "even").otherwise("odd").alias("topic")
    frame = numbers(spark, 40).toDF("value").select("value", even)
    for _ in range(2):
        write(frame, writeId="sorted", **there)
    assert stored_values(backend, "even") + stored_values(backend, "odd") == twice(40)
    assert stored_values(backend, "even").total() == 40


def test_rows_with_the_same_id_are_stored_once(
    spark: SparkSession, backend: Backend, there: dict[str, str]
) -> None:
    frame = numbers(spark, 50).toDF("value").withColumn("order", f.col("value"))
    write(frame, topic="logs", idColumn="order", **there)
    assert stored_values(backend, "logs") == Counter({b"%d" % each: 1 for each in range(50)})


def test_an_empty_table_can_be_written(
    spark: SparkSession, backend: Backend, there: dict[str, str]
) -> None:
    frame = numbers(spark, 10).toDF("value")
    write(frame.limit(0), topic="logs", **there)
    write(frame.where("false"), topic="logs", writeId="none", **there)
    assert stored_values(backend, "logs").total() == 0
    write(frame.select("value", f.lit("logs").alias("topic")).limit(0), **there)


class Query:
    """Copies the available rows of a topic to another."""

    def __init__(self, spark: SparkSession, checkpoint: Path, there: dict[str, str]) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._there = there

    def run(self, **options: str) -> None:
        stream = (
            self._spark.readStream.format("aqueduct")
            .options(subscribe="logs", startingOffsets="earliest", includeHeaders="true")
            .options(maxOffsetsPerTrigger="40", minPartitions="3", **self._there)
            .load()
        )
        query = (
            stream.select("key", "value", "headers", "timestamp")
            .writeStream.format("aqueduct")
            .options(topic="copy", **{**self._there, **options})
            .option("checkpointLocation", str(self._checkpoint))
            .queryName(f"q{uuid.uuid4().hex}")
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(SECONDS)
        finally:
            query.stop()

    def forget_commit(self) -> None:
        """Remove the last commit, as if the driver had died before it wrote it."""
        self._forget("commits")

    def go_back(self, batches: int = 1) -> None:
        """Set the checkpoint back by some batches."""
        for _ in range(batches):
            self._forget("commits")
            self._forget("offsets")

    def _forget(self, what: str) -> None:
        files = (self._checkpoint / what).glob("[0-9]*")
        last = max(files, key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)

    def copy(self, checkpoint: Path) -> Query:
        """Return the query of a copied checkpoint."""
        shutil.copytree(self._checkpoint, checkpoint)
        return Query(self._spark, checkpoint, self._there)


def content(backend: Backend, topic: str) -> Counter[tuple[Any, ...]]:
    rows = stored_rows(backend, topic)
    return Counter(
        (
            row["key"],
            row["value"],
            row["timestamp"],
            tuple(
                (header["name"], header["value"])
                for header in row["headers"] or ()
                if header["name"] != "aqueduct-id"
            ),
        )
        for row in rows
    )


def test_a_stream_stores_each_row_once_over_restarts(
    spark: SparkSession, landing: Landing, tls: ServerTLS, trust_ca: str, tmp_path: Path
) -> None:
    landing.write("logs", 100, headers=[[("n", b"h")]] * 100)
    with landing.served(tls) as server:
        address = server.address
        there = {"servers": address, "trustCa": trust_ca}
        backend = Backend(server=address, trust=trust(trust_ca.encode()))
        query = Query(spark, tmp_path / "checkpoint", there)
        query.run()
        wanted = content(backend, "logs")
        assert wanted.total() == 100
        assert content(backend, "copy") == wanted
        # The server has ended the step, but Spark has not committed it: the batch is replayed.
        query.forget_commit()
        query.run()
        assert content(backend, "copy") == wanted
        producers = {row["producer_id"].split(".")[1] for row in stored_rows(backend, "copy")}
        assert producers == {"0", "1", "2"}
    landing.write("logs", 30)
    with landing.served(tls, address):
        query.forget_commit()
        query.run()
        wanted = content(backend, "logs")
        assert wanted.total() == 130
        assert content(backend, "copy") == wanted


def test_a_replayed_batch_with_other_rows_fails_and_stores_nothing(
    spark: SparkSession, landing: Landing, tls: ServerTLS, trust_ca: str, tmp_path: Path
) -> None:
    landing.write("logs", 60)
    with landing.served(tls) as server:
        address = server.address
        there = {"servers": address, "trustCa": trust_ca}
        backend = Backend(server=address, trust=trust(trust_ca.encode()))
        blue = Query(spark, tmp_path / "blue", there)
        blue.run()
        before = content(backend, "copy")
        assert before == content(backend, "logs")
        green = blue.copy(tmp_path / "green")
    landing.write("logs", 10)
    with landing.served(tls, address):
        blue.go_back()
        fault = "step 1 of job '[0-9a-f-]+' ended with 20 rows and was replayed with 30:"
        with pytest.raises(Exception, match=fault):
            blue.run()
        assert content(backend, "copy") == before
        # If two copies continue in turn, the second must have the rows of the first.
        green.run()
        wanted = content(backend, "logs")
        assert content(backend, "copy") == wanted
        late = green.copy(tmp_path / "late")
        late.go_back()
    landing.write("logs", 5)
    with landing.served(tls, address):
        with pytest.raises(Exception, match="ended with 10 rows and was replayed with 15:"):
            late.run()
        assert content(backend, "copy") == wanted
        green.run()
        assert content(backend, "copy") == content(backend, "logs")


def test_an_older_checkpoint_replays_the_same_rows(
    spark: SparkSession, landing: Landing, tls: ServerTLS, trust_ca: str, tmp_path: Path
) -> None:
    landing.write("logs", 60)
    with landing.served(tls) as server:
        there = {"servers": server.address, "trustCa": trust_ca}
        backend = Backend(server=server.address, trust=trust(trust_ca.encode()))
        query = Query(spark, tmp_path / "checkpoint", there)
        query.run()
        query.go_back(2)
        query.run()
        assert content(backend, "copy") == content(backend, "logs")


def test_an_interrupted_batch_that_is_planned_again_fails_if_its_rows_differ(
    spark: SparkSession, landing: Landing, tls: ServerTLS, trust_ca: str, tmp_path: Path
) -> None:
    landing.write("logs", 10)
    with landing.served(tls) as server:
        there = {"servers": server.address, "trustCa": trust_ca}
        backend = Backend(server=server.address, trust=trust(trust_ca.encode()))
        query = Query(spark, tmp_path / "checkpoint", there)
        query.run()
        # Another driver of the same query has begun the next batch, and died.
        name = stored_rows(backend, "copy")[0]["producer_id"].split(".")[0]
        sink = Sink((backend,), ColumnNames("value"), "copy")
        write_part(sink, Step(name, 1, uuid.uuid4().hex), 0, [pa.record_batch({"value": ["x"]})])
        address = server.address
    landing.write("logs", 5)
    with landing.served(tls, address):
        fault = (
            "step 1 of job '[0-9a-f-]+' has 6 stored rows, but run .* ends it with 5: .*Rows=false"
        )
        with pytest.raises(Exception, match=fault):
            query.run()
        query.run(failOnExtraRows="false")
        assert stored_values(backend, "copy") == stored_values(backend, "logs") + Counter([b"x"])


@pytest.mark.parametrize("id_column", [None, "name"])
def test_a_reused_write_id_with_other_rows_fails(
    spark: SparkSession, backend: Backend, there: dict[str, str], id_column: str | None
) -> None:
    options = {"topic": "logs", "writeId": "copy", "writeStep": "4", **there}
    frame = numbers(spark, 30).toDF("value")
    if id_column is not None:
        frame = frame.distinct().withColumn(id_column, f.concat("value", f.lit(" id")))
        options["idColumn"] = id_column
    write(frame, **options)
    write(frame.repartition(3), **options)
    before = stored_values(backend, "logs")
    count = frame.count()
    fault = f"step 4 of job 'copy' ended with {count} rows and was replayed with"
    for other, found in (
        (frame.where("value != '7'"), frame.where("value != '7'").count()),
        (frame.where("false"), 0),
    ):
        with pytest.raises(Exception, match=f"{fault} {found}:"):
            write(other, **options)
    assert stored_values(backend, "logs") == before


def test_foreach_batch_deduplicates_by_write_id(
    spark: SparkSession, landing: Landing, tls: ServerTLS, trust_ca: str, tmp_path: Path
) -> None:
    landing.write("logs", 50)
    with landing.served(tls) as server:
        there = {"servers": server.address, "trustCa": trust_ca}

        def copy(batch: DataFrame, number: int) -> None:
            for _ in range(2):
                write(
                    batch.select("value"),
                    topic="copy",
                    writeId="copy-logs",
                    writeStep=str(number),
                    **there,
                )

        stream = spark.readStream.format("aqueduct").options(
            subscribe="logs", startingOffsets="earliest", maxOffsetsPerTrigger="30", **there
        )
        query = stream.load().writeStream.foreachBatch(copy).trigger(availableNow=True).start()
        assert query.awaitTermination(SECONDS)
        backend = Backend(server=server.address, trust=trust(trust_ca.encode()))
        assert stored_values(backend, "copy") == stored_values(backend, "logs")


def jobs(spark: SparkSession) -> int:
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup())


@pytest.mark.parametrize(
    ("columns", "options", "fault"),
    [
        (["value"], {"topik": "x"}, "there is no option 'topik'"),
        (["value"], {"partitions": "many"}, "option partitions is a whole number"),
        (["value", "id"], {}, "column 'id' would not be stored"),
        (["id"], {}, "there is no column value"),
        (["id"], {"value": "id"}, r"column 'id' \(value\) is bigint, and must be string"),
        (["value"], {"partitions": "500"}, "'logs' on server .* cannot be written: .*partitions"),
        (["value"], {"trustCa": "none.pem"}, "option trustCa: "),
    ],
)
def test_errors_are_reported_before_the_job_starts(
    spark: SparkSession,
    there: dict[str, str],
    columns: list[str],
    options: dict[str, str],
    fault: str,
) -> None:
    frame = spark.range(1).select("id", f.col("id").cast("string").alias("value")).select(columns)
    before = jobs(spark)
    with pytest.raises(Exception, match=fault):
        write(frame, **{**there, "topic": "logs", **options})
    assert jobs(spark) == before


@pytest.mark.parametrize("kind", [BatchWriter, StreamWriter])
def test_an_unreachable_server_is_reported_at_once(kind: type[BatchWriter | StreamWriter]) -> None:
    began = time.monotonic()
    with pytest.raises(SinkError, match=r"server 127.0.0.1:9 cannot be reached: .* UDP port"):
        kind({"servers": "127.0.0.1:9", "topic": "logs"}, VALUE, False)
    assert time.monotonic() - began < 100


def test_a_topic_is_never_replaced(spark: SparkSession, there: dict[str, str]) -> None:
    frame = numbers(spark, 1).toDF("value")
    writer = frame.write.format("aqueduct").mode("overwrite").options(topic="logs", **there)
    with pytest.raises(Exception, match=r"never replaced: write with mode\('append'\)"):
        writer.save()


def test_a_token_without_permission_is_reported_before_the_job_starts(
    spark: SparkSession, landing: Landing, tls: ServerTLS, trust_ca: str
) -> None:
    permissions = Permissions({TOKEN: Grant(["logs"], [])})
    with landing.served(tls, permissions=permissions) as server:
        there = {"servers": server.address, "trustCa": trust_ca}
        frame = numbers(spark, 5).toDF("value")
        write(frame, topic="logs", token=TOKEN, **there)
        before = jobs(spark)
        with pytest.raises(
            Exception, match=r"may not write to topic 'other'; set option token to one"
        ):
            write(frame, topic="other", token=TOKEN, **there)
        with pytest.raises(Exception, match="requires a valid token"):
            write(frame, topic="logs", **there)
        assert jobs(spark) == before


def test_errors_of_a_stream_are_reported_before_a_task_runs(
    spark: SparkSession, landing: Landing, tls: ServerTLS, trust_ca: str, tmp_path: Path
) -> None:
    landing.write("logs", 5)
    with landing.served(tls) as server:
        there = {"servers": server.address, "trustCa": trust_ca}
        query = Query(spark, tmp_path / "checkpoint", there)
        for options, fault in (
            ({"writeId": "x"}, "option writeId is for a batch only"),
            ({"key": "none"}, "option key: there is no column 'none'"),
            ({"trustCa": "none.pem"}, "option trustCa: "),
        ):
            shutil.rmtree(tmp_path / "checkpoint", ignore_errors=True)
            with pytest.raises(Exception, match=fault):
                query.run(**options)


def test_an_invalid_row_fails_the_write_with_the_reason(
    spark: SparkSession, there: dict[str, str]
) -> None:
    null = f.when(f.col("id") != 7, f.col("id").cast("string")).alias("value")
    frame = spark.range(0, 10, 1, 1).select(null, f.col("id").cast("string").alias("key"))
    with pytest.raises(Exception, match=r"row 8 of this task, with key '7': column value is null"):
        write(frame, topic="logs", **there)


def test_a_writer_is_pickled_for_tasks_and_commits_what_they_wrote(there: dict[str, str]) -> None:
    writer = BatchWriter({"topic": "logs", **there}, VALUE, False)
    again = pickle.loads(pickle.dumps(writer))
    assert again._step == writer._step
    with pytest.raises(SinkError, match="can only be written in a Spark task"):
        again.write(iter([]))
    again.abort([None])
    rows = {(there["servers"], "logs"): Fingerprint()}
    again.commit([pickle.loads(pickle.dumps(TaskCommit(writer._step, rows))), None])


@pytest.mark.parametrize("named", [False, True])
def test_a_failed_write_ends_unless_it_has_a_name_to_retry_it(
    there: dict[str, str], named: bool
) -> None:
    options = {"topic": "logs", **there, **({"writeId": "copy"} if named else {})}
    writer = BatchWriter(options, VALUE, False)
    pickle.loads(pickle.dumps(writer)).abort([None])
    assert writer._backend is not None
    producer = writer._sink.producer("logs", writer._backend, writer._step, 1)
    producer.abandon()
    assert producer.is_done is not named


def test_a_completed_write_is_not_repeated_and_logs_a_warning(
    there: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    options = {"topic": "logs", "writeId": "copy", **there}
    BatchWriter(options, VALUE, False).commit([])
    assert "completed before" not in caplog.text
    BatchWriter(options, VALUE, False)
    assert "write 'copy' was completed before" in caplog.text


def test_a_stream_is_committed_from_the_messages_of_its_tasks(there: dict[str, str]) -> None:
    writer = StreamWriter({"topic": "logs", **there}, VALUE, False)
    step = Step("query", 4, uuid.uuid4().hex)
    writer.commit([], 4)
    writer.commit(
        [TaskCommit(step, {(there["servers"], "logs"): Fingerprint()}), TaskCommit(step)], 4
    )
    lost = TaskCommit(step, {(there["servers"], "logs"): Fingerprint(3)})
    with pytest.raises(SinkError, match="the topic does not exist: it was removed meanwhile"):
        writer.commit([lost], 4)
    writer.abort([None], 5)
    with pytest.raises(WrongOption, match="never replaced"):
        StreamWriter({"topic": "logs", **there}, VALUE, True)


class Context:
    """A task context with the properties that name its batch."""

    def __init__(self, *found: str | None) -> None:
        names = ("sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id")
        self._found = dict(zip(names, found, strict=True))

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 -- Spark's name
        return self._found[name]


def test_a_batch_is_identified_by_its_query_and_run() -> None:
    run = uuid.uuid4()
    context: Any = Context("query", "7", str(run))
    assert step_of(context) == Step("query", 7, run.hex)
    for found, fault in (
        ((None, "7", str(run)), "does not know its query and batch"),
        (("query", "7", "mine"), "do not set a job group"),
    ):
        context = Context(*found)
        with pytest.raises(SinkError, match=fault):
            step_of(context)
