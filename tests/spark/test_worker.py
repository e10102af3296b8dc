"""Python workers of Spark: the frozen heap, and cached connections."""

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


@pytest.fixture
def thawed() -> Iterator[None]:
    """Undo for one test what `tests/conftest.py` has frozen."""
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def as_program(patch: pytest.MonkeyPatch, name: str | None) -> None:
    main = ModuleType("__main__")
    main.__spec__ = None if name is None else ModuleSpec(name, None)
    patch.setitem(sys.modules, "__main__", main)


@pytest.mark.parametrize("name", [None, "pytest.__main__"])
def test_a_process_of_the_user_is_not_frozen(
    monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    before = gc.get_freeze_count()
    as_program(monkeypatch, name)
    assert not is_worker()
    freeze_heap()
    assert gc.get_freeze_count() == before


@pytest.mark.usefixtures("thawed")
def test_a_worker_excludes_imported_objects_from_garbage_collection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_each_key_has_one_connection() -> None:
    cache = ConnectionCache(Connection, Connection.end)
    kept = cache.get("a")
    assert cache.get("a") is kept
    assert cache.get("b") is not kept


def test_a_dropped_connection_is_closed_and_reopened() -> None:
    cache = ConnectionCache(Connection, Connection.end)
    kept = cache.get("a")
    cache.drop("a")
    cache.drop("a")
    assert kept.ended == 1
    assert cache.get("a") is not kept


def test_a_forked_process_opens_its_own_connections() -> None:
    cache = ConnectionCache(Connection, Connection.end)
    kept = cache.get("a")
    child = os.fork()
    if child == 0:
        os._exit(0 if cache.get("a") is not kept else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cache.get("a") is kept
