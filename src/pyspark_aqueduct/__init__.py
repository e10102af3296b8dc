"""Lets Spark discover ``format("aqueduct")``: it searches packages named ``pyspark_*``."""

from aqueduct.spark.datasource import AqueductSource as DefaultSource

__all__ = ["DefaultSource"]
