"""Lets Spark find ``format("aqueduct")`` by itself: it looks into packages with such names."""

from aqueduct.spark.datasource import AqueductSource as DefaultSource

__all__ = ["DefaultSource"]
