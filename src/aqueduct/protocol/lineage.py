"""Which channels of our creation are accessible, pending or lost, and how that spreads.

Theory of operation. A channel is created by a message: its *carrier*. Until the fate of the carrier
is known, the channel is *pending*. It becomes *accessible* when the carrier is acked and the
channel the carrier was sent on is accessible; it is *lost* when the carrier is nacked or the
channel it was sent on is lost. Both facts spread down the tree of channels, and a peer decides how
deep that tree is, so they spread by iteration, never by recursion (AQ-LIN-5).

A `Node` outlives the half it belongs to: a channel that was finished and closed before its carrier
got lost still has to be forgotten at the peer, and so do the channels below it (AQ-LIN-4).
"""

from __future__ import annotations

LINEAGE_SHOWN = 16
"""Ancestors named in an event. The bound keeps the cost of a chain of losses linear."""


class Node:
    """The lineage of one channel: whether it is accessible, and the channels it carried."""

    __slots__ = ("accessible", "channel", "kept", "known", "waiting")

    def __init__(self, channel: int, accessible: bool) -> None:
        self.channel = channel
        self.accessible = accessible
        self.known = False
        """Whether a ROUTE_TO for it was sent or received: the peer may have a half of it."""
        self.waiting: dict[int, list[Node]] | None = None
        """Channels in messages neither acked nor nacked, by message key."""
        self.kept: list[Node] | None = None
        """Channels in acked messages, while this channel itself is pending."""

    def attach(self, key: int, children: list[Node]) -> None:
        """Record the channels that message ``key`` on this channel carries."""
        if self.waiting is None:
            self.waiting = {}
        self.waiting[key] = children

    def size(self) -> int:
        """Return how many messages with channels, and channels of acked ones, are recorded."""
        waiting = len(self.waiting) if self.waiting is not None else 0
        return waiting + (len(self.kept) if self.kept is not None else 0)

    def release(self, key: int) -> list[Node]:
        """Remove and return the channels of a message whose fate is known."""
        if self.waiting is None:
            return []
        children = self.waiting.pop(key, None)
        if not self.waiting:
            self.waiting = None
        return children or []

    def release_range(self, reliable: bool, start: int, stop: int) -> list[Node]:
        """Remove and return the channels of all messages in a range of numbers."""
        if self.waiting is None:
            return []
        if stop - start <= len(self.waiting):
            keys = [message_key(reliable, number) for number in range(start, stop)]
        else:
            low, high = message_key(reliable, start), message_key(reliable, stop)
            keys = [key for key in self.waiting if low <= key < high and key & 1 == reliable]
        children: list[Node] = []
        for key in keys:
            children.extend(self.release(key))
        return children

    def release_all(self) -> list[Node]:
        """Remove and return the channels of every message whose fate is open."""
        waiting, self.waiting = self.waiting, None
        return [node for nodes in waiting.values() for node in nodes] if waiting else []

    def acked(self, children: list[Node]) -> list[Node]:
        """Record that the carriers were acked; return what is accessible now (AQ-LIN-2)."""
        if not children:
            return children
        if self.accessible:
            return spread_accessible(children)
        if self.kept is None:
            self.kept = []
        self.kept.extend(children)
        return []


def message_key(reliable: bool, number: int) -> int:
    """Return one key for a message of either number space, in the order of its space."""
    return number << 1 | reliable


def spread_accessible(roots: list[Node]) -> list[Node]:
    """Mark channels and their acked descendants accessible (AQ-LIN-2, AQ-LIN-5)."""
    found = list(roots)
    for node in found:
        node.accessible = True
        if node.kept is not None:
            found.extend(node.kept)
            node.kept = None
    return found


def spread_lost(roots: list[Node], lineage: tuple[int, ...]) -> list[tuple[Node, tuple[int, ...]]]:
    """Return lost channels and all descendants, each with its lost ancestors (AQ-LIN-3).

    ``lineage`` starts with the channel whose message was lost; ancestors come nearest first.
    """
    found = [(node, lineage) for node in roots]
    for node, above in found:
        children = node.release_all()
        if node.kept is not None:
            children.extend(node.kept)
            node.kept = None
        if children:
            path = (node.channel, *above)[:LINEAGE_SHOWN]
            found.extend((child, path) for child in children)
    return found
