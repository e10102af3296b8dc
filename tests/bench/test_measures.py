import pytest

from bench.network.measures import (
    ALL,
    INGEST_ALL,
    INGEST_ROWS,
    IPC_ALL,
    IPC_ROWS,
    ROWS,
    SPARK_ALL,
    SPARK_ROWS,
    Kind,
    Measure,
    Row,
)


@pytest.mark.parametrize(
    ("measures", "rows"),
    [(ALL, ROWS), (IPC_ALL, IPC_ROWS), (INGEST_ALL, INGEST_ROWS), (SPARK_ALL, SPARK_ROWS)],
)
def test_every_row_belongs_to_a_measure_and_every_measure_has_a_row(
    measures: tuple[Measure, ...], rows: tuple[Row, ...]
) -> None:
    assert {row.measure for row in rows} == {measure.name for measure in measures}
    assert len({row.name for row in rows}) == len(rows)


def test_peers_run_only_streams_round_trips_and_connections() -> None:
    shared = [measure.name for measure in ALL if not measure.ours_only]
    assert shared == ["R100", "R1K", "T64K", "L", "H", "BULK", "BULK16"]


def test_only_memory_is_measured_once() -> None:
    assert [measure.kind for measure in ALL if measure.once] == [Kind.HOLD]
