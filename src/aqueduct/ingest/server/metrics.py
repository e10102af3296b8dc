"""The counters of an ingest server, and their text format for Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
    time: float = 0.0
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

    def text(self, topics: Sequence[TopicInfo], now: Now | None = None) -> str:
        """Return all metrics in the text format of Prometheus."""
        lines: list[str] = []
        faulty = sum(
            bool(topic.fault) or any(part.fault for part in topic.partitions) for topic in topics
        )
        gauges = [("topics_out_of_use", "gauge", "Topics that cannot be written.", faulty)]
        if now is not None:
            gauges += [
                ("free_bytes", "gauge", "Bytes left on the disk.", now.free),
                ("log_bytes", "gauge", "Bytes in logs, which are no segments yet.", now.logs),
                ("streams", "gauge", "Producers that send.", now.streams),
            ]
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
            *gauges,
        ):
            lines += _about(name, kind, what)
            lines.append(f"aqueduct_ingest_{name} {value}")
        lines += _about("commit_seconds", "histogram", "From a record's arrival to its answer.")
        total = 0
        for bound, count in zip((*BUCKETS, "+Inf"), self.commit_buckets, strict=True):
            total += count
            lines.append(f'aqueduct_ingest_commit_seconds_bucket{{le="{bound}"}} {total}')
        lines.append(f"aqueduct_ingest_commit_seconds_sum {self.commit_seconds}")
        lines.append(f"aqueduct_ingest_commit_seconds_count {self.commits}")
        lines += _partitions(topics)
        lines += _lags(topics)
        lines += _steps(topics, 0.0 if now is None else now.time)
        return "\n".join(lines) + "\n"


def _partitions(topics: Iterable[TopicInfo]) -> list[str]:
    sizes = _about("partition_bytes", "gauge", "Bytes of a partition on disk.")
    ends = _about("next_offset", "gauge", "Offset of the next record of a partition.")
    for topic in topics:
        for part in topic.partitions:
            labels = f'{{topic="{topic.topic}",partition="{part.partition}"}}'
            sizes.append(f"aqueduct_ingest_partition_bytes{labels} {part.size}")
            ends.append(f"aqueduct_ingest_next_offset{labels} {part.next_offset}")
    return sizes + ends


def _lags(topics: Iterable[TopicInfo]) -> list[str]:
    lines = _about("reader_lag", "gauge", "Records that a named reader has not read.")
    for topic in topics:
        for reader, offsets in topic.readers.items():
            for part in topic.partitions:
                lag = part.next_offset - max(offsets.get(part.partition, 0), part.first_offset)
                labels = f'topic="{topic.topic}",partition="{part.partition}",reader="{reader}"'
                lines.append(f"aqueduct_ingest_reader_lag{{{labels}}} {max(lag, 0)}")
    return lines


def _steps(topics: Iterable[TopicInfo], now: float) -> list[str]:
    """Return the metrics of unfinished steps and the rows that they keep from retention."""
    counts = _about("unfinished_steps", "gauge", "Unfinished steps of jobs.")
    idle = _about("unfinished_step_idle_seconds", "gauge", "Idle time of the longest idle one.")
    kept = _about("unfinished_step_rows", "gauge", "Records that they keep from retention.")
    for topic in topics:
        labels = f'{{topic="{topic.topic}"}}'
        counts.append(f"aqueduct_ingest_unfinished_steps{labels} {topic.unfinished_steps}")
        used = min((step.last_used for step in topic.steps), default=None)
        seconds = 0.0 if used is None else max(now - used / 1e6, 0.0)
        idle.append(f"aqueduct_ingest_unfinished_step_idle_seconds{labels} {seconds:.0f}")
        keeping = [
            step for step in topic.steps if step.kept_until is None or step.kept_until / 1e6 > now
        ]
        for part in topic.partitions:
            pinned = [step.offsets.get(part.partition, 0) for step in keeping]
            first = max(min(pinned, default=part.next_offset), part.first_offset)
            labels = f'{{topic="{topic.topic}",partition="{part.partition}"}}'
            rows = max(part.next_offset - first, 0)
            kept.append(f"aqueduct_ingest_unfinished_step_rows{labels} {rows}")
    return counts + idle + kept


def _about(name: str, kind: str, what: str) -> list[str]:
    return [f"# HELP aqueduct_ingest_{name} {what}", f"# TYPE aqueduct_ingest_{name} {kind}"]
