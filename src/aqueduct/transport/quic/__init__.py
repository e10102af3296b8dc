"""Aqueduct over QUIC: the only place that knows qh3 and sockets."""
