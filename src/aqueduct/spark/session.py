"""Create a Spark session: with Java, quiet, and by default local to this host."""

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
    # With TCP, other users of this host could connect to the JVM's ports for Python workers.
    "spark.python.unix.domain.socket.enabled": "true",
    # The same on every machine, because a streaming query keeps its initial number.
    "spark.sql.shuffle.partitions": "4",
}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOG4J = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
"""Set when the JVM starts: Spark logs most before a session can set the level."""


def session(
    app_name: str = "aqueduct", master: str = "local[*]", **settings: Setting
) -> SparkSession:
    """Return a Spark session with ``format("aqueduct")``: a new one, or the active one.

    ``settings`` are configuration properties of Spark, and override the defaults here::

        spark = aqueduct.spark.session(**{"spark.driver.memory": "4g"})
    """
    _require_pyspark()
    from pyspark.sql import SparkSession

    chosen = {"spark.app.name": app_name, "spark.master": master, **_ALWAYS}
    if master.startswith("local"):
        chosen |= _LOCAL
    for name, value in settings.items():
        if not name.startswith("spark."):
            raise ValueError(
                f'session({name}=…): settings are named as in Spark; pass **{{"spark.{name}": …}}'
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
    """Register ``format("aqueduct")`` in a session.

    Spark finds an installed package without this call, unless the session has searched before the
    package was installed.
    """
    _require_pyspark()
    from aqueduct.spark.datasource import AqueductSource

    spark.dataSource.register(AqueductSource)


def _require_pyspark() -> None:
    """Raise `ImportError` with the remedy unless pyspark is installed."""
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "aqueduct.spark needs pyspark: pip install 'aqueduct-channels[spark]'", name="pyspark"
        ) from error


@contextmanager
def _environment(is_local: bool) -> Iterator[None]:
    """Set the environment variables that Spark's launcher reads, while it starts."""
    from pyspark import SparkContext

    wanted = {}
    if SparkContext._gateway is None:
        wanted["JAVA_HOME"] = str(find_java())
        # The default of Spark is "python3", which may lack this package.
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
