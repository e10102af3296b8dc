"""The ingest server: accepts records over channels, commits them and serves readers."""
