"""Lets Spark's Python workers start in a third of the time.

Python imports this module when it starts, because `tests.java.use` names this directory in
``PYTHONPATH``. Spark starts most workers as forks of a daemon, one daemon for each kind of worker:

- Spark makes its workers import pyspark from a zip file without bytecode, so that each process
  compiles it again. Here they import the installed package.
- The daemon imports what its workers would import after the fork.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import PurePath

if any(argument.startswith("pyspark.") for argument in sys.orig_argv):
    archives = ("pyspark.zip", "py4j-*.zip")
    sys.path[:] = [
        path for path in sys.path if not any(PurePath(path).match(name) for name in archives)
    ]
    if "pyspark.daemon" in sys.orig_argv:
        for name in (
            sys.orig_argv[-1],
            "aqueduct.spark.sink.writer",
            "aqueduct.spark.source.reader",
        ):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
