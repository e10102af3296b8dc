"""What carries PDUs: UDP on one host, TCP with TLS between hosts, and memory."""
