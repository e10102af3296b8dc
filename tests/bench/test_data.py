"""Topics for Spark, small ones."""

from pathlib import Path

from aqueduct.ingest.client.reader import DirectoryReader
from bench.spark.data import LARGE, SMALL, fill, rows_in


def test_topics_have_the_requested_rows_and_files(tmp_path: Path) -> None:
    fill(tmp_path, 1_600, 20, 100)
    found = {each.topic: each for each in DirectoryReader(tmp_path).topics()}
    for topic in (LARGE, SMALL):
        rows = sum(part.next_offset for part in found[topic].partitions)
        assert rows == rows_in(topic, 1_600)
    assert len(list((tmp_path / SMALL).rglob("*.parquet"))) == 20


def test_values_have_the_requested_size(tmp_path: Path) -> None:
    fill(tmp_path, 400, 4, 100)
    (batch,) = DirectoryReader(tmp_path).read(LARGE, 0, 0, 100)
    assert {len(value) for value in batch.column("value").to_pylist()} == {100}
