import pytest

from aqueduct.ingest.assignment import RUN, partition_of, spread


@pytest.mark.parametrize("partitions", [1, 2, 3, 4])
@pytest.mark.parametrize("sequence", [1, RUN - 1, RUN, 3 * RUN + 7])
@pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 1), (5, 6), (0, 5 * RUN), (17, 2_048)])
def test_runs_are_where_each_record_alone_would_go(
    partitions: int, sequence: int, start: int, stop: int
) -> None:
    alone: dict[int, list[int]] = {}
    for at in range(start, stop):
        alone.setdefault(partition_of(None, sequence + at, partitions), []).append(at)
    everything = range(stop)
    runs = spread(range(start, stop), sequence, partitions)
    assert alone == {
        number: [at for place in places for at in everything[place]]
        for number, places in runs.items()
    }
