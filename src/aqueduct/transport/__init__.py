"""What carries a connection: the transport protocols, and their implementations."""
