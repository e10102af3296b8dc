"""The summary: totals by mode, and inconsistent counts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from aqueduct.spark.pipeline.summary import (
    Figures,
    ModeTotals,
    Percentiles,
    Summary,
    totals_by_mode,
)

GOOD = ModeTotals(sent=10, lost=1, arrived=9, rows=9, distinct=9, windowed=7, too_late=2)


def a_summary(**more: ModeTotals) -> Summary:
    reliable = replace(GOOD, sent=9, lost=0)
    return Summary(
        master="local[2]",
        topics=["telemetry"],
        source="files",
        devices=2,
        seconds=10.0,
        whole_seconds=30.0,
        interrupted=False,
        batches=20,
        late={"buffered": 1, "stale": 2},
        totals={"ordered": reliable, "unordered": reliable, "unreliable": GOOD, **more},
        figures=Figures({}, {}, {}, {}, 6, Percentiles(0.5, 1.0, 1.5)),
        out="out",
        report="out/report.html",
    )


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"sent": 11}, "11 sent, 9 arrived and 1 lost"),
        ({"arrived": 10, "sent": 11}, "10 arrived and 9 in the table"),
        ({"distinct": 8}, "1 duplicates"),
        ({"windowed": 6}, "9 in the table, 6 in windows and 2 too late"),
    ],
)
def test_inconsistent_counts_are_faults(wrong: dict[str, int], says: str) -> None:
    assert GOOD.faults == []
    (fault,) = replace(GOOD, **wrong).faults
    assert says in fault


def test_a_loss_on_a_reliable_channel_is_a_fault() -> None:
    assert a_summary().faults == []
    (fault,) = a_summary(ordered=GOOD).faults
    assert fault == "ordered: 1 lost on a reliable channel"


def test_a_summary_can_be_written_as_json() -> None:
    found = json.loads(json.dumps(a_summary().as_json()))
    assert found["rows"] == 27
    assert found["modes"]["unreliable"]["lost"] == 1
    assert found["latency"] == {"p50": 0.5, "p95": 1.0, "p99": 1.5}


def test_a_mode_without_records_has_totals() -> None:
    figures = Figures({"ordered": 5}, {"ordered": 5}, {"ordered": 5}, {}, 1, None)
    found = totals_by_mode({"ordered": 5}, {}, {"ordered": 5}, figures)
    assert found["ordered"].faults == []
    assert found["unreliable"] == ModeTotals(0, 0, 0, 0, 0, 0, 0)
