"""Producers and readers of an ingest server."""
