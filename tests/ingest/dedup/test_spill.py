"""Spilled ids: the same answers as from memory, and no file left behind."""

from __future__ import annotations

import random
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aqueduct.ingest.dedup.ledger import MemoryIds
from aqueduct.ingest.dedup.spill import SpilledIds, SpillFault, clear

KEYS = [bytes([number]) * 20 for number in range(12)]


@given(st.integers(0, 2**32).map(random.Random))
@settings(max_examples=100, deadline=None)
def test_spilled_ids_answer_as_ids_in_memory_do(
    tmp_path_factory: pytest.TempPathFactory, rng: random.Random
) -> None:
    directory = tmp_path_factory.getbasetemp() / "spilled"
    memory, copied = MemoryIds(), MemoryIds()
    spilled: Any = None
    for number in range(rng.randint(1, 30)):
        if number == 5:
            spilled = SpilledIds(directory, copied)
        keys = rng.choices(KEYS, k=rng.randint(0, 8))
        bucket = rng.randrange(2)
        for ids in (memory, spilled or copied):
            memory_is_asked = ids is memory
            state = rng.getstate()
            kind = rng.randrange(4)
            if kind == 0:
                fresh, added = ids.add(bucket, keys)
                found: Any = set(fresh), added
            elif kind == 1:
                found = ids.credit(keys)
            elif kind == 2:
                found = ids.claim(keys)
            elif rng.random() < 0.3:
                found = ids.discard(bucket)
            else:
                found = sorted(each for some in ids.of(bucket) for each in some)
            if memory_is_asked:
                wanted = found
                rng.setstate(state)
        assert found == wanted


def test_a_spill_file_is_unlinked_and_private(tmp_path: Path) -> None:
    directory = tmp_path / ".spill"
    ids = SpilledIds(directory)
    ids.add(0, KEYS)
    assert list(directory.iterdir()) == []
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    (directory / "ids-left").touch()
    clear(directory)
    assert list(directory.iterdir()) == []
    clear(tmp_path / "nowhere")


def test_many_ids_are_looked_up_in_batches(tmp_path: Path) -> None:
    ids = [number.to_bytes(20, "big") for number in range(5_000)]
    spilled = SpilledIds(tmp_path)
    assert spilled.add(0, ids[:3_000])[1] == 3_000
    fresh, added = spilled.add(0, ids)
    assert (sorted(fresh), added) == (ids[3_000:], 2_000)
    spilled.credit(ids)
    assert spilled.claim(ids * 2) == [True] * 5_000 + [False] * 5_000
    assert spilled.size == 0


def test_errors_of_a_spill_file_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> Any:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(sqlite3, "connect", broken)
    with pytest.raises(SpillFault, match="disk is full; free disk space on the server"):
        SpilledIds(tmp_path)
    assert list(tmp_path.iterdir()) == []
