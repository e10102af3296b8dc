"""How far a query has come, as the JSON text that Spark keeps in its checkpoints.

Spark compares such texts letter by letter, so equal offsets have equal texts: topics in order, and
in each its partitions. A form that was ever written stays readable; `VERSION` is the one that is
written. Version 0 has no number: it is the form that the option ``startingOffsets`` takes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from aqueduct.spark.faults import SourceError

VERSION = 1
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


def ordered(offsets: Offsets) -> dict[TopicPartition, int]:
    """The same in the one order that is written."""
    return {where: offsets[where] for where in sorted(offsets)}


def to_json(offsets: Offsets) -> dict[str, Any]:
    """What Spark is to keep."""
    topics: dict[str, dict[str, int]] = {}
    for where, offset in ordered(offsets).items():
        topics.setdefault(where.topic, {})[str(where.partition)] = offset
    return {"version": VERSION, "topics": topics}


def from_json(document: object) -> dict[TopicPartition, int]:
    """What Spark has kept; raises `SourceError` for what was never written."""
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


def text(offsets: Offsets) -> str:
    """The same as text, as Spark makes it."""
    return json.dumps(to_json(offsets))


def _read_plain(document: dict[str, Any]) -> dict[TopicPartition, int]:
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
    return ordered(offsets)


def _read_versioned(document: dict[str, Any]) -> dict[TopicPartition, int]:
    topics = document.get("topics")
    if set(document) != {"version", "topics"} or not isinstance(topics, dict):
        raise SourceError(f"not offsets of version 1: {_short(document)}")
    return _read_plain(topics)


_READERS: dict[int, Callable[[dict[str, Any]], dict[TopicPartition, int]]] = {
    0: _read_plain,
    1: _read_versioned,
}


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
