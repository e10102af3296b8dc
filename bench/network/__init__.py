"""Channels compared with peers: two processes each, on the same machine, in one run."""
