"""The reserved headers of messages: the deadline of a request, and an error as its answer."""

from __future__ import annotations

import math

from aqueduct.wire.primitives import HeaderPairs

TIMEOUT = b"aqueduct-timeout"
"""The header of a request with the milliseconds that are left for it (AQ-CALL-2)."""
MAX_TIMEOUT = 1_000_000_000_000
"""Milliseconds; a longer timeout is as good as none."""

DEADLINE_EXCEEDED = "deadline-exceeded"


def timeout_header(seconds: float) -> HeaderPairs:
    """Return the header of a request that has so much time left; none if that is unlimited."""
    if seconds * 1000 > MAX_TIMEOUT:
        return ()
    return ((TIMEOUT, b"%d" % math.ceil(max(0.0, seconds) * 1000)),)
