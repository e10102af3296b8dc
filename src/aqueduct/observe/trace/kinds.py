"""The kinds of rows and the names of frames, as small integers while rows wait."""

from __future__ import annotations

from enum import IntEnum
from typing import get_args

from aqueduct.wire.frames import Frame, frame_name

NULL = -(2**63)
"""The integer that becomes null in the file."""


class Kind(IntEnum):
    """The kind of a row; the file has its name in lower case."""

    CONNECTION_OPENED = 0
    CONNECTION_ENDED = 1
    FRAME_SENT = 2
    FRAME_RECEIVED = 3
    STREAM_FINISHED = 4
    STREAM_FINISH_RECEIVED = 5
    STREAM_RESET = 6
    STREAM_RESET_RECEIVED = 7
    CHANNEL_CREATED = 8
    CHANNEL_ENDED = 9
    MESSAGE_TAKEN = 10
    MESSAGE_DELIVERED = 11
    MESSAGE_UNDELIVERED = 12
    MESSAGE_LOST = 13
    MESSAGE_OPEN = 14
    UNREADABLE = 15
    ROWS_DROPPED = 16


FRAMES: tuple[type[Frame], ...] = get_args(Frame)
FRAME_NAMES = ("", *(frame_name(frame) for frame in FRAMES))
FRAME_CODES: dict[type[Frame], int] = {frame: at for at, frame in enumerate(FRAMES, 1)}

# The fields of a row's code: kind, frame, number space, fin, and whether each message has a size.
FRAME_SHIFT = 8
SPACE_SHIFT = 16
FIN = 1 << 20
SIZED = 1 << 21

UNRELIABLE = 1 << SPACE_SHIFT
RELIABLE = 2 << SPACE_SHIFT


def space(reliable: bool) -> int:
    """Return the bits of a code for a number space."""
    return RELIABLE if reliable else UNRELIABLE
