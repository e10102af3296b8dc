"""Processes of Spark: told from those of the user, and made ready once."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from aqueduct.spark.worker import is_worker, settle


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    settle.cache_clear()
    yield
    settle.cache_clear()
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
    settle()
    assert gc.get_freeze_count() == before


def test_a_worker_looks_no_more_at_what_it_has_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    before = gc.get_freeze_count()
    as_program(monkeypatch, "pyspark.daemon")
    assert is_worker()
    settle()
    assert gc.get_freeze_count() > before + 1_000
