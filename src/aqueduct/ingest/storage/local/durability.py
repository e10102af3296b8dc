"""How far the partitions of a topic must reach: what is short of that was damaged, not cut short.

A group begins only after the one before it is on disk in every partition. So each block proves how
far all partitions were when it was written, and only the last group of all can be incomplete after
a crash. A server that is closed leaves a mark, after which nothing can be.
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
class Proof:
    """Something on disk that was written when all partitions had come so far."""

    group: int
    ends: dict[int, int]
    source: str


class Closed(msgspec.Struct, frozen=True):
    """Where each partition ended when the server was closed."""

    ends: dict[int, int] = {}
    version: int = 1


class _Accepted(msgspec.Struct, frozen=True):
    group: int = 0
    """Up to this group, somebody has accepted what is lost."""
    version: int = 1


def read_closed(directory: Path) -> Closed | None:
    """The mark of a topic that was closed; None if it was not."""
    try:
        return read_checked(directory / CLOSED, Closed, "the mark of a closed topic")
    except FileNotFoundError:
        return None
    except CorruptFile as fault:
        _log.warning("%s; that the topic was closed is known, and not where it ended", fault)
        return Closed()


def write_closed(parts: Sequence[Partition], directory: Path) -> None:
    """Say that nothing is under way."""
    ends = {part.number: part.next_offset for part in parts}
    write_checked(directory / CLOSED, Closed(ends))


def remove_closed(directory: Path) -> None:
    """Take the mark away for good, before anything is written."""
    remove_files([directory / CLOSED])
    sync_directory(directory)


def read_accepted(directory: Path) -> int:
    """The last group whose proofs do not count, because what is lost was accepted."""
    try:
        return read_checked(directory / ACCEPTED, _Accepted, "what was accepted as lost").group
    except FileNotFoundError:
        return 0


def write_accepted(directory: Path, group: int) -> None:
    """From now on proofs up to a group do not count."""
    write_checked(directory / ACCEPTED, _Accepted(group))


def newest_group(parts: Iterable[Partition]) -> int:
    """The last group of which anything is there."""
    return max((max(part.last_group, part.manifest.group) for part in parts), default=0)


def proofs(parts: Sequence[Partition], closed: Closed | None, accepted: int) -> list[Proof]:
    """All that is known of where partitions must reach to."""
    found = [proof for proof in _of_blocks(parts) if proof.group > accepted]
    if closed is not None:
        found.append(Proof(0, closed.ends, CLOSED))
    return found


def _of_blocks(parts: Sequence[Partition]) -> Iterator[Proof]:
    newest = newest_group(parts)
    for part in parts:
        yield Proof(part.manifest.group, part.manifest.proof, str(part.directory / NAME))
        block = part.last_block
        if block is not None:
            group = block.facts.group
            whole = group < newest
            yield Proof(group, block.facts.ends(whole), f"group {group} in {part.directory}")


def shortfalls(
    parts: Sequence[Partition], known: Iterable[Proof]
) -> list[tuple[Partition, CorruptFile]]:
    """The partitions that do not reach where they must, and what is missing of each."""
    short: dict[int, tuple[Partition, CorruptFile]] = {}
    for proof in known:
        for number, end in proof.ends.items():
            if number < len(parts) and parts[number].next_offset < end:
                part = parts[number]
                path, position = part.log_end
                reason = (
                    f"the log ends at offset {part.next_offset} and had rows behind that: "
                    f"{proof.source} proves it"
                )
                short.setdefault(number, (part, CorruptFile(path, position, reason)))
    return list(short.values())


def torn_ends(parts: Iterable[Partition]) -> list[tuple[Partition, CorruptFile]]:
    """The partitions whose log has an end that is no block, though no crash can have left it."""
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


def last_group(parts: Sequence[Partition], accepted: int) -> Proof:
    """Where partitions reach to if the last group that is in a log is whole."""
    newest = max((part.last_group for part in parts), default=0)
    for part in parts:
        if part.last_block is not None and part.last_group == newest > accepted:
            ends = part.last_block.facts.ends(whole=True)
            return Proof(newest, ends, f"group {newest} in {part.directory}")
    return Proof(0, {}, "")
