"""Aqueduct over QUIC: the only place that knows qh3 and sockets."""

IMPLEMENTATION = "qh3"
"""The package that implements QUIC, for diagnostics."""
