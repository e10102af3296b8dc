"""The end of Spark and of the Java that it runs in, which would else wait for this process."""

from __future__ import annotations

import logging
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PATIENCE = 20.0


def stop_spark(spark: SparkSession) -> None:
    """Stop a session, and Java with it."""
    from pyspark import SparkContext

    spark.stop()
    process = _java()
    if process is None:
        return
    assert SparkContext._gateway is not None
    SparkContext._gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None
    # It ends when nobody can write to it any more.
    assert process.stdin is not None
    process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_PATIENCE)


def kill_java() -> None:
    """End Java as it is; calls that wait for it fail."""
    # Which they would tell, each in its thread, to people who have just asked for the end.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    process = _java()
    if process is not None:
        process.kill()


def hush(spark: SparkSession) -> None:
    """Have pyspark not tell people, with a traceback, that Java hangs up.

    It was seen to do so while queries were being stopped, before the session was.
    """
    server = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None


def _java() -> subprocess.Popen[bytes] | None:
    """The process that pyspark has started, if it has."""
    from pyspark import SparkContext

    return getattr(SparkContext._gateway, "proc", None)
