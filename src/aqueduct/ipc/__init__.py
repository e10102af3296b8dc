"""ScalableIPC: reliable messages without connections, by UDP on a host and TLS between hosts."""
