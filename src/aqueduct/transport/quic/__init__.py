"""Aqueduct over QUIC; no other package imports qh3."""
