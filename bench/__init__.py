"""Benchmarks of the protocol core; run them with ``python -m bench``."""
