"""``format("aqueduct")`` in a real Spark: batches, streams, restarts, limits and errors."""

from __future__ import annotations

import json
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from aqueduct.security import ServerTLS
from aqueduct.spark.datasource import AqueductSource
from tests.spark.landing import Landing

SECONDS = 60
Rows = list[tuple[int, int]]


@pytest.fixture(params=["directory", "server"])
def origin(
    request: pytest.FixtureRequest, landing: Landing, tls: ServerTLS, trust_ca: str
) -> Iterator[dict[str, str]]:
    """Return the options that name a landing, after writing 100 rows to it."""
    landing.write("logs", 60)
    landing.write("logs", 40, roll=False, headers=[[("n", b"h")]] * 40)
    if request.param == "directory":
        yield {"path": landing.path}
        return
    with landing.served(tls) as server:
        yield {"servers": server.address, "trustCa": trust_ca}


def everything(landing: Landing) -> Rows:
    return [(part, at) for part, end in landing.ends("logs").items() for at in range(end)]


def read(spark: SparkSession, **options: str) -> int:
    """Return the number of rows."""
    return spark.read.format("aqueduct").options(subscribe="logs", **options).load().count()


class Query:
    """Runs a stream over all available rows, and keeps the rows of each batch."""

    def __init__(self, spark: SparkSession, checkpoint: Path, **options: str) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._options = {"subscribe": "logs", "startingOffsets": "earliest", **options}
        self.batches: list[Rows] = []

    def _keep(self, batch: DataFrame, number: int) -> None:
        rows = batch.select("partition", "offset").collect()
        self.batches.append(sorted((row.partition, row.offset) for row in rows))

    def run(self) -> list[Rows]:
        """Run the query once; return its batches."""
        self.batches.clear()
        stream = self._spark.readStream.format("aqueduct").options(**self._options).load()
        query = (
            stream.writeStream.foreachBatch(self._keep)
            .option("checkpointLocation", str(self._checkpoint))
            .queryName(f"q{uuid.uuid4().hex}")
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(SECONDS)
        finally:
            query.stop()
        return list(self.batches)


def test_a_batch_has_every_row_with_its_columns(
    spark: SparkSession, origin: dict[str, str]
) -> None:
    frame = (
        spark.read.format("aqueduct")
        .options(subscribe="logs", includeHeaders="true", minPartitions="3", **origin)
        .load()
    )
    rows = frame.orderBy("partition", "offset").collect()
    assert len(rows) == 100
    assert frame.select(f.spark_partition_id()).distinct().count() == 3
    for part in (0, 1):
        offsets = [row.offset for row in rows if row.partition == part]
        assert offsets == list(range(len(offsets)))
    assert {row.topic for row in rows} == {"logs"}
    assert all(row.value == b"value %d" % row.producer_sequence for row in rows)
    assert all(row.key == b"%d" % row.producer_sequence for row in rows)
    assert sum(row.headers is not None for row in rows) == 40
    times = frame.select(f.date_format("timestamp", "yyyy-MM-dd HH:mm:ss.SSSSSS")).limit(1)
    assert times.first()[0].startswith("1970-01-01 00:00:01.0000")  # type: ignore[index]


@pytest.mark.parametrize("scheme", ["aqueduct+quic://", "aqueduct+tcp://"])
def test_a_batch_is_read_over_each_transport(
    spark: SparkSession, landing: Landing, tls: ServerTLS, trust_ca: str, scheme: str
) -> None:
    landing.write("logs", 60)
    with landing.served(tls, f"{scheme}127.0.0.1:0") as server:
        assert server.address.startswith(scheme)
        assert read(spark, servers=server.address, trustCa=trust_ca) == 60


def test_a_schema_with_fewer_columns_reads_only_those(
    spark: SparkSession, origin: dict[str, str]
) -> None:
    reader = spark.read.format("aqueduct").options(subscribe="logs", **origin)
    frame = reader.schema("offset long, partition int").load()
    assert frame.columns == ["offset", "partition"]
    assert frame.groupBy("partition").agg(f.max("offset") + 1 - f.count("*")).collect()
    assert frame.count() == 100


def test_a_stream_reads_each_row_once_over_restarts(
    spark: SparkSession, landing: Landing, tmp_path: Path
) -> None:
    landing.write("logs", 100)
    query = Query(spark, tmp_path / "checkpoint", path=landing.path, maxOffsetsPerTrigger="30")
    first = query.run()
    assert [len(batch) for batch in first] == [30, 30, 30, 10]
    assert sorted(row for batch in first for row in batch) == everything(landing)
    assert query.run() == []
    landing.write("logs", 20)
    second = query.run()
    assert sorted(row for batch in first + second for row in batch) == everything(landing)
    # The last batch was planned and may not be committed, so it is replayed with the same rows.
    last = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    landing.write("logs", 20)
    third = query.run()
    assert third[0] == second[-1]
    again = first + second[:-1] + third
    assert sorted(row for batch in again for row in batch) == everything(landing)


def test_a_stream_from_a_server_reads_each_row_once_over_its_restart(
    spark: SparkSession, landing: Landing, tls: ServerTLS, trust_ca: str, tmp_path: Path
) -> None:
    landing.write("logs", 100)
    with landing.served(tls) as server:
        address = server.address
        query = Query(spark, tmp_path / "checkpoint", servers=address, trustCa=trust_ca)
        first = query.run()
    landing.write("logs", 20)
    with landing.served(tls, address):
        second = query.run()
    assert [len(batch) for batch in (*first, *second)] == [100, 20]
    assert sorted(row for batch in first + second for row in batch) == everything(landing)


def test_a_stream_runs_until_it_is_stopped(
    spark: SparkSession, landing: Landing, tmp_path: Path
) -> None:
    landing.write("logs", 10)
    query = Query(spark, tmp_path / "checkpoint", path=landing.path)
    stream = spark.readStream.format("aqueduct").options(**query._options).load()
    running = stream.writeStream.foreachBatch(query._keep).start()
    try:
        running.processAllAvailable()
        landing.write("logs", 10)
        running.processAllAvailable()
        progress: Any = running.lastProgress
    finally:
        running.stop()
    assert sorted(row for batch in query.batches for row in batch) == everything(landing)
    assert progress["sources"][0]["endOffset"]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"maxRows": "1"}, "there is no option 'maxrows'"),
        ({"startingOffsets": "first"}, "option startingOffsets is earliest, latest"),
    ],
)
def test_a_wrong_option_is_an_error_before_anything_is_planned(
    spark: SparkSession, landing: Landing, options: dict[str, str], fault: str
) -> None:
    reader = spark.read.format("aqueduct").options(path=landing.path, subscribe="logs", **options)
    with pytest.raises(Exception, match=fault):
        reader.load()


