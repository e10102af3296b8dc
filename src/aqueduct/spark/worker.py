"""What the processes need in which Spark runs Python: they live long, and start many tasks."""

from __future__ import annotations

import gc
import sys
from functools import cache

_DAEMON = "pyspark.daemon"
"""The program that Spark's workers are forks of."""


@cache
def settle() -> None:
    """Spare this process, if it is a worker, a look at all it has imported after each task.

    Spark has garbage collected when a task ends. With pyspark, pyarrow and us that is a hundred
    thousand objects which never go, and some 40 ms.
    """
    if is_worker():
        gc.collect()
        gc.freeze()


def is_worker() -> bool:
    """Whether this process belongs to Spark, and not to the user."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _DAEMON
