"""asyncio: the driver of one connection, its send and receive ports, local channels and waiters."""
