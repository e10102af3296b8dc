"""Connections over TCP with TLS 1.3: QUIC's frames in length-prefixed records (QMux)."""
