"""Spark through our source and sink, beside Spark's own Parquet files, in one run."""
