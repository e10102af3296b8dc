"""A Spark program that streams from an ingest server on a cluster, and tells each batch.

python -m tests.cluster.streaming MASTER CHECKPOINT OPTIONS; the options are those of the source, as
JSON. A line to read has it read what is there, and come to its end.
"""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import DataFrame
from pyspark.sql.types import Row

import aqueduct.spark
from tests.cluster.standalone import SETTINGS
from tests.ingest.crashing import say


def tell(batch: DataFrame, number: int) -> None:
    rows = [
        (row.partition, row.offset, row.producer_sequence)
        for row in batch.select("partition", "offset", "producer_sequence").collect()
    ]
    say("batch", number=number, rows=rows)


def where(_: Row) -> str:
    """In which executor this runs: each has a directory of its own."""
    return os.getcwd()


def main(master: str, checkpoint: str, options: dict[str, str]) -> None:
    spark = aqueduct.spark.session("streaming", master, **SETTINGS)
    say("began")
    stream = spark.readStream.format("aqueduct").options(startingOffsets="earliest", **options)
    query = (
        stream.load()
        .writeStream.foreachBatch(tell)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    sys.stdin.readline()
    query.processAllAvailable()
    query.stop()
    del options["maxOffsetsPerTrigger"]
    frame = spark.read.format("aqueduct").options(minPartitions="8", **options).load()
    places = frame.rdd.map(where).distinct().collect()
    say("finished", places=places)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
