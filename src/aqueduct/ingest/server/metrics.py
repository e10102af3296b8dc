"""The counters of an ingest server, and their text format for Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from aqueduct.ingest.protocol import TopicInfo
from aqueduct.ingest.server.topic import Submission

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Upper bounds of the commit latency histogram, in seconds."""


@dataclass(frozen=True)
class Now:
    """The current gauges of a server."""

    free: int
    """Free bytes on the disk."""
    logs: int
    """Bytes in logs."""
    streams: int
    time: float
    """Seconds since 1970."""


class Metrics:
    """Counters since the server was opened."""

    def __init__(self) -> None:
        self.records = 0
        """Records stored."""
        self.duplicates = 0
        """Duplicates: records that were stored before."""
        self.refused = 0
        """Records not stored."""
        self.bytes = 0
        """Bytes of keys, values and headers of the stored records."""
        self.commits = 0
        self.commit_seconds = 0.0
        self.commit_buckets = [0] * (len(BUCKETS) + 1)
        self.segments = 0
        """Segments written."""
        self.rows_read = 0
        self.tokens_refused = 0
        """Connections with a wrong token, or without a required one."""
        self.tokens_turned_away = 0
        """Connections rejected unchecked: too many wrong tokens came from their address."""

    def committed(self, submission: Submission, seconds: float) -> None:
        """Count a submission that was stored or has failed, and its latency in seconds."""
        count = len(submission.records.values)
        if submission.fault is not None:
            self.refused += count
            return
        if submission.offsets:
            self.records += count - submission.skipped
            self.bytes += submission.records.size(submission.skipped)
        self.duplicates += submission.skipped
        self.commits += 1
        self.commit_seconds += seconds
        self.commit_buckets[bisect_left(BUCKETS, seconds)] += 1

    def text(self, topics: Sequence[TopicInfo], now: Now) -> str:
        """Return all metrics in the text format of Prometheus."""
        faulty = sum(
            bool(topic.fault) or any(part.fault for part in topic.partitions) for topic in topics
        )
        lines: list[str] = []
        for name, kind, what, value in (
            ("records_total", "counter", "Records stored.", self.records),
            ("duplicates_total", "counter", "Records that had been stored.", self.duplicates),
            ("refused_total", "counter", "Records not stored.", self.refused),
            ("bytes_total", "counter", "Bytes of the records stored.", self.bytes),
            ("segments_total", "counter", "Segments made.", self.segments),
            ("rows_read_total", "counter", "Rows sent to readers.", self.rows_read),
            ("tokens_refused_total", "counter", "Wrong tokens.", self.tokens_refused),
            (
                "tokens_turned_away_total",
                "counter",
                "Tokens rejected unchecked, after many wrong ones from the same address.",
                self.tokens_turned_away,
            ),
            ("topics_out_of_use", "gauge", "Topics that cannot be written.", faulty),
            ("free_bytes", "gauge", "Bytes left on the disk.", now.free),
            ("log_bytes", "gauge", "Bytes in logs, which are no segments yet.", now.logs),
            ("streams", "gauge", "Producers that send.", now.streams),
        ):
            lines += _metric(name, kind, what, [("", value)])
        buckets = zip((*BUCKETS, "+Inf"), accumulate(self.commit_buckets), strict=True)
        samples: list[_Sample] = [(f'_bucket{{le="{bound}"}}', count) for bound, count in buckets]
        samples += [("_sum", self.commit_seconds), ("_count", self.commits)]
        about = "From a record's arrival to its answer."
        lines += _metric("commit_seconds", "histogram", about, samples)
        lines += _partitions(topics)
        lines += _steps(topics, now.time)
        return "\n".join(lines) + "\n"


_Sample = tuple[str, float | str]
"""The suffix and labels of a sample, and its value."""


def _metric(name: str, kind: str, what: str, samples: Iterable[_Sample]) -> list[str]:
    name = f"aqueduct_ingest_{name}"
    head = [f"# HELP {name} {what}", f"# TYPE {name} {kind}"]
    return head + [f"{name}{labels} {value}" for labels, value in samples]


def _partitions(topics: Iterable[TopicInfo]) -> list[str]:
    sizes: list[_Sample] = []
    ends: list[_Sample] = []
    lags: list[_Sample] = []
    for topic in topics:
        for part in topic.partitions:
            where = f'topic="{topic.topic}",partition="{part.partition}"'
            sizes.append((f"{{{where}}}", part.size))
            ends.append((f"{{{where}}}", part.next_offset))
        for reader, offsets in topic.readers.items():
            for part in topic.partitions:
                where = f'topic="{topic.topic}",partition="{part.partition}",reader="{reader}"'
                lag = part.next_offset - max(offsets.get(part.partition, 0), part.first_offset)
                lags.append((f"{{{where}}}", max(lag, 0)))
    return [
        *_metric("partition_bytes", "gauge", "Bytes of a partition on disk.", sizes),
        *_metric("next_offset", "gauge", "Offset of the next record of a partition.", ends),
        *_metric("reader_lag", "gauge", "Records that a named reader has not read.", lags),
    ]


def _steps(topics: Iterable[TopicInfo], now: float) -> list[str]:
    """Return the metrics of unfinished steps and the rows that they keep from retention."""
    counts: list[_Sample] = []
    idle: list[_Sample] = []
    kept: list[_Sample] = []
    for topic in topics:
        labels = f'{{topic="{topic.topic}"}}'
        counts.append((labels, topic.unfinished_steps))
        used = min((step.last_used for step in topic.steps), default=None)
        seconds = 0.0 if used is None else max(now - used / 1e6, 0.0)
        idle.append((labels, f"{seconds:.0f}"))
        keeping = [
            step for step in topic.steps if step.kept_until is None or step.kept_until / 1e6 > now
        ]
        for part in topic.partitions:
            pinned = [step.offsets.get(part.partition, 0) for step in keeping]
            first = max(min(pinned, default=part.next_offset), part.first_offset)
            labels = f'{{topic="{topic.topic}",partition="{part.partition}"}}'
            kept.append((labels, max(part.next_offset - first, 0)))
    about = "Idle time of the longest idle one."
    return [
        *_metric("unfinished_steps", "gauge", "Unfinished steps of jobs.", counts),
        *_metric("unfinished_step_idle_seconds", "gauge", about, idle),
        *_metric("unfinished_step_rows", "gauge", "Records that they keep from retention.", kept),
    ]
