"""How tests are shared out over processes."""

from __future__ import annotations

from typing import Any

import pytest

SPARK = ("tests/spark/", "tests/cluster/", "tests/cli/test_pipeline.py")
"""Where sessions of Spark are started."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have all tests of Spark run in one process: a session takes longer to start than they take.

    Those that start processes of their own are among them: two sets of Java at once are slower than
    one after the other, and may not fit. Marks (``xdist_group``) are lost by pytest-xdist 3.8 with
    pytest 9.2, so paths tell.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    scheduler = LoadGroupScheduling(config, log)
    by_mark = scheduler._split_scope

    def group(nodeid: str) -> str:
        is_spark = nodeid.startswith(SPARK)
        return "spark" if is_spark else str(by_mark(nodeid))

    scheduler._split_scope = group
    return scheduler
