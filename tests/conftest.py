"""How tests are shared out over processes."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have all tests of Spark run in one process: a session takes longer to start than they take.

    They have a mark for that, too (``xdist_group``), which pytest-xdist 3.8 loses with pytest 9.2.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    scheduler = LoadGroupScheduling(config, log)
    by_mark = scheduler._split_scope

    def group(nodeid: str) -> str:
        is_spark = nodeid.startswith(("tests/spark/", "tests/cli/test_pipeline.py"))
        return "spark" if is_spark else str(by_mark(nodeid))

    scheduler._split_scope = group
    return scheduler
