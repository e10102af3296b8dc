"""Bytes to values and back: the wire format of Aqueduct, pure and without state of its own."""
