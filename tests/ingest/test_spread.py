import pytest

from aqueduct.ingest.partitioning import RUN, partition_of, spread
from aqueduct.ingest.records import RecordColumns


@pytest.mark.parametrize("partitions", [1, 2, 3, 4])
@pytest.mark.parametrize("sequence", [1, RUN - 1, RUN, 3 * RUN + 7])
@pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 1), (5, 6), (0, 5 * RUN), (17, 2_048)])
def test_runs_match_the_partition_of_each_record(
    partitions: int, sequence: int, start: int, stop: int
) -> None:
    alone: dict[int, list[int]] = {}
    for at in range(start, stop):
        alone.setdefault(partition_of(None, sequence + at, partitions), []).append(at)
    everything = range(stop)
    runs = spread(range(start, stop), sequence, partitions)
    assert alone == {
        number: [at for each in slices for at in everything[each]]
        for number, slices in runs.items()
    }


def test_picked_records_have_all_their_columns() -> None:
    keys = [b"a", None, b"c", b"d"]
    headers: list[list[tuple[str, bytes]]] = [[("n", b"%d" % each)] for each in range(4)]
    records = RecordColumns(
        7, [b"1", b"2", b"3", b"4"], [10, 20, 30, 40], keys, headers, ids=bytes(range(80))
    )
    by_runs = records.pick_runs([slice(0, 1), slice(2, 4)])
    assert by_runs == records.pick_indices([0, 2, 3])
    assert by_runs == RecordColumns(
        0,
        [b"1", b"3", b"4"],
        [10, 30, 40],
        [b"a", b"c", b"d"],
        [headers[0], headers[2], headers[3]],
        ids=bytes([*range(20), *range(40, 80)]),
    )
