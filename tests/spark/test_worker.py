"""Processes of Spark: told from those of the user, and made ready once."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from aqueduct.errors import ConnectionLost
from aqueduct.spark.worker import ConnectionCache, freeze_heap, is_worker


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    freeze_heap.cache_clear()
    yield
    freeze_heap.cache_clear()
    gc.unfreeze()


def as_program(patch: pytest.MonkeyPatch, name: str | None) -> None:
    main = ModuleType("__main__")
    main.__spec__ = None if name is None else ModuleSpec(name, None)
    patch.setitem(sys.modules, "__main__", main)


@pytest.mark.parametrize("name", [None, "pytest.__main__"])
def test_a_process_of_the_user_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    before = gc.get_freeze_count()
    as_program(monkeypatch, name)
    assert not is_worker()
    freeze_heap()
    assert gc.get_freeze_count() == before


def test_a_worker_looks_no_more_at_what_it_has_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    before = gc.get_freeze_count()
    as_program(monkeypatch, "pyspark.daemon")
    assert is_worker()
    freeze_heap()
    assert gc.get_freeze_count() > before + 1_000


class Connection:
    def __init__(self, name: str) -> None:
        self.name = name
        self.ended = 0

    def end(self) -> None:
        self.ended += 1
        raise ConnectionLost("gone already")


def test_a_connection_is_made_once_for_each() -> None:
    cache = ConnectionCache(Connection, Connection.end)
    kept = cache.get("a")
    assert cache.get("a") is kept
    assert cache.get("b") is not kept


def test_one_that_was_dropped_is_ended_and_made_anew() -> None:
    cache = ConnectionCache(Connection, Connection.end)
    kept = cache.get("a")
    cache.drop("a")
    cache.drop("a")
    assert kept.ended == 1
    assert cache.get("a") is not kept


def test_a_fork_makes_its_own() -> None:
    cache = ConnectionCache(Connection, Connection.end)
    kept = cache.get("a")
    child = os.fork()
    if child == 0:
        os._exit(0 if cache.get("a") is not kept else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cache.get("a") is kept
