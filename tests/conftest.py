"""How tests are shared out over processes."""

from __future__ import annotations

from typing import Any

import pytest

GROUPS = {
    "killed": ("tests/spark/crashes/", "tests/cluster/"),
    "session": ("tests/spark/", "tests/cli/test_pipeline.py"),
}
"""Tests that start Java, by where they are; the first that fits counts."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have tests of Spark run in few processes: a session takes longer to start than they take.

    Those that start processes of their own are a second group: they wait more than they work. Marks
    (``xdist_group``) are lost by pytest-xdist 3.8 with pytest 9.2, so paths tell.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    scheduler = LoadGroupScheduling(config, log)
    by_mark = scheduler._split_scope

    def group(nodeid: str) -> str:
        for name, places in GROUPS.items():
            if nodeid.startswith(places):
                return name
        return str(by_mark(nodeid))

    scheduler._split_scope = group
    return scheduler
