"""The modes of senders, and the channel header in which a sender that is sent away takes its own.

The header is a hint: how to send is the choice of the side that holds the sender (AQ-MODE-1).
"""

from __future__ import annotations

from enum import Enum

from aqueduct.errors import LocalProtocolError
from aqueduct.protocol.greeting import RESERVED
from aqueduct.wire.primitives import HeaderPairs


class Mode(Enum):
    """How a sender sends; its own choice (AQ-SEND-3).

    ``ORDERED`` messages arrive in the order of sending. ``UNORDERED`` ones do not wait for each
    other. ``UNRELIABLE`` ones go in datagrams, and are lost with them: without credit the sender
    does not wait, but drops its oldest. A message too large for a datagram is sent as unordered.
    """

    ORDERED = "ordered"
    UNORDERED = "unordered"
    UNRELIABLE = "unreliable"


MODE_HEADER = b"aqueduct-mode"
"""The reserved channel header that names a mode."""

_HINTS: dict[bytes, Mode] = {mode.value.encode(): mode for mode in Mode}


def check_mode(mode: object) -> Mode:
    """Return the mode; raise `TypeError` if this is none."""
    if not isinstance(mode, Mode):
        raise TypeError(f"mode is a Mode such as Mode.UNRELIABLE, not {mode!r}")
    return mode


def check_channel_headers(headers: HeaderPairs) -> None:
    """Raise LocalProtocolError if an application sets a reserved channel header (AQ-CHAN-4)."""
    for name, _ in headers:
        if name.startswith(RESERVED):
            raise LocalProtocolError(
                f"AQ-CHAN-4: channel header names in {RESERVED!r} are reserved: {name!r}"
            )


def with_hint(headers: HeaderPairs, mode: Mode) -> HeaderPairs:
    """Return the headers of a channel whose sender is sent away (AQ-MODE-1).

    Senders start ordered, so that mode needs no header.
    """
    if mode is Mode.ORDERED:
        return headers
    return (*headers, (MODE_HEADER, mode.value.encode()))


def hinted_mode(headers: HeaderPairs) -> Mode:
    """Return the mode with which a sender that was received starts (AQ-MODE-1)."""
    mode = Mode.ORDERED
    for name, value in headers:
        if name == MODE_HEADER:
            mode = _HINTS.get(value, mode)
    return mode


def visible_headers(headers: HeaderPairs) -> HeaderPairs:
    """Return the channel headers that the application sees: those not reserved (AQ-CHAN-4)."""
    if not any(name.startswith(RESERVED) for name, _ in headers):
        return headers
    return tuple(pair for pair in headers if not pair[0].startswith(RESERVED))