def test_a_missing_topic_is_an_error_before_the_job_starts(
    spark: SparkSession, landing: Landing, tmp_path: Path
) -> None:
    landing.write("logs", 1)
    frame = spark.read.format("aqueduct").options(path=landing.path, subscribe="lags").load()
    before = len(spark.sparkContext.statusTracker().getJobIdsForGroup())
    with pytest.raises(Exception, match="option subscribe: no topic 'lags'"):
        frame.collect()
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup()) == before
    with pytest.raises(Exception, match="no topic 'lags'"):
        Query(spark, tmp_path / "checkpoint", path=landing.path, subscribe="lags").run()


def test_rows_removed_by_retention_stop_a_stream_with_fail_on_data_loss(
    spark: SparkSession, landing: Landing, tmp_path: Path
) -> None:
    landing.write("logs", 40)
    query = Query(spark, tmp_path / "checkpoint", path=landing.path)
    first = query.run()
    landing.write("logs", 40)
    landing.write("logs", 40)
    landing.drop("logs", 0, segments=2)
    fault = r"logs partition 0: offsets .* should be read.*set option failOnDataLoss to false"
    with pytest.raises(StreamingQueryException, match=fault):
        query.run()
    careless = Query(
        spark, tmp_path / "checkpoint", path=landing.path, failOnDataLoss="false"
    ).run()
    read = sorted(row for batch in first + careless for row in batch)
    assert [row for row in read if row[0] == 1] == [
        row for row in everything(landing) if row[0] == 1
    ]
    assert 0 < len(read) < len(everything(landing))


def test_rows_removed_by_retention_on_a_server_are_an_error_before_the_job_starts(
    spark: SparkSession, landing: Landing, tls: ServerTLS, trust_ca: str
) -> None:
    landing.write("logs", 40)
    landing.write("logs", 40)
    landing.drop("logs", 0)
    first = {"logs": {"0": 0, "1": 0}}
    with landing.served(tls) as server, pytest.raises(AnalysisException) as raised:
        read(
            spark,
            servers=server.address,
            trustCa=trust_ca,
            startingOffsets=json.dumps(first),
        )
    assert "logs partition 0: offsets 0 up to " in str(raised.value)
    assert "set option failOnDataLoss to false" in str(raised.value)


@pytest.mark.parametrize("from_server", [False, True])
def test_a_damaged_segment_is_reported_with_a_remedy(
    spark: SparkSession, landing: Landing, tls: ServerTLS, trust_ca: str, from_server: bool
) -> None:
    landing.write("logs", 40)
    (segment,) = (landing.directory / "logs" / "part=0").glob("*.parquet")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    fault = f"logs partition 0, offsets 0 up to .*{segment.name}.*docs/ingest.md says how to repair"
    with landing.served(tls) as server:
        there = {"servers": server.address, "trustCa": trust_ca}
        with pytest.raises(PythonException, match=fault):
            read(spark, **there if from_server else {"path": landing.path})


def test_an_unreachable_server_is_reported_within_seconds(
    spark: SparkSession, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    fault = (
        f"server {address} cannot be reached: nothing listens .* Check that an ingest server runs"
    )
    begun = time.monotonic()
    with pytest.raises(AnalysisException, match=fault):
        read(spark, servers=address)
    with pytest.raises(StreamingQueryException, match=fault):
        Query(spark, tmp_path / "checkpoint", servers=address).run()
    assert time.monotonic() - begun < 100


def test_a_silent_server_is_an_error(spark: SparkSession) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        begun = time.monotonic()
        with pytest.raises(AnalysisException, match=f"server {address} cannot be reached"):
            read(spark, servers=address)
        assert time.monotonic() - begun < 100


def test_the_name_of_the_format_is_aqueduct() -> None:
    assert AqueductSource.name() == "aqueduct"
