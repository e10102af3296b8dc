"""Sessions: default settings, logging, and sessions that the user creates."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import aqueduct.spark
from aqueduct.spark.java import _packaged, make_home
from tests import java
from tests.spark.landing import Landing

USERS_OWN = """
import sys
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
assert "aqueduct" not in sys.modules
rows = spark.read.format("aqueduct").option("subscribe", "logs").load(sys.argv[1])
print(rows.count(), spark._jvm.System.getProperty("java.home"))
spark.stop()
"""


def test_a_session_has_the_default_settings(spark: SparkSession) -> None:
    settings = spark.sparkContext.getConf()
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "4"
    assert settings.get("spark.ui.enabled") == "false"
    assert settings.get("spark.driver.host") == "127.0.0.1"
    assert settings.get("spark.python.unix.domain.socket.enabled") == "true"
    assert settings.get("spark.master") == "local[2]"
    assert settings.get("spark.app.name") == "tests"


def test_a_session_logs_only_errors(spark: SparkSession) -> None:
    logs: Any = spark._jvm.org.apache.logging.log4j.LogManager  # type: ignore[union-attr]
    assert logs.getRootLogger().getLevel().toString() == "ERROR"


def test_the_active_session_is_reused(spark: SparkSession) -> None:
    before = dict(os.environ)
    again = aqueduct.spark.session("another", "local[2]", **{"spark.sql.shuffle.partitions": 7})
    assert again.sparkContext is spark.sparkContext
    assert again.conf.get("spark.sql.shuffle.partitions") == "7"
    again.conf.set("spark.sql.shuffle.partitions", "4")
    assert dict(os.environ) == before


def test_a_setting_without_the_spark_prefix_is_rejected() -> None:
    with pytest.raises(ValueError, match=r'pass \*\*\{"spark.memory": …\}'):
        aqueduct.spark.session(memory="4g")


def test_a_missing_pyspark_is_reported_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(ImportError, match=r"pip install 'aqueduct-channels\[spark\]'"):
        aqueduct.spark.session()


def test_spark_finds_the_format_in_a_users_own_session_on_the_java_of_pip(
    landing: Landing, tmp_path: Path
) -> None:
    landing.write("logs", 30)
    packaged = _packaged()
    assert packaged is not None
    environment = {
        **os.environ,
        "JAVA_HOME": str(make_home(packaged, tmp_path / "cache")),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_TOOL_OPTIONS": java.FAST,
    }
    done = subprocess.run(
        [sys.executable, "-c", USERS_OWN, landing.path],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    count, home = done.stdout.split()
    assert int(count) == 30
    assert Path(home) == packaged.parent.parent.resolve()
