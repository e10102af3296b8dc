"""What observes a connection: traces and metrics."""
