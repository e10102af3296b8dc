"""Channel ids: a bit field of the creator, the sending side, the oneshot flag and an index."""

from enum import IntEnum
from typing import Final


class Side(IntEnum):
    """One end of a connection; its value is its bit in a channel id."""

    CLIENT = 0
    SERVER = 1

    @property
    def other(self) -> "Side":
        """The opposite side."""
        return Side.CLIENT if self == Side.SERVER else Side.SERVER


ENTRYPOINT: Final = 0
"""The channel that every connection starts with, from client to server (AQ-CHANID-2)."""

MAX_INDEX: Final = 2**61 - 1


def channel_id(creator: int, sender: int, oneshot: bool, index: int) -> int:
    """Return the id with these four fields (AQ-CHANID-1)."""
    if not 0 <= index <= MAX_INDEX:
        raise ValueError(f"{index} is not a channel index")
    return index << 3 | (4 if oneshot else 0) | (sender & 1) << 1 | (creator & 1)


def creator_of(channel: int) -> int:
    """Return the side that created the channel: 0 for the client, 1 for the server."""
    return channel & 1


def sender_of(channel: int) -> int:
    """Return the side that sends on the channel: 0 for the client, 1 for the server."""
    return channel >> 1 & 1


def is_oneshot(channel: int) -> bool:
    """Return whether the channel carries one message only."""
    return channel & 4 != 0


def index_of(channel: int) -> int:
    """Return the channel's index in its space."""
    return channel >> 3


def space_of(channel: int) -> int:
    """Return the three low bits: channels that share them share an index space (AQ-CHANID-3)."""
    return channel & 7


def first_index(space: int) -> int:
    """Return the first index of a space: index 0 of space 0 is the entrypoint (AQ-CHANID-3)."""
    return 1 if space == 0 else 0


def describe(channel: int) -> str:
    """Return a short readable name: creator, ``#`` (``!`` if oneshot), index, direction.

    ``client#3>`` is the client's channel 3, flowing away from its creator; in ``server!0<`` the
    server made a oneshot channel that flows back to it.
    """
    if channel == ENTRYPOINT:
        return "entrypoint"
    creator = "server" if creator_of(channel) else "client"
    mark = "!" if is_oneshot(channel) else "#"
    direction = ">" if sender_of(channel) == creator_of(channel) else "<"
    return f"{creator}{mark}{index_of(channel)}{direction}"
