"""The numbers of the specification, stated a second time: a checker does not believe the core's."""

from __future__ import annotations

from typing import Final

ACK_DELAY: Final = 0.010
ACK_EVERY: Final = 64
ANNOUNCE_DELAY: Final = 0.025
RECEIPT_DEADLINE_MIN: Final = 0.050
RECEIPT_DEADLINE_MAX: Final = 1.0
DEADLINE_GRAIN: Final = 0.005
"""By how much a receiver may round a deadline up."""
FORGET_INTERVAL: Final = 1.0

SURELY_A_DATAGRAM: Final = 600
"""A plain message of this size fits a datagram whatever else is in it."""

EPSILON: Final = 1e-6
"""Times closer than this are the same: they come from sums of the same numbers."""
