"""The catalog: listed before a job starts, with retries while rows are missing."""

from __future__ import annotations

import logging

import pytest

from aqueduct.ingest.protocol import PartitionInfo, TopicInfo
from aqueduct.spark.backend import Backend, LocatedTopic
from aqueduct.spark.errors import DataLoss, SourceError, Unreachable, WrongOption
from aqueduct.spark.options import source_options
from aqueduct.spark.source import catalog as surveys
from aqueduct.spark.source import fetch
from aqueduct.spark.source.catalog import (
    Catalog,
    clip_ranges,
    load_catalog,
    load_catalog_up_to,
    start_offsets,
)
from aqueduct.spark.source.fetch import RETRY_DELAYS
from aqueduct.spark.source.offsets import TopicPartition
from aqueduct.spark.source.plan import OffsetRange

HERE = source_options({"path": "data", "subscribe": "logs"})
THERE = source_options({"servers": "a:1", "subscribe": "logs"})
BACKEND = Backend(path="data")
LOGS = TopicPartition("logs", 0)


def catalog(first: int, end: int) -> Catalog:
    return Catalog({"logs": BACKEND}, {LOGS: PartitionInfo(0, first, end, size=40)})


class Looks:
    """Results of successive listings; the last one is repeated."""

    def __init__(self, patch: pytest.MonkeyPatch, *infos: TopicInfo | SourceError) -> None:
        self._infos = list(infos)
        self.count = 0
        self.waited: list[float] = []
        patch.setattr(surveys, "find_topics", self._find)
        patch.setattr("aqueduct.spark.source.catalog.time.sleep", self.waited.append)

    def _find(self, *_: object) -> dict[str, LocatedTopic]:
        self.count += 1
        info = self._infos.pop(0) if len(self._infos) > 1 else self._infos[0]
        if isinstance(info, SourceError):
            raise info
        return {info.topic: LocatedTopic(BACKEND, info)}


def logs(end: int, **more: str) -> TopicInfo:
    return TopicInfo("logs", [PartitionInfo(0, 0, end, **more)])  # type: ignore[arg-type]


def test_a_catalog_has_the_offsets_and_the_size_of_each_partition() -> None:
    found = catalog(2, 12)
    assert (found.first, found.next, found.held) == ({LOGS: 2}, {LOGS: 12}, {LOGS: (10, 40)})


def test_a_start_after_the_end_is_an_error() -> None:
    def start(offset: int, **more: str) -> dict[TopicPartition, int]:
        more["startingOffsets"] = f'{{"logs": {{"0": {offset}}}}}'
        return start_offsets(
            source_options({"path": "data", "subscribe": "logs", **more}), catalog(2, 12)
        )

    assert start(12) == {LOGS: 12}
    with pytest.raises(
        WrongOption, match="starts at 13, but its next offset is 12; -1 is the latest"
    ):
        start(13)
    assert start(13, failOnDataLoss="false") == {LOGS: 13}


@pytest.mark.parametrize(
    "info",
    [TopicInfo("logs", [], fault="x.json, byte 0: bad"), logs(0, fault="x.json, byte 0: bad")],
)
def test_a_damaged_topic_or_partition_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, info: TopicInfo
) -> None:
    Looks(monkeypatch, info)
    with pytest.raises(SourceError, match=r"logs.* on data is out of use: x\.json, byte 0: bad"):
        load_catalog(HERE, [BACKEND])


def test_a_directory_that_lags_behind_is_listed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch, logs(5), logs(5), logs(9))
    assert load_catalog_up_to(HERE, [BACKEND], {LOGS: 9}).next == {LOGS: 9}
    assert (looks.count, looks.waited) == (3, list(RETRY_DELAYS[:2]))


def test_a_directory_is_not_listed_again_after_all_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch, logs(5))
    assert load_catalog_up_to(HERE, [BACKEND], {LOGS: 9}).next == {LOGS: 5}
    assert looks.count == len(RETRY_DELAYS) + 1


def test_a_server_is_not_asked_twice_for_missing_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch, logs(5))
    load_catalog_up_to(THERE, [BACKEND], {LOGS: 9})
    assert looks.count == 1


def test_a_restarting_server_does_not_fail_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch, Unreachable("refused"), Unreachable("refused"), logs(9))
    assert load_catalog_up_to(THERE, [BACKEND], {LOGS: 9}).next == {LOGS: 9}
    assert (looks.count, looks.waited) == (3, list(RETRY_DELAYS[:2]))


def test_an_unreachable_server_fails_a_query_after_all_retries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = Looks(monkeypatch, Unreachable("refused"))
    with pytest.raises(Unreachable):
        load_catalog_up_to(THERE, [BACKEND], {LOGS: 9})
    assert looks.waited == list(RETRY_DELAYS)


def test_a_slow_failure_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_RETRY_TIMEOUT", 0.0)
    looks = Looks(monkeypatch, Unreachable("nothing was heard"))
    with pytest.raises(Unreachable):
        load_catalog_up_to(THERE, [BACKEND], {LOGS: 9})
    assert looks.count == 1


@pytest.mark.parametrize(
    ("first", "end", "left", "said"),
    [
        (0, 20, [(5, 15)], []),
        (8, 20, [(8, 15)], ["offsets 5 up to 8"]),
        (0, 12, [(5, 12)], ["offsets 12 up to 15"]),
        (8, 12, [(8, 12)], ["offsets 5 up to 8", "offsets 12 up to 15"]),
        (15, 20, [], ["offsets 5 up to 15"]),
        (30, 40, [], ["offsets 5 up to 15"]),
        (0, 2, [], ["offsets 5 up to 15"]),
    ],
)
def test_a_range_is_clipped_to_stored_rows_with_a_warning(
    first: int,
    end: int,
    left: list[tuple[int, int]],
    said: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    wanted = OffsetRange("logs", 0, 5, 15)
    with caplog.at_level(logging.WARNING, "aqueduct.spark"):
        kept = clip_ranges([wanted], catalog(first, end), fail_on_data_loss=False)
    assert [(each.start, each.end) for each in kept] == left
    assert len(caplog.messages) == len(said)
    assert all(text in message for text, message in zip(said, caplog.messages, strict=True))
    if said:
        with pytest.raises(DataLoss, match="logs partition 0: offsets 5 up to 15 should be read"):
            clip_ranges([wanted], catalog(first, end), fail_on_data_loss=True)


def test_a_missing_partition_is_data_loss() -> None:
    wanted = OffsetRange("other", 1, 0, 3)
    with pytest.raises(DataLoss, match=r"other partition 1: .* the partition no longer exists"):
        clip_ranges([wanted], catalog(0, 9), fail_on_data_loss=True)
    assert clip_ranges([wanted], catalog(0, 9), fail_on_data_loss=False) == []


def test_a_topic_at_offset_zero_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = Looks(monkeypatch, logs(5))
    load_catalog_up_to(HERE, [BACKEND], {LOGS: 5, TopicPartition("gone", 0): 0})
    assert looks.waited == []
