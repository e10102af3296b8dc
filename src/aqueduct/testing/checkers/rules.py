"""The constants of the specification, independent of those of the core."""

from __future__ import annotations

from typing import Final

ROUTE_DELAY: Final = 0.010
ACK_EVERY: Final = 64
ANNOUNCE_DELAY: Final = 0.025
DEADLINE_GRAIN: Final = 0.005
"""The granularity to which a receiver may round a deadline up."""
FORGET_INTERVAL: Final = 1.0
FORGET_PATIENCE: Final = 5.0
"""After this time, a peer that keeps naming an ended channel is answered although not quiet."""
FORGOTTEN_TIMEOUT: Final = 10.0
CANCELLED_TIMEOUT: Final = 1.0
CLOSING_TIMEOUT: Final = 10.0

SAFE_DATAGRAM_SIZE: Final = 600
"""A plain message of this size always fits a datagram."""

FIRST_WINDOW: Final = 1_048_576
"""Bytes of a channel window that every sender uses before it waits."""

EPSILON: Final = 1e-6
"""Times closer than this are equal but for rounding."""
NEVER: Final = float("inf")
