"""Ingest: from channels to durable partitions, exactly once."""
