"""The distribution of tests over processes, and their Java."""

from __future__ import annotations

import gc
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import java

# An example may take any time, because the machine may be busy.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

GROUPS = {
    "killed": ("tests/spark/crashes/", "tests/cluster/"),
    "pipeline": ("tests/spark/pipeline/", "tests/cli/test_pipeline.py"),
    "session": ("tests/spark/",),
}
"""Paths of tests that start Java; the first match counts."""


@pytest.fixture(autouse=True)
def quic_unless_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no client race to TCP only because the machine is busy; tests of races do without."""
    monkeypatch.setattr("aqueduct.api.client.RACE_DELAY", 600.0)


def pytest_configure() -> None:
    java.use()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the garbage collector skip what stays until the end: modules, and the tests themselves.

    A collection then scans what tests have made since, and not some million other objects.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run the tests of Spark in few processes, because a session starts slowly.

    Tests that start their own processes mostly wait, and are a second group. Groups are chosen by
    path, because pytest-xdist 3.8 loses ``xdist_group`` marks with pytest 9.2.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    scheduler = LoadGroupScheduling(config, log)
    by_mark = scheduler._split_scope

    def group(nodeid: str) -> str:
        for name, prefixes in GROUPS.items():
            if nodeid.startswith(prefixes):
                return name
        return str(by_mark(nodeid))

    scheduler._split_scope = group
    return scheduler
