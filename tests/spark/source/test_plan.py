"""Plans: every row is read exactly once, within the limits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aqueduct.spark.source.offsets import Offsets, TopicPartition
from aqueduct.spark.source.plan import OffsetRange, limit_rows, ranges_between, rows_within, split

PARTITIONS = st.builds(TopicPartition, st.sampled_from(["a", "b", "c"]), st.integers(0, 4))
OFFSETS = st.dictionaries(PARTITIONS, st.integers(0, 50))


def rows(ranges: list[OffsetRange]) -> list[tuple[TopicPartition, int]]:
    return [
        (each.topic_partition, offset) for each in ranges for offset in range(each.start, each.end)
    ]


def between(start: Offsets, end: Offsets) -> set[tuple[TopicPartition, int]]:
    return {
        (where, offset)
        for where, stop in end.items()
        for offset in range(start.get(where, 0), stop)
    }


@given(OFFSETS, OFFSETS, st.integers(1, 100), st.integers(1, 20))
def test_split_ranges_cover_exactly_the_rows_to_read(
    start: Offsets, end: Offsets, min_partitions: int, max_rows: int
) -> None:
    partitions = split(ranges_between(start, end), min_partitions, max_rows)
    read = rows(partitions)
    assert len(set(read)) == len(read)
    assert set(read) == between(start, end)
    assert all(0 < partition.rows <= max_rows for partition in partitions)
    assert len(partitions) >= min(min_partitions, len(read))
    assert partitions == sorted(partitions)


@given(OFFSETS, OFFSETS, st.integers(1, 30), st.randoms())
def test_a_plan_depends_only_on_its_offsets(
    start: Offsets, end: Offsets, limit: int, rng: object
) -> None:
    mixed = list(end.items())
    rng.shuffle(mixed)  # type: ignore[attr-defined]
    assert split(ranges_between(start, dict(mixed)), 7) == split(ranges_between(start, end), 7)
    assert list(limit_rows(start, dict(mixed), limit).items()) == list(
        limit_rows(start, end, limit).items()
    )


@given(OFFSETS, st.integers(1, 100))
def test_there_is_nothing_to_read_between_equal_offsets(
    offsets: Offsets, min_partitions: int
) -> None:
    assert split(ranges_between(offsets, offsets), min_partitions) == []


def test_split_ranges_have_nearly_equal_sizes() -> None:
    ranges = [OffsetRange("a", 0, 0, 900), OffsetRange("a", 1, 0, 100)]
    assert [partition.rows for partition in split(ranges, 10)] == [100] * 10
    assert [partition.rows for partition in split(ranges, 3)] == [450, 450, 100]
    assert [partition.rows for partition in split([OffsetRange("a", 0, 5, 15)], 3)] == [3, 3, 4]


@given(OFFSETS, OFFSETS, st.integers(0, 200))
def test_a_batch_has_exactly_the_rows_that_the_limit_allows(
    start: Offsets, available: Offsets, limit: int
) -> None:
    end = limit_rows(start, available, limit)
    taken = {where: end[where] - start.get(where, 0) for where in available}
    there = between(start, available)
    assert set(end) == set(available)
    assert sum(taken.values()) == min(limit, len(there))
    for where, count in taken.items():
        assert 0 <= count <= max(available[where] - start.get(where, 0), 0)


@given(OFFSETS, OFFSETS, st.integers(1, 200))
def test_a_partition_gets_a_smaller_share_only_if_it_has_no_more_rows(
    start: Offsets, available: Offsets, limit: int
) -> None:
    end = limit_rows(start, available, limit)
    most = max((end[where] - start.get(where, 0) for where in available), default=0)
    for where in available:
        if end[where] - start.get(where, 0) < most - 1:
            assert end[where] >= available[where]


@given(OFFSETS, st.integers(1, 10))
def test_batches_under_a_limit_reach_the_end(available: Offsets, limit: int) -> None:
    at: Offsets = {}
    for _ in range(len(between({}, available)) // limit + 1):
        at = limit_rows(at, available, limit)
    assert at == available


def test_the_remainder_goes_to_the_largest_backlogs() -> None:
    small, large = TopicPartition("a", 0), TopicPartition("a", 1)
    assert limit_rows({}, {small: 5, large: 9}, 1) == {small: 0, large: 1}
    assert limit_rows({}, {small: 5, large: 9}, 3) == {small: 1, large: 2}


def test_a_limit_in_bytes_uses_the_mean_size_of_stored_rows() -> None:
    one, two = TopicPartition("a", 0), TopicPartition("a", 1)
    held = {one: (100, 1_000), two: (100, 3_000)}
    assert rows_within(200, {one: 50}, held) == 20
    assert rows_within(200, {one: 50, two: 50}, held) == 10
    assert rows_within(1, {one: 50}, held) == 1
    assert rows_within(200, {one: 50}, {}) == 50
    assert rows_within(200, {}, held) == 1
