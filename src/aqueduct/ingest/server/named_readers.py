"""The named readers of a topic: the offsets that they committed, which retention keeps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from aqueduct.ingest.errors import CorruptFile, IngestError, RefusedRecords, TopicReplaced
from aqueduct.ingest.identity import TopicPosition
from aqueduct.ingest.server.owners import Owners
from aqueduct.ingest.server.owners import check_owner as check_token
from aqueduct.ingest.settings import IngestSettings
from aqueduct.ingest.storage.base import Blob, TopicStorage, check_name
from aqueduct.ingest.storage.checked import read_blob, write_blob

_log = logging.getLogger("aqueduct.ingest")
_BLOB = "readers.json"
_OWNERS = "readers.owners.json"


@dataclass(frozen=True, slots=True)
class Move:
    """An advance of a named reader."""

    reader: str
    offsets: dict[int, int]
    owner: str = ""
    """The owner that moves the reader; empty for one that may move every reader."""
    position: TopicPosition | None = None
    """The position that the topic must match, if the reader sent one."""


class _State(msgspec.Struct):
    """The offsets of named readers; earlier versions stored the offsets alone."""

    offsets: dict[str, dict[int, int]]
    identity: dict[str, tuple[str, str]] = {}
    """By name, topic id and epoch of those offsets (`identity.TopicPosition`)."""
    version: int = 2


class NamedReaders:
    """The committed offsets of a topic's readers.

    One thread advances readers, not necessarily the one that appends. Any thread may read
    `offsets` and `stale`: both are replaced as a whole.
    """

    def __init__(
        self, storage: TopicStorage, check_position: Callable[[TopicPosition | None], None]
    ) -> None:
        """``check_position`` raises `TopicReplaced` unless the topic has the rows before it."""
        self._storage = storage
        self._check_position = check_position
        self._owners = Owners(storage.blob(_OWNERS), "reader")
        self._blob = storage.blob(_BLOB)
        self.offsets: dict[str, dict[int, int]] = {}
        """By name, the committed offset of each partition."""
        self._identity: dict[str, tuple[str, str]] = {}
        self.fault = ""
        """Why the offsets are unknown; retention then removes nothing."""
        try:
            state = _read_state(self._blob)
            self.offsets, self._identity = state.offsets, state.identity
        except CorruptFile as fault:
            self.fault = str(fault)
            _log.error("nothing is removed from topic %s any more: %s", storage.name, fault)
        self.stale = self._find_stale()
        """By name, why the offsets of a reader do not match the topic. Computed once: an open
        topic does not shrink, and its next epoch begins after all readers."""

    def advance_all(
        self, moves: Sequence[Move], max_readers: int = IngestSettings.max_readers
    ) -> list[IngestError | None]:
        """Commit moves of readers in one write; return the error of each, or None.

        Empty offsets delete a reader. The error is `TopicReplaced` if the topic no longer has the
        rows before the position of a move, or before the offsets that the reader committed last.
        """
        before = after = _State(self.offsets, self._identity)
        faults: list[IngestError | None] = []
        claims: dict[str, str] = {}
        for move in moves:
            try:
                check_token("reader", move.reader, claims.get(move.reader, ""), move.owner)
                after = self._moved(after, move, max_readers)
                faults.append(None)
                if move.owner:
                    claims.setdefault(move.reader, move.owner)
            except IngestError as fault:
                faults.append(fault)
        if after is before:
            return faults
        try:
            self._owners.claim(claims, after.offsets)
            write_blob(self._blob, after)
        except IngestError as error:
            return [fault or error for fault in faults]
        self.offsets, self._identity = after.offsets, after.identity
        # A stale reader cannot move; if it did, an earlier move of this batch deleted it.
        moved = {move.reader for move, fault in zip(moves, faults, strict=True) if fault is None}
        self.stale = {each: why for each, why in self.stale.items() if each not in moved}
        return faults

    def _moved(self, known: _State, move: Move, max_readers: int) -> _State:
        """Return the state of all readers after a move."""
        topic = self._storage.name
        reader, offsets = move.reader, move.offsets
        readers, identity = known.offsets, dict(known.identity)
        check_name(reader, "reader")
        self._owners.check(reader, move.owner)
        if offsets:
            self._check_position(move.position)
            if reader in readers and (reason := self.stale.get(reader)):
                raise TopicReplaced(
                    f"the offsets of reader {reader!r} belong to other rows than those of topic "
                    f"{topic}: {reason}. To continue, delete the reader (aqueduct topics "
                    f"{topic} --forget-reader {reader}), and advance it to new offsets"
                )
        if self.fault:
            raise IngestError(f"readers cannot advance: {self.fault}")
        if reader not in readers and offsets and len(readers) >= max_readers:
            raise RefusedRecords(f"topic {topic} has {len(readers)} readers already (max_readers)")
        partitions = self._storage.partitions
        for number, offset in offsets.items():
            if not 0 <= number < len(partitions):
                raise RefusedRecords(f"{topic} has no partition {number}")
            end = partitions[number].next_offset
            if not 0 <= offset <= end:
                raise RefusedRecords(
                    f"invalid offset {offset} of {topic} partition {number}: offsets go from 0 "
                    f"to {end}"
                )
        moved = {**readers, reader: {**readers.get(reader, {}), **offsets}}
        if offsets:
            where = self._storage.history.position(moved[reader])
            identity[reader] = where.topic_id, where.epoch
        else:
            del moved[reader]
            identity.pop(reader, None)
        return _State(moved, identity)

    def _find_stale(self) -> dict[str, str]:
        storage = self._storage
        # If another process has the topic open, its last rows may not be visible yet.
        ends = None
        if not storage.read_only:
            ends = {part.number: part.next_offset for part in storage.partitions}
        found = {}
        for reader, identity in self._identity.items():
            position = TopicPosition(*identity, self.offsets.get(reader, {}))
            if reason := storage.history.mismatch(position, ends):
                found[reader] = reason
                if not storage.read_only:
                    _log.warning(
                        "the offsets of reader %s belong to other rows than those of topic %s: %s",
                        reader, storage.name, reason,
                    )  # fmt: skip
        return found


def _read_state(blob: Blob) -> _State:
    what = "a list of readers"
    try:
        return read_blob(blob, _State, what) or _State({})
    except CorruptFile:
        return _State(read_blob(blob, dict[str, dict[int, int]], what) or {})
