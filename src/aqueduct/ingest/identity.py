"""The identity of a topic: detects a recreated topic, and one restored from an older copy.

A topic has a random id, created with it. A restored copy has the same id, so a topic also has a
history of epochs: when a server begins to write to a topic, it records a random epoch id and the
end offset of each partition. Two copies of a topic are equal up to their last common epoch, and
within that epoch up to the start of the next one.

A position consists of offsets and the newest epoch that they reach into. The topic has the rows
before these offsets if its history has that epoch and no later epoch begins before them.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Annotated

import msgspec

_Id = Annotated[str, msgspec.Meta(max_length=64)]
MAX_OFFSETS = 1_024
"""Partitions in a position, and of a topic. Each takes about 100 bytes once it is decoded, and a
connection may have 256 pending requests with positions."""
MAX_POSITIONS = 16
"""Positions in `EndStep`, one for each start of the server while the step was written; checking
them delays all records."""


class TopicPosition(msgspec.Struct, frozen=True):
    """Offsets in a topic, with the identity of the rows before them.

    Store it (`to_text`) with the state of your program, and pass it when the program resumes: if
    the topic no longer has those rows, the client raises `TopicReplaced`.
    """

    topic_id: _Id
    epoch: _Id
    """The newest epoch with a row before these offsets; empty if there is none, or if the history
    no longer has it."""
    offsets: Annotated[dict[int, int], msgspec.Meta(max_length=MAX_OFFSETS)]
    """By partition, the offset after the last row that was read or stored."""

    def to_text(self) -> str:
        """Return the position as one line of JSON."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_text(cls, text: str) -> TopicPosition:
        """Parse the output of `to_text`; raise `ValueError` for anything else."""
        return msgspec.json.decode(text, type=cls)


class Epoch(msgspec.Struct, array_like=True, frozen=True):
    """A period in which one server process wrote to the topic."""

    id: str
    starts: list[int]
    """By partition, the offset at which the epoch begins."""


class History(msgspec.Struct, tag=True, frozen=True):
    """The identity of a topic: its id, and its epochs from old to new."""

    topic_id: str = ""
    """Empty for a topic that no server of this version has opened yet."""
    epochs: list[Epoch] = []

    def position(self, offsets: Mapping[int, int]) -> TopicPosition:
        """Return these offsets with the newest epoch that they reach into."""
        newest = ""
        for epoch in reversed(self.epochs):
            if any(_start(epoch, number) < offset for number, offset in offsets.items()):
                newest = epoch.id
                break
        return TopicPosition(self.topic_id, newest, dict(offsets))

    def end_of_epoch(self, epoch: str, partition: int) -> int | None:
        """Return the end of the rows up to an epoch that this topic has; None for all of them.

        For an epoch that the history lacks, that is the start of its oldest epoch: a position that
        old names an epoch that the history has dropped, or none.
        """
        limits = self._ends_of_epoch(epoch)
        if limits is None:
            return None
        return limits[partition] if 0 <= partition < len(limits) else 0

    def _ends_of_epoch(self, epoch: str) -> list[int] | None:
        """Return the same of each partition: all at once, since there may be many epochs."""
        later = []
        for each in reversed(self.epochs):
            if each.id == epoch:
                break
            later.append(each.starts)
        return [min(starts) for starts in zip(*later, strict=False)] if later else None

    def knows(self, position: TopicPosition) -> bool:
        """Return whether the history has the position's epoch."""
        return any(each.id == position.epoch for each in self.epochs)

    def mismatch(self, position: TopicPosition, ends: Mapping[int, int] | None = None) -> str:
        """Return why the rows before a position are not in this topic; empty if they are.

        With ``ends``, the end of each partition, a topic that is too short is a mismatch, too.
        """
        if not position.topic_id:
            return ""
        if position.topic_id != self.topic_id:
            return (
                f"it was recreated: its id is {self.topic_id or 'unknown'}, but the offsets belong "
                f"to {position.topic_id}"
            )
        limits = self._ends_of_epoch(position.epoch)
        for number, offset in sorted(position.offsets.items()):
            limit = offset if ends is None else ends.get(number, 0)
            if limits is not None:
                limit = min(limit, limits[number] if 0 <= number < len(limits) else 0)
            if offset > limit:
                return (
                    "it was restored from an older copy, or was truncated: partition "
                    f"{number} was at offset {offset}, but has only the rows before {limit}"
                )
        return ""

    def common(self, position: TopicPosition, firsts: Mapping[int, int]) -> dict[int, int]:
        """Return, by partition, the offset from which rows are new to a reader at a position.

        ``firsts`` has the first available offset of each partition. If the history has the epoch of
        the position, it gives the offset where the copies diverge; if not, all rows may be new.
        """
        found = dict(firsts)
        if position.topic_id == self.topic_id and self.knows(position):
            for number, first in firsts.items():
                offset = position.offsets.get(number, first)
                end = self.end_of_epoch(position.epoch, number)
                found[number] = offset if end is None else min(offset, end)
        return found

    def begun(self, ends: Mapping[int, int], max_epochs: int) -> History:
        """Return the history with a new epoch that begins at the end of each partition."""
        starts = [ends[number] for number in sorted(ends)]
        epochs = self.epochs
        if epochs and epochs[-1].starts == starts:
            epochs = epochs[:-1]  # the epoch has no rows, so no position names it
        epochs = [*epochs, Epoch(uuid.uuid4().hex[:16], starts)]
        return History(self.topic_id or new_topic_id(), epochs[-max_epochs:])


def new_topic_id() -> str:
    """Return a random id for a new topic, or for one without an id."""
    return uuid.uuid4().hex


def _start(epoch: Epoch, partition: int) -> int:
    return epoch.starts[partition] if 0 <= partition < len(epoch.starts) else 0
