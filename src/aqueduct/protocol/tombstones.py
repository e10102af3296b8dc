"""Tombstones of ended channels, so that late frames do not create them again."""

from __future__ import annotations

from collections import OrderedDict

from aqueduct.protocol.config import Config
from aqueduct.wire.chanid import index_of, space_of
from aqueduct.wire.ranges import RangeSet


class Tombstones:
    """Ended channels as ranges per index space; past a cap, the recent ones (AQ-FORGET-4)."""

    __slots__ = ("_cap", "_interval", "_ranges", "_recent")

    def __init__(self, config: Config) -> None:
        self._cap = config.max_remembered
        self._interval = config.forget_interval
        self._ranges: dict[int, RangeSet] = {}
        self._recent: OrderedDict[int, float] = OrderedDict()

    def __contains__(self, channel: int) -> bool:
        ended = self._ranges.get(space_of(channel))
        return (ended is not None and index_of(channel) in ended) or channel in self._recent

    def add(self, channel: int, now: float) -> None:
        """Add a channel that ended."""
        ended = self._ranges.setdefault(space_of(channel), RangeSet())
        index = index_of(channel)
        adjacent = index - 1 in ended or index + 1 in ended
        if adjacent or ended.range_count < self._cap:
            ended.add(index, index + 1)
            return
        expire(self._recent, now - self._interval)
        if self._recent and len(self._recent) >= self._cap:
            self._recent.popitem(last=False)
        self._recent[channel] = now


def expire(times: OrderedDict[int, float], before: float) -> None:
    """Delete the entries, oldest first, that are as old as ``before``.

    An OrderedDict, because a plain dict finds its first entry by scanning past all deleted ones.
    """
    while times:
        channel = next(iter(times))
        if times[channel] > before:
            break
        del times[channel]
