"""Channel ids: a bit field that says who made a channel, which way it flows and its number."""

from enum import IntEnum
from typing import Final


class Side(IntEnum):
    """One end of a connection, by the bit that stands for it in a channel id."""

    CLIENT = 0
    SERVER = 1

    @property
    def other(self) -> "Side":
        """The side at the far end."""
        return Side.CLIENT if self == Side.SERVER else Side.SERVER


ENTRYPOINT: Final = 0
"""The channel every connection begins with: from the client to the server (AQ-CHANID-2)."""

MAX_INDEX: Final = 2**61 - 1


def channel_id(creator: int, sender: int, oneshot: bool, index: int) -> int:
    """Put the four fields together (AQ-CHANID-1)."""
    if not 0 <= index <= MAX_INDEX:
        raise ValueError(f"{index} is not a channel index")
    return index << 3 | (4 if oneshot else 0) | (sender & 1) << 1 | (creator & 1)


def creator_of(channel: int) -> int:
    """The side that made the channel: 0 the client, 1 the server."""
    return channel & 1


def sender_of(channel: int) -> int:
    """The side that sends on the channel: 0 the client, 1 the server."""
    return channel >> 1 & 1


def is_oneshot(channel: int) -> bool:
    """Whether the channel carries one message only."""
    return channel & 4 != 0


def index_of(channel: int) -> int:
    """The channel's number among those of its space."""
    return channel >> 3


def space_of(channel: int) -> int:
    """The three low bits: channels that share them are numbered together (AQ-CHANID-3)."""
    return channel & 7


def first_index(space: int) -> int:
    """Where a space begins to count: index 0 of space 0 is the entrypoint (AQ-CHANID-3)."""
    return 1 if space == 0 else 0


def describe(channel: int) -> str:
    """A short name for people: creator, ``#`` (``!`` if oneshot), index, direction.

    ``client#3>`` is the client's channel 3, flowing away from its creator; in ``server!0<`` the
    server made a oneshot channel that flows back to it.
    """
    if channel == ENTRYPOINT:
        return "entrypoint"
    creator = "server" if creator_of(channel) else "client"
    mark = "!" if is_oneshot(channel) else "#"
    direction = ">" if sender_of(channel) == creator_of(channel) else "<"
    return f"{creator}{mark}{index_of(channel)}{direction}"
