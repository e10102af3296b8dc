"""The latency of rows, from a table written by hand in the form of a streaming query."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.spark.delays import batches, delays


def make(directory: Path, written: dict[int, list[float]], committed: dict[int, float]) -> None:
    """Write batches with the send times of their rows, and the commit time of each."""
    log = directory / "table" / "_spark_metadata"
    commits = directory / "checkpoint" / "commits"
    log.mkdir(parents=True)
    commits.mkdir(parents=True)
    (log / ".0.crc").touch()
    for batch, times in written.items():
        file = directory / "table" / f"part {batch}.parquet"
        sent = pa.array([int(each * 1e6) for each in times], pa.timestamp("us", tz="UTC"))
        pq.write_table(pa.table({"timestamp": sent}), file)
        entry = json.dumps({"path": file.as_uri()})
        (log / str(batch)).write_text(f"v1\n{entry}")
    for batch, time in committed.items():
        (commits / str(batch)).touch()
        os.utime(commits / str(batch), (time, time))


def test_the_latency_of_a_row_ends_at_the_commit_of_its_batch(tmp_path: Path) -> None:
    make(tmp_path, {0: [100.0], 1: [104.0, 105.0]}, {0: 101.0, 1: 106.5})
    assert delays(tmp_path / "table", tmp_path / "checkpoint", 0.0) == [1.0, 2.5, 1.5]


def test_rows_of_the_first_seconds_do_not_count(tmp_path: Path) -> None:
    make(tmp_path, {0: [100.0], 1: [104.0, 105.0]}, {0: 101.0, 1: 106.5})
    assert delays(tmp_path / "table", tmp_path / "checkpoint", 4.5) == [1.5]


def test_a_compacted_log_adds_no_rows(tmp_path: Path) -> None:
    make(tmp_path, {0: [1.0], 1: [2.0]}, {})
    log = tmp_path / "table" / "_spark_metadata"
    lines = [(log / str(batch)).read_text().splitlines()[1] for batch in (0, 1)]
    (log / "1").rename(log / "1.compact")
    (log / "1.compact").write_text("\n".join(["v1", *lines]))
    assert [batch for batch, _ in batches(tmp_path / "table")] == [0, 1]
