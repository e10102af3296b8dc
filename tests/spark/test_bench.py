"""The Spark benchmark, run briefly."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aqueduct.ingest import blocking
from aqueduct.security import ServerTLS, trust
from bench.network.measures import SPARK_ALL, Kind
from bench.network.peer import Setting
from bench.spark import ours, own
from bench.spark.data import fill
from bench.spark.driver import Driver
from bench.spark.reading import Reading
from tests.spark.landing import Landing

ROWS = 800
ORDER = {"rows": ROWS, "size": 100, "seconds": 0.5, "rate": 100, "lead": 0.0}


@pytest.mark.parametrize("peer", ["aqueduct", "own"])
def test_every_measurement_runs(
    peer: str, spark: SparkSession, tmp_path: Path, tls: ServerTLS, trust_ca: str
) -> None:
    landing = Landing(tmp_path / "landing")
    fill(landing.directory, ROWS, 4, 100)
    with landing.served(tls) as server:
        setting = Setting(trust_ca, "", "", {"directory": str(tmp_path)})
        info = {"address": server.address}
        believed = trust(trust_ca.encode())
        with blocking.Producer(server.address, ours.ARRIVING, trust=believed) as producer:
            for number in range(50):
                producer.send(b"%d" % number)
        make: type[Reading] = ours.Reading if peer == "aqueduct" else own.Reading
        driver = Driver(spark, make(spark, setting, info), tmp_path, runs=1)
        for measure in SPARK_ALL:
            if measure.kind is Kind.DELAY:
                directory = driver.watch(ORDER)["directory"]
                assert driver.delay({**ORDER, "directory": directory})["p50"] > 0
            elif peer == "aqueduct" or not measure.ours_only:
                assert getattr(driver, measure.kind.value)(ORDER)["rate"] > 0
