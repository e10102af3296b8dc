"""The reserved headers of messages: the deadline of a request, and an error as its answer."""

from __future__ import annotations

import math
import re

from aqueduct.errors import CALL_CODE, CallError
from aqueduct.wire.primitives import HeaderPairs

TIMEOUT = b"aqueduct-timeout"
"""The header of a request with the milliseconds that are left for it (AQ-CALL-2)."""
MAX_TIMEOUT = 1_000_000_000_000
"""Milliseconds; a longer timeout counts as none."""
ERROR = b"aqueduct-error"
"""The header of a message that is an error instead of a value (AQ-CALL-3)."""
MAX_TEXT = 1_024
"""Bytes of the text of an error; a longer one is truncated."""

INVALID_REQUEST = "invalid-request"
"""The request could not be decoded (AQ-CALL-5)."""
INTERNAL = "internal"
"""The handler failed; the reason is not disclosed to the caller."""
DEADLINE_EXCEEDED = "deadline-exceeded"
"""The handler was cancelled at the deadline of the request."""
UNKNOWN = "unknown"
"""Stands for a code that is malformed."""

_DIGITS = re.compile(rb"[0-9]{1,13}")


def timeout_header(seconds: float) -> HeaderPairs:
    """Return the header of a request that has so much time left; none if that is unlimited."""
    if seconds * 1000 > MAX_TIMEOUT:
        return ()
    return ((TIMEOUT, b"%d" % math.ceil(max(0.0, seconds) * 1000)),)


def timeout_of(headers: HeaderPairs) -> float | None:
    """Return the seconds that are left for a request; None without a limit."""
    for name, value in headers:
        if name == TIMEOUT and _DIGITS.fullmatch(value):
            return int(value) / 1000
    return None


def error_header(code: str, text: str) -> HeaderPairs:
    """Return the header of a message that is an error."""
    value = text.encode("utf-8", "replace")[:MAX_TEXT]
    return ((ERROR, code.encode() + b" " + value),)


def error_of(headers: HeaderPairs) -> CallError | None:
    """Return the error that a message is, if it is one."""
    for name, value in headers:
        if name == ERROR:
            code, _, text = value[: MAX_TEXT + 65].partition(b" ")
            known = code.decode("ascii", "replace")
            if not CALL_CODE.fullmatch(known):
                known = UNKNOWN
            # A truncated text may end within a character.
            return CallError(known, text.decode("utf-8", "ignore"), by_peer=True)
    return None
