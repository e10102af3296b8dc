"""A Spark session that is ready at once: with Java, quiet, and on this host alone unless told."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from aqueduct.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Setting = str | int | float | bool

_ALWAYS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_LOCAL: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Unlike with TCP, nobody else on this host can connect to Java's ends of its Python workers.
    "spark.python.unix.domain.socket.enabled": "true",
    # The same on every machine: a streaming query keeps the number that it began with.
    "spark.sql.shuffle.partitions": "4",
}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOG4J = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
"""Set when Java starts: most of what Spark says, it says before anybody can set a level."""


def session(
    app_name: str = "aqueduct", master: str = "local[*]", **settings: Setting
) -> SparkSession:
    """A Spark session with ``format("aqueduct")``, or the one that is there already.

    ``settings`` are Spark's own, by their names, and go before ours::

        spark = aqueduct.spark.session(**{"spark.driver.memory": "4g"})
    """
    need_pyspark()
    from pyspark.sql import SparkSession

    chosen = {"spark.app.name": app_name, "spark.master": master, **_ALWAYS}
    if master.startswith("local"):
        chosen |= _LOCAL
    for name, value in settings.items():
        if not name.startswith("spark."):
            raise ValueError(
                f"session({name}=…): settings are called as Spark calls them; pass "
                f'**{{"spark.{name}": …}}'
            )
        chosen[name] = str(value).lower() if isinstance(value, bool) else str(value)
    java_options = f"{_LOG4J} {chosen.get(_JAVA_OPTIONS, '')}"
    chosen[_JAVA_OPTIONS] = java_options.rstrip()
    builder: SparkSession.Builder = SparkSession.builder
    for name, text in chosen.items():
        builder = builder.config(name, text)
    with _environment(is_local=master.startswith("local")):
        spark: SparkSession = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make ``format("aqueduct")`` known to a session, however it was made.

    Spark finds it by itself where this package is installed; this is for when it is not, or when
    the session has looked before.
    """
    need_pyspark()
    from aqueduct.spark.datasource import AqueductSource

    spark.dataSource.register(AqueductSource)


def need_pyspark() -> None:
    """Raise an error that says what to do unless there is pyspark."""
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "aqueduct.spark needs pyspark: pip install 'aqueduct-channels[spark]'", name="pyspark"
        ) from error


@contextmanager
def _environment(is_local: bool) -> Iterator[None]:
    """What Spark's launcher takes from the environment, for as long as it starts."""
    from pyspark import SparkContext

    wanted = {}
    if SparkContext._gateway is None:
        wanted["JAVA_HOME"] = str(find_java())
        # Spark would take whatever "python3" is, which has perhaps none of our packages.
        wanted["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON", sys.executable)
        if is_local:
            wanted["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
