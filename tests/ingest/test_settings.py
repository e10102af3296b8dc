"""Invalid limits of an ingest server are rejected."""

from dataclasses import replace
from typing import Any

import pytest

from aqueduct.ingest.identity import MAX_OFFSETS
from aqueduct.ingest.settings import MAX_WAITING, IngestSettings


@pytest.mark.parametrize(
    "name",
    [
        "max_record",
        "max_topics",
        "max_partitions",
        "partitions",
        "max_producers",
        "max_jobs",
        "max_ids",
        "max_streams",
        "max_fetches",
        "max_waiting",
        "group_size",
        "roll_size",
    ],
)
def test_a_limit_of_zero_is_rejected_by_name(name: str) -> None:
    nothing: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=rf"IngestSettings\({name}=0\): give a whole number"):
        replace(IngestSettings(), **nothing)


def test_a_new_topic_cannot_have_more_partitions_than_a_topic_may() -> None:
    with pytest.raises(ValueError, match=r"partitions=5\): give .* from 1 to max_partitions \(4\)"):
        IngestSettings(partitions=5, max_partitions=4)


def test_a_topic_cannot_have_more_partitions_than_a_position_names() -> None:
    IngestSettings(max_partitions=MAX_OFFSETS)
    with pytest.raises(ValueError, match=r"max_partitions=1025\): give .* from 1 to 1,024"):
        IngestSettings(max_partitions=MAX_OFFSETS + 1)


def test_max_record_must_not_exceed_max_waiting() -> None:
    with pytest.raises(ValueError, match=r"max_waiting=999\): give .* from max_record \(1,000\)"):
        IngestSettings(max_record=1000, max_waiting=999)


def test_max_waiting_must_fit_into_a_block() -> None:
    IngestSettings(max_waiting=MAX_WAITING)
    with pytest.raises(ValueError, match=r"max_waiting=\d+\): give .* to 67,108,864"):
        IngestSettings(max_waiting=MAX_WAITING + 1)
