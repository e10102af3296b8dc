"""The offsets of a query, in the JSON format of Spark's checkpoints.

Spark compares these documents as text, so equal offsets are always written in the same order:
sorted by topic and partition. `VERSION` is written; all versions are read:

| version | content |
|---|---|
| 0 | offsets, without a version number: the format of option ``startingOffsets`` |
| 1 | offsets |
| 2 | offsets and the identity of each topic (`aqueduct.ingest.identity`) |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from aqueduct.spark.errors import SourceError

VERSION = 2
LATEST = -1
EARLIEST = -2
"""Special offsets in options, as in Kafka: the end and the beginning of a partition."""


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic} partition {self.partition}"


Offsets: TypeAlias = Mapping[TopicPartition, int]
"""The next offset to read, by partition."""


class TopicIdentity(NamedTuple):
    """The identity of a topic at some offsets; see `aqueduct.ingest.identity.TopicPosition`."""

    topic_id: str
    epoch: str


Identities: TypeAlias = Mapping[str, TopicIdentity]
"""By topic; a topic has none if an older version wrote the checkpoint or runs on the server."""


class CheckpointOffsets(NamedTuple):
    """The offsets in a checkpoint, and the identities of their topics."""

    offsets: dict[TopicPartition, int]
    identities: dict[str, TopicIdentity]


def by_topic(offsets: Offsets) -> dict[str, dict[int, int]]:
    """Return the offsets of each topic by partition."""
    topics: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, {})[partition] = offset
    return topics


def ordered(offsets: Offsets) -> dict[TopicPartition, int]:
    """Return the offsets sorted by topic and partition."""
    return dict(sorted(offsets.items()))


def to_json(offsets: Offsets, identities: Identities | None = None) -> dict[str, Any]:
    """Return the document for a checkpoint."""
    topics: dict[str, dict[str, Any]] = {}
    for topic, partitions in by_topic(ordered(offsets)).items():
        identity = (identities or {}).get(topic)
        entry = {} if identity is None else {"id": identity.topic_id, "epoch": identity.epoch}
        topics[topic] = {**entry, "offsets": {str(each): at for each, at in partitions.items()}}
    return {"version": VERSION, "topics": topics}


def from_json(document: object) -> dict[TopicPartition, int]:
    """Parse offsets from a checkpoint; raise `SourceError` for anything else."""
    return checkpoint_from_json(document).offsets


def checkpoint_from_json(document: object) -> CheckpointOffsets:
    """Parse offsets and the identities of their topics from a checkpoint."""
    if not isinstance(document, dict):
        raise SourceError(f"offsets are a JSON object, not {_short(document)}")
    version = document.get("version", 0)
    # In version 0, "version" may be a topic; its value is then an object.
    version = 0 if isinstance(version, dict) else version
    read = _READERS.get(version) if type(version) is int else None
    if read is None:
        raise SourceError(
            f"offsets of version {_short(version)} were written by a newer Aqueduct; this one "
            f"reads versions up to {VERSION}: upgrade it to read this checkpoint"
        )
    return read(document)


def parse(text: str) -> dict[TopicPartition, int]:
    """Parse offsets from JSON text; raise `SourceError` for anything else."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"not JSON: {error}") from None
    return from_json(document)


def _read_0(document: dict[str, Any]) -> CheckpointOffsets:
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
    return CheckpointOffsets(ordered(offsets), {})


def _topics(document: dict[str, Any]) -> dict[str, Any]:
    topics = document.get("topics")
    if set(document) != {"version", "topics"} or not isinstance(topics, dict):
        raise SourceError(f"not offsets of version {document['version']}: {_short(document)}")
    return topics


def _read_1(document: dict[str, Any]) -> CheckpointOffsets:
    return _read_0(_topics(document))


def _read_2(document: dict[str, Any]) -> CheckpointOffsets:
    identities = {}
    offsets = {}
    for topic, entry in _topics(document).items():
        if not isinstance(entry, dict) or set(entry) not in _ENTRIES:
            raise SourceError(f"topic {topic!r} has {_short(entry)}, not its id, epoch and offsets")
        offsets[topic] = entry["offsets"]
        if "id" in entry:
            identity = identities[topic] = TopicIdentity(entry["id"], entry["epoch"])
            if not all(isinstance(each, str) for each in identity):
                raise SourceError(f"topic {topic!r} has the id {_short(identity)}")
    return CheckpointOffsets(_read_0(offsets).offsets, identities)


_ENTRIES = ({"offsets"}, {"id", "epoch", "offsets"})
_READERS: dict[int, Callable[[dict[str, Any]], CheckpointOffsets]] = {
    0: _read_0,
    1: _read_1,
    2: _read_2,
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
