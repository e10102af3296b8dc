"""Durability evidence: the offsets that each partition of a topic must contain.

A group is written only after the previous group is durable in every partition. So each block is a
high-water mark: it proves how far all partitions were when it was written, and only the last group
can be incomplete after a crash. A partition below a high-water mark is damaged. A server that is
closed writes a mark file, after which not even the last group can be incomplete.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from aqueduct.ingest.errors import CorruptFile
from aqueduct.ingest.storage.local.files import (
    read_checked,
    remove_files,
    sync_directory,
    write_checked,
)
from aqueduct.ingest.storage.local.manifest import NAME
from aqueduct.ingest.storage.local.partition import Partition

_log = logging.getLogger("aqueduct.ingest")
CLOSED = "closed.json"
ACCEPTED = "accepted.json"


@dataclass(frozen=True)
class HighWaterMark:
    """The offsets that the partitions had reached when a file was written."""

    group: int
    ends: dict[int, int]
    """By partition, the offset after the last durable row."""
    source: str
    """The file or block that proves it."""


class ClosedMark(msgspec.Struct, frozen=True):
    """The end of each partition when the server was closed."""

    ends: dict[int, int] = {}
    version: int = 1


class _AcceptedLoss(msgspec.Struct, frozen=True):
    group: int = 0
    """High-water marks up to this group do not count: an operator has accepted the loss."""
    version: int = 1


def read_closed(directory: Path) -> ClosedMark | None:
    """Return the mark of a closed topic; None if it was not closed."""
    try:
        return read_checked(directory / CLOSED, ClosedMark, "the mark of a closed topic")
    except FileNotFoundError:
        return None
    except CorruptFile as fault:
        _log.warning("%s; the topic was closed, but its ends are unknown", fault)
        return ClosedMark()


def write_closed(parts: Sequence[Partition], directory: Path) -> None:
    """Mark a topic as closed."""
    ends = {part.number: part.next_offset for part in parts}
    write_checked(directory / CLOSED, ClosedMark(ends))


def remove_closed(directory: Path) -> None:
    """Remove the mark durably, before the next write."""
    remove_files([directory / CLOSED])
    sync_directory(directory)


def read_accepted(directory: Path) -> int:
    """Return the last group whose high-water marks do not count; 0 if all count."""
    try:
        return read_checked(directory / ACCEPTED, _AcceptedLoss, "what was accepted as lost").group
    except FileNotFoundError:
        return 0


def write_accepted(directory: Path, group: int) -> None:
    """Discard the high-water marks up to a group."""
    write_checked(directory / ACCEPTED, _AcceptedLoss(group))


def newest_group(parts: Iterable[Partition]) -> int:
    """Return the number of the newest group in any partition."""
    return max((max(part.last_group, part.manifest.group) for part in parts), default=0)


def high_water_marks(
    parts: Sequence[Partition], closed: ClosedMark | None, accepted: int
) -> list[HighWaterMark]:
    """Return all high-water marks after the group ``accepted``."""
    found = [mark for mark in _marks_of_blocks(parts) if mark.group > accepted]
    if closed is not None:
        found.append(HighWaterMark(0, closed.ends, CLOSED))
    return found


def _marks_of_blocks(parts: Sequence[Partition]) -> Iterator[HighWaterMark]:
    newest = newest_group(parts)
    for part in parts:
        source = str(part.directory / NAME)
        yield HighWaterMark(part.manifest.group, part.manifest.high_water, source)
        block = part.last_block
        if block is not None:
            group = block.metadata.group
            ends = block.metadata.ends(is_durable=group < newest)
            yield HighWaterMark(group, ends, f"group {group} in {part.directory}")


def shortfalls(
    parts: Sequence[Partition], marks: Iterable[HighWaterMark]
) -> list[tuple[Partition, CorruptFile]]:
    """Return the partitions below a high-water mark, each with the error to report."""
    short: dict[int, tuple[Partition, CorruptFile]] = {}
    for mark in marks:
        for number, end in mark.ends.items():
            if number < len(parts) and parts[number].next_offset < end:
                part = parts[number]
                path, position = part.log_end
                reason = (
                    f"the log ends at offset {part.next_offset} and had rows behind that: "
                    f"{mark.source} proves it"
                )
                short.setdefault(number, (part, CorruptFile(path, position, reason)))
    return list(short.values())


def torn_tails(parts: Iterable[Partition]) -> list[tuple[Partition, CorruptFile]]:
    """Return the partitions of a closed topic whose log has a torn tail, which is damage."""
    return [
        (
            part,
            CorruptFile(
                part.torn.path,
                part.torn.position,
                f"{part.torn.reason}, and no crash can have left it: the server was closed",
            ),
        )
        for part in parts
        if part.torn is not None
    ]


def mark_of_last_group(parts: Sequence[Partition], accepted: int) -> HighWaterMark:
    """Return the ends of the partitions if the last group in a log is complete."""
    newest = max((part.last_group for part in parts), default=0)
    for part in parts:
        if part.last_block is not None and part.last_group == newest > accepted:
            ends = part.last_block.metadata.ends(is_durable=True)
            return HighWaterMark(newest, ends, f"group {newest} in {part.directory}")
    return HighWaterMark(0, {}, "")
