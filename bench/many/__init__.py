"""Many connections to one server, many subscribers, and many channels on one connection."""
