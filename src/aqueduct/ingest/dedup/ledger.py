"""The row ids of a step in memory: which rows are new, and which ids can be evicted or spilled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from aqueduct.ingest.dedup.scope import HASH_SIZE, Attempt, Fingerprint, fingerprint_of


class Ids(Protocol):
    """The row ids of a ledger, in memory or in a file."""

    @property
    def size(self) -> int:
        """The number of ids and hashes in memory."""

    def add(self, bucket: int, ids: Sequence[bytes]) -> tuple[Iterable[bytes], int]:
        """Add ids; return the new ones and their number, without duplicates."""

    def of(self, bucket: int) -> Iterator[Sequence[bytes]]:
        """Yield the ids of a bucket in batches."""

    def discard(self, bucket: int) -> None:
        """Remove all ids of a bucket."""

    def credit(self, keys: Iterable[bytes]) -> None:
        """Count stored rows that this run has not sent."""

    def claim(self, keys: Sequence[bytes]) -> list[bool]:
        """Return for each key whether a credited row was left; use it up if so."""


class MemoryIds:
    """Row ids in sets: fast, at about 100 bytes each."""

    def __init__(self) -> None:
        self.buckets: dict[int, set[bytes]] = {}
        """The ids by part, or all in one bucket if they are unique in the step."""
        self.credits: dict[bytes, int] = {}
        self._size = 0

    @property
    def size(self) -> int:
        """The number of ids and hashes in memory."""
        return self._size + len(self.credits)

    def add(self, bucket: int, ids: Sequence[bytes]) -> tuple[Iterable[bytes], int]:
        """Add ids; return the new ones and their number, without duplicates."""
        known = self.buckets.setdefault(bucket, set())
        # Fast path: usually all ids are new.
        fresh = ids if known.isdisjoint(ids) else list(set(ids) - known)
        before = len(known)
        known.update(fresh)
        added = len(known) - before
        self._size += added
        return fresh, added

    def of(self, bucket: int) -> Iterator[Sequence[bytes]]:
        """Yield the ids of a bucket in batches."""
        if bucket in self.buckets:
            yield list(self.buckets[bucket])

    def discard(self, bucket: int) -> None:
        """Remove all ids of a bucket."""
        self._size -= len(self.buckets.pop(bucket, ()))

    def clear(self) -> None:
        """Remove everything."""
        self.buckets.clear()
        self.credits.clear()
        self._size = 0

    def credit(self, keys: Iterable[bytes]) -> None:
        """Count stored rows that this run has not sent."""
        credits = self.credits
        for key in keys:
            credits[key] = credits.get(key, 0) + 1

    def claim(self, keys: Sequence[bytes]) -> list[bool]:
        """Return for each key whether a credited row was left; use it up if so."""
        credits = self.credits
        found = []
        for key in keys:
            left = credits.get(key, 0)
            found.append(left > 0)
            if left > 1:
                credits[key] = left - 1
            elif left:
                del credits[key]
        return found


class Ledger:
    """The stored rows of one step: tells new rows from duplicates.

    Admitted rows count as stored. If they are not stored after all, the ledger is wrong and must
    be rebuilt from the stored rows.

    In a first run with content ids, the only attempt of a part so far sends each id once, so its
    rows are new whether or not the earlier ids are here. They are read from the rows when another
    attempt of the part is opened.
    """

    def __init__(
        self,
        *,
        unique: bool,
        is_first_run: bool,
        is_new_run: bool = True,
        max_recalled: int | None = None,
        spill: Callable[[MemoryIds], Ids] | None = None,
    ) -> None:
        """``spill`` moves ids to a file; it is called if more than ``max_recalled`` are recalled.

        ``is_new_run`` says that the run has stored nothing when the ledger is created.
        """
        self._unique = unique
        self._is_first_run = is_first_run
        self._counts = not is_first_run and is_new_run
        """Whether recalled rows belong to earlier runs, and are credited to this one."""
        self._max_recalled = max_recalled
        self._spill = spill
        self._ids: Ids = MemoryIds()
        """By part, the ids that this run has sent; in unique mode all are under part 0."""
        self.stored = Fingerprint()
        """The fingerprint of all stored rows of the step, over all runs."""
        self.left: int | None = 0 if is_first_run or is_new_run else None
        """Rows of earlier runs that this run has not sent yet; None if unknown."""
        self.is_partial = False
        """Whether `stored` may lack rows of the step, because retention has removed some."""
        self._used: dict[int, int] = {}
        """By part, when it was last written."""
        self._forgotten: set[int] = set()
        """Parts with stored rows whose ids are not in memory; only in a first run."""
        self._opened: set[int] = set()
        """Parts that a producer has opened or written."""
        self._only: dict[int, Attempt] = {}
        """By part, the attempt that stored all of its rows; only in a first run."""
        self._awaited: set[int] = set()
        """Forgotten parts that are being read back: ids added meanwhile must stay in memory."""

    @property
    def size(self) -> int:
        """The number of ids and hashes in memory."""
        return self._ids.size

    @property
    def is_spilled(self) -> bool:
        """Whether the ids are in a file."""
        return not isinstance(self._ids, MemoryIds)

    @property
    def is_rebuildable(self) -> bool:
        """Whether the ledger can be rebuilt from the stored rows."""
        return self._unique or self._is_first_run

    @property
    def is_by_part(self) -> bool:
        """Whether the ids of a part can be evicted without those of other parts."""
        return self._is_first_run and not self._unique

    def spill(self) -> None:
        """Move the ids from memory to a file."""
        if isinstance(self._ids, MemoryIds) and self._spill is not None:
            for part in self._only.keys() & self._ids.buckets.keys() - self._awaited:
                self.forget(part)
            self._ids = self._spill(self._ids)
            self._used.clear()

    def knows(self, part: int) -> bool:
        """Return whether the ids of a part are known; if not, read them back and `adopt` them."""
        return part not in self._forgotten

    def takes(self, part: int, attempt: Attempt | None) -> bool:
        """Return whether the ledger can tell which rows of an attempt are new."""
        return self.knows(part) or self._is_only(part, attempt)

    def can_forget(self, part: int) -> bool:
        """Return whether the attempts that write a part do not need its ids."""
        return part in self._only and part not in self._awaited

    def is_awaited(self, part: int) -> bool:
        """Return whether the rows of a part are being read back."""
        return part in self._awaited

    def open(self, part: int, attempt: Attempt | None) -> None:
        """Record that an attempt of a part begins."""
        if part in self._forgotten:
            self._awaited.add(part)  # the earlier attempt may write until `adopt`
        elif part in self._opened and not self._is_unused(part):
            self._only.pop(part, None)
        elif attempt is not None and self.is_by_part:
            self._only[part] = attempt
        self._opened.add(part)

    def _is_unused(self, part: int) -> bool:
        """Return whether the only attempt of a part has ended without storing a row."""
        only = self._only.get(part)
        if only is None or only.is_open or not isinstance(self._ids, MemoryIds):
            return False
        return not self._ids.buckets.get(part)

    def _is_only(self, part: int, attempt: Attempt | None) -> bool:
        return attempt is not None and self._only.get(part) is attempt

    def parts(self) -> list[tuple[int, int, int]]:
        """Return the parts in memory, each with its last use and its number of ids."""
        if not isinstance(self._ids, MemoryIds):
            return []
        buckets = self._ids.buckets
        return [(part, self._used.get(part, 0), len(ids)) for part, ids in buckets.items()]

    def use(self, part: int, now: int) -> None:
        """Record a use of a part: less recently used parts are evicted first."""
        if isinstance(self._ids, MemoryIds) and part in self._ids.buckets:
            self._used[part] = now

    def forget(self, part: int) -> None:
        """Evict the ids of a part with stored rows."""
        self._ids.discard(part)
        self._used.pop(part, None)
        self._forgotten.add(part)

    def adopt(self, part: int, other: Ledger) -> None:
        """Take the ids of a part from a ledger that was read back."""
        self._opened.add(part)
        if part not in self._forgotten:
            return
        self._forgotten.remove(part)
        self._awaited.discard(part)
        self._only.pop(part, None)
        if other.is_spilled:
            self.spill()  # the other ledger exceeded the memory limit, so this one does, too
        for ids in other._ids.of(part):
            self._ids.add(part, ids)

    def count(self, ids: Sequence[bytes]) -> None:
        """Count stored rows of the step without keeping their ids."""
        self.stored += fingerprint_of(b"".join(ids))

    def recall(self, part: int, ids: Sequence[bytes]) -> None:
        """Add rows of a part that were read back."""
        self.count(ids)
        if self._counts:
            self._ids.credit(map(self._key, ids))
            assert self.left is not None
            self.left += len(ids)
        elif ids:
            self._ids.add(self._bucket(part), ids)
        if self._max_recalled is not None and self.size > self._max_recalled:
            self.spill()

    def admit(
        self, part: int, ids: Sequence[bytes], attempt: Attempt | None = None
    ) -> Sequence[int]:
        """Return the indices of the new rows, which count as stored from now on."""
        if not ids:
            return ()
        if self._only:
            if not self._is_only(part, attempt):
                self._only.pop(part, None)
            elif (self.is_spilled or part in self._forgotten) and part not in self._awaited:
                return self._admit_unseen(part, ids)
        if self.is_by_part:
            self._opened.add(part)
        fresh, added = self._ids.add(self._bucket(part), ids)
        indices: Sequence[int]
        indices = range(len(ids)) if added == len(ids) else _first_indices(ids, fresh)
        if self._counts and self.left:
            indices = self._not_accounted_for(ids, indices)
        if len(indices) == len(ids):
            self.count(ids)
        elif indices:
            self.count([ids[index] for index in indices])
        return indices

    def _admit_unseen(self, part: int, ids: Sequence[bytes]) -> Sequence[int]:
        """Admit rows of the only attempt of a part without looking them up, or keeping their ids.

        Another attempt of the part reads them back, because the part is forgotten.
        """
        if part not in self._forgotten:
            self.forget(part)
        indices = range(len(ids))
        self.count(ids)
        return indices

    def _not_accounted_for(self, ids: Sequence[bytes], indices: Sequence[int]) -> Sequence[int]:
        """Return the rows, of those new to this run, that no earlier run has stored."""
        claimed = self._ids.claim([self._key(ids[index]) for index in indices])
        assert self.left is not None
        self.left -= sum(claimed)
        if not any(claimed):
            return indices
        return [index for index, is_stored in zip(indices, claimed, strict=True) if not is_stored]

    def complete(self, part: int) -> None:
        """Drop the ids of a completed part: they are not needed again."""
        if not self._unique:
            self._ids.discard(part)
            self._used.pop(part, None)
            self._forgotten.discard(part)
            self._only.pop(part, None)
            self._awaited.discard(part)

    def _bucket(self, part: int) -> int:
        return 0 if self._unique else part

    def _key(self, row_id: bytes) -> bytes:
        """Return the part of an id that identifies a row across runs."""
        return row_id if self._unique else row_id[:HASH_SIZE]


def _first_indices(ids: Sequence[bytes], wanted: Iterable[bytes]) -> list[int]:
    """Return the index of the first occurrence of each wanted id."""
    waiting = set(wanted)
    indices = []
    for index, each in enumerate(ids):
        if each in waiting:
            waiting.remove(each)
            indices.append(index)
    return indices


@dataclass(frozen=True)
class Idle:
    """Ids that can be evicted."""

    is_lost: bool
    """Whether they cannot be read back: their run must then begin again."""
    used: int
    """When they were last used, in microseconds since 1970."""
    job: str
    part: int | None
    """Their part; None for all parts of the job."""
    size: int

    is_busy: bool = False
    """Whether an attempt that does not need them writes the part."""

    @property
    def cost(self) -> tuple[bool, bool, int]:
        """The order of eviction, smallest first."""
        return self.is_lost, self.is_busy, self.used
