"""The records that producers sent, compared with the stored rows, for crash tests."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from aqueduct.ingest.client.reader import DirectoryReader
from aqueduct.ingest.partitioning import partition_of
from aqueduct.ingest.protocol import TopicInfo


def record(producer: str, sequence: int, partitions: int) -> dict[str, Any]:
    """Return the record of a producer with a sequence number: fixed, and unique."""
    rng = random.Random(f"{producer} {sequence}")
    sent: dict[str, Any] = {"value": f"{producer} {sequence} {'x' * rng.choice((0, 40))}".encode()}
    kind = rng.random()
    if kind < 0.6:
        sent["key"] = f"key {rng.randrange(20)}".encode()
    elif kind < 0.8:
        sent["partition"] = rng.randrange(partitions)
    if rng.random() < 0.2:
        sent["headers"] = {"number": str(sequence).encode()}
    return sent


class Ledger:
    """Compares stored rows with sent records, incrementally."""

    def __init__(self, topic: str, partitions: int) -> None:
        self.topic = topic
        self.partitions = partitions
        self.sent: Counter[str] = Counter()
        """By producer, the number of the last record that was sent."""
        self.ends: Counter[int] = Counter()
        """By partition, the offset behind the last row that was looked at."""
        self.stored: dict[str, set[int]] = {}
        self.last: dict[tuple[str, int], int] = {}

    def next(self, producer: str) -> dict[str, Any]:
        """Return the next record of a producer."""
        self.sent[producer] += 1
        return record(producer, self.sent[producer], self.partitions)

    def look(self, directory: Any, committed: dict[str, int]) -> None:
        """Check the new rows of a directory; ``committed`` has the acknowledged numbers."""
        reader = DirectoryReader(directory)
        for topic in reader.topics():
            assert topic.topic == self.topic
            for number, start, end in self.news(topic):
                self.add(reader.read(self.topic, number, start, end), number)
        self.judge(committed)

    def news(self, topic: TopicInfo) -> list[tuple[int, int, int]]:
        """Return the ranges of a topic that were not read yet."""
        assert [part.fault for part in topic.partitions] == [""] * self.partitions
        assert [part.first_offset for part in topic.partitions] == [0] * self.partitions
        news = []
        for part in topic.partitions:
            assert part.next_offset >= self.ends[part.partition], "rows that were there are gone"
            news.append((part.partition, self.ends[part.partition], part.next_offset))
        return news

    def add(self, batches: Iterable[pa.RecordBatch], partition: int) -> None:
        """Check the next rows of a partition."""
        for batch in batches:
            for row in batch.to_pylist():
                assert (row["topic"], row["partition"]) == (self.topic, partition)
                assert row["offset"] == self.ends[partition], "offsets are not dense"
                self.ends[partition] += 1
                self._add(row)

    def _add(self, row: dict[str, Any]) -> None:
        producer, sequence, partition = (
            row["producer_id"],
            row["producer_sequence"],
            row["partition"],
        )
        assert 1 <= sequence <= self.sent[producer], f"{producer} never sent {sequence}"
        sent = record(producer, sequence, self.partitions)
        assert row["value"] == sent["value"]
        assert row["key"] == sent.get("key")
        headers = {pair["name"]: pair["value"] for pair in row["headers"] or ()}
        assert headers == sent.get("headers", {})
        expected = sent.get("partition")
        if expected is None:
            expected = partition_of(row["key"], sequence, self.partitions)
        assert partition == expected
        known = self.stored.setdefault(producer, set())
        assert sequence not in known, f"{producer} {sequence} is stored twice"
        known.add(sequence)
        assert self.last.get((producer, partition), 0) < sequence, "not in the order of sending"
        self.last[producer, partition] = sequence

    def judge(self, committed: dict[str, int]) -> None:
        """Check that acknowledged records are stored, and none after a gap."""
        for producer, least in committed.items():
            known = self.stored.get(producer, set())
            lost = [number for number in range(1, least + 1) if number not in known]
            assert not lost, f"{producer} got acks of {lost[:5]} …, which are not stored"
            assert len(known) == max(known, default=0), f"{producer} has a gap"
