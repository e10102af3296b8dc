"""How far a query has come, as the JSON text that Spark keeps in its checkpoints.

Spark compares such texts letter by letter, so equal offsets have equal texts: topics in order, and
in each its partitions. A form that was ever written stays readable; `VERSION` is the one that is
written. Version 0 has no number: it is the form that the option ``startingOffsets`` takes. Versions
0 and 1 have offsets alone; version 2 adds the identity of each topic (`aqueduct.ingest.identity`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from aqueduct.spark.errors import SourceError

VERSION = 2
LATEST = -1
EARLIEST = -2
"""In options, as Kafka has them: the end, and the beginning, of what there is."""


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic} partition {self.partition}"


Offsets: TypeAlias = Mapping[TopicPartition, int]
"""Of each partition the next offset to read."""


class TopicMark(NamedTuple):
    """The identity of a topic at some offsets; see `aqueduct.ingest.identity.TopicPosition`."""

    topic_id: str
    epoch: str


Marks: TypeAlias = Mapping[str, TopicMark]
"""By topic; a topic has none if the checkpoint or the server is of a version without identities."""


def by_topic(offsets: Offsets) -> dict[str, dict[int, int]]:
    """Return the offsets of each topic by partition."""
    topics: dict[str, dict[int, int]] = {}
    for where, offset in offsets.items():
        topics.setdefault(where.topic, {})[where.partition] = offset
    return topics


def ordered(offsets: Offsets) -> dict[TopicPartition, int]:
    """The same in the one order that is written."""
    return {where: offsets[where] for where in sorted(offsets)}


def to_json(offsets: Offsets, marks: Marks | None = None) -> dict[str, Any]:
    """What Spark is to keep."""
    topics: dict[str, dict[str, Any]] = {}
    for topic, parts in by_topic(ordered(offsets)).items():
        mark = (marks or {}).get(topic)
        identity = {} if mark is None else {"id": mark.topic_id, "epoch": mark.epoch}
        topics[topic] = {**identity, "offsets": {str(each): at for each, at in parts.items()}}
    return {"version": VERSION, "topics": topics}


def from_json(document: object) -> dict[TopicPartition, int]:
    """Parse offsets from a checkpoint; raise `SourceError` for anything else."""
    return positions_from_json(document)[0]


def positions_from_json(document: object) -> tuple[dict[TopicPartition, int], dict[str, TopicMark]]:
    """Parse offsets and the identities of their topics from a checkpoint."""
    if not isinstance(document, dict):
        raise SourceError(f"offsets are a JSON object, not {_short(document)}")
    version = document.get("version", 0)
    # A topic may be called "version"; then what it has is an object, and no number.
    version = 0 if isinstance(version, dict) else version
    read = _READERS.get(version) if type(version) is int else None
    if read is None:
        raise SourceError(
            f"offsets of version {_short(version)} were written by a newer Aqueduct; this one "
            f"reads versions up to {VERSION}: read this checkpoint with the newer one"
        )
    return read(document)


def parse(text: str) -> dict[TopicPartition, int]:
    """Offsets from a JSON text, as an option or a file of a checkpoint has them."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"not JSON: {error}") from None
    return from_json(document)


def text(offsets: Offsets, marks: Marks | None = None) -> str:
    """The same as text, as Spark makes it."""
    return json.dumps(to_json(offsets, marks))


def _read_plain(document: dict[str, Any]) -> tuple[dict[TopicPartition, int], dict[str, TopicMark]]:
    offsets: dict[TopicPartition, int] = {}
    for topic, partitions in document.items():
        if not isinstance(partitions, dict):
            raise SourceError(
                f'topic {topic!r} has {_short(partitions)}; give its partitions: {{"0": 12}}'
            )
        for number, offset in partitions.items():
            offsets[TopicPartition(topic, _partition(topic, number))] = _offset(
                topic, number, offset
            )
    return ordered(offsets), {}


def _topics(document: dict[str, Any]) -> dict[str, Any]:
    topics = document.get("topics")
    if set(document) != {"version", "topics"} or not isinstance(topics, dict):
        raise SourceError(f"not offsets of version {document['version']}: {_short(document)}")
    return topics


def _read_1(document: dict[str, Any]) -> tuple[dict[TopicPartition, int], dict[str, TopicMark]]:
    return _read_plain(_topics(document))


def _read_2(document: dict[str, Any]) -> tuple[dict[TopicPartition, int], dict[str, TopicMark]]:
    marks = {}
    plain = {}
    for topic, entry in _topics(document).items():
        if not isinstance(entry, dict) or set(entry) not in _ENTRIES:
            raise SourceError(f"topic {topic!r} has {_short(entry)}, not its id, epoch and offsets")
        plain[topic] = entry["offsets"]
        if "id" in entry:
            mark = marks[topic] = TopicMark(entry["id"], entry["epoch"])
            if not all(isinstance(each, str) for each in mark):
                raise SourceError(f"topic {topic!r} has the id {_short(mark)}")
    return _read_plain(plain)[0], marks


_ENTRIES = ({"offsets"}, {"id", "epoch", "offsets"})
_READERS: dict[
    int, Callable[[dict[str, Any]], tuple[dict[TopicPartition, int], dict[str, TopicMark]]]
] = {0: _read_plain, 1: _read_1, 2: _read_2}


def _partition(topic: str, number: str) -> int:
    if not number.isascii() or not number.isdecimal() or str(int(number)) != number:
        raise SourceError(f"{number!r} is not the number of a partition of topic {topic!r}")
    return int(number)


def _offset(topic: str, number: str, offset: object) -> int:
    if type(offset) is not int or offset < EARLIEST:
        raise SourceError(f"topic {topic!r} partition {number}: {_short(offset)} is not an offset")
    return offset


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
