"""Which partition a record goes to."""

from collections import Counter

import pytest

from aqueduct.ingest.partitioning import RUN, partition_of


@pytest.mark.parametrize(
    ("key", "partitions", "expected"),
    [
        (b"", 4, 0),
        (b"a", 4, 3),
        (b"device-1", 4, 1),
        (b"device-2", 4, 3),
        (b"device-1", 64, 57),
        (bytes(range(256)), 7, 5),
        ("Zürich".encode(), 12, 6),
    ],
)
def test_the_partition_of_a_key_is_fixed(key: bytes, partitions: int, expected: int) -> None:
    assert partition_of(key, 1, partitions) == expected
    assert partition_of(key, 999_999, partitions) == expected


def test_records_without_a_key_go_round_robin_in_runs() -> None:
    found = [partition_of(None, sequence, 3) for sequence in range(RUN * 4)]
    assert found == [0] * RUN + [1] * RUN + [2] * RUN + [0] * RUN


def test_keys_spread_over_all_partitions() -> None:
    counts = Counter(partition_of(b"key %d" % each, 1, 8) for each in range(8_000))
    assert sorted(counts) == list(range(8))
    assert min(counts.values()) > 800
