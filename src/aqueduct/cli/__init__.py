"""The command line: one file per command, each of them a thin user of the public API."""
