"""Spark with our source and sink, compared with Spark's own Parquet files, in one run."""
