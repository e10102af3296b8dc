"""Aqueduct over QUIC: the only package that uses qh3."""

IMPLEMENTATION = "qh3"
"""The package that implements QUIC, for diagnostics."""
