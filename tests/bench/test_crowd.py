"""A real server with real producers, very briefly, to check that the benchmark works."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.builds import SOURCES
from bench.ingest.crowd import check_stored, in_all, in_time, meet
from bench.network import processes
from bench.network.command import takes_part
from bench.network.measures import INGEST_ALL, INGEST_ROWS
from bench.network.pair import QUICK
from bench.network.processes import Failed
from bench.network.roster import INGEST_PEERS

BRIEF = replace(QUICK, seconds=0.1, warm=0.02, log=3_000_000)


@pytest.mark.parametrize("name", ["aqueduct", "floor"])
def test_a_crowd_yields_every_figure(name: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    (peer,) = (peer for peer in INGEST_PEERS if peer.name == name)
    setting = processes.write_certificate(tmp_path, peer.options)
    measures = [replace(each, producers=min(each.producers, 2)) for each in INGEST_ALL]
    with meet(name, setting, log, SOURCES, BRIEF) as crowd:
        found = {each.name: crowd.measure(each) for each in measures if takes_part(peer, each)}
    for row in INGEST_ROWS:
        if row.measure in found:
            assert found[row.measure][row.figure] > 0, row
    assert "Traceback" not in log.read_text()


def test_the_rate_covers_all_producers_from_the_first_start_to_the_last_end() -> None:
    answers = [
        {"count": 100, "began": 1_000_000_000, "ended": 2_500_000_000},
        {"count": 300, "began": 1_200_000_000, "ended": 3_000_000_000},
    ]
    assert in_all(answers, 1000) == {
        "count": 400,
        "seconds": 2.0,
        "rate": 200.0,
        "megabytes": 0.2,
    }


def test_latencies_of_all_producers_are_merged() -> None:
    answers = [
        {"count": 10, "seconds": 1.0, "times": [0.001] * 99},
        {"count": 20, "seconds": 2.0, "times": [0.5]},
    ]
    found = in_time(answers)
    assert (found["rate"], found["p50"], found["p99"]) == (20.0, 1.0, 500.0)


def test_missing_records_fail_the_run() -> None:
    check_stored([{"count": 2}, {"count": 3}], 5)
    with pytest.raises(Failed, match="4 records were stored instead of 5"):
        check_stored([{"count": 2}, {"count": 3}], 4)
