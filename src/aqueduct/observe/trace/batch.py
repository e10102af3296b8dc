"""Rows that wait to be written, stored as a few integers per run of similar rows."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from aqueduct.observe.trace.kinds import FRAME_CODES, FRAME_SHIFT, NULL, SIZED, Kind, space
from aqueduct.wire.frames import Frame

FIELDS = 8
"""Integers per run: time, connection, code, channel, first message, count, stream, value."""

ConnectionKey = tuple[str, str]
"""The id of a connection and the side that recorded it."""

_SIGN = 1 << 63


def signed(value: int) -> int:
    """Return an unsigned 64-bit integer as a signed one: not all Parquet readers know unsigned."""
    return value if value < _SIGN else value - 2 * _SIGN


class RowBatch:
    """Rows of any number of connections, in the order in which they were recorded.

    A run is one entry in ``numbers`` and stands for ``count`` rows with rising message numbers.
    Columns that few rows have are in ``rare``, by name, as (run, value).
    """

    __slots__ = ("connections", "numbers", "rare", "reported", "rows", "runs", "sizes", "weight")

    def __init__(self) -> None:
        self.numbers = array("q")
        self.sizes = array("q")
        self.rare: dict[str, tuple[list[int], list[Any]]] = {}
        self.connections: dict[ConnectionKey, int] = {}
        self.runs = 0
        self.rows = 0
        self.reported = 0
        """Dropped rows that are reported by a row of this batch."""
        self.weight = 0
        """The number of rows, plus the number of list elements in rare columns."""

    def add(
        self,
        time: int,
        connection: ConnectionKey,
        code: int,
        channel: int = NULL,
        message: int = NULL,
        count: int = 1,
        stream: int = NULL,
        value: int = NULL,
        rare: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a run of rows."""
        connections = self.connections
        index = connections.get(connection)
        if index is None:
            index = connections[connection] = len(connections)
        if message >= _SIGN or channel >= _SIGN or value >= _SIGN:
            message, channel, value = signed(message), signed(channel), signed(value)
        self.numbers.extend((time, index, code, channel, message, count, stream, value))
        if rare:
            self._add_rare(rare)
        self.runs += 1
        self.rows += count
        self.weight += count

    def add_sizes(self, sizes: array[int]) -> None:
        """Add the sizes of the messages of the next run, whose code has SIZED set."""
        self.sizes.extend(sizes)

    def _add_rare(self, rare: Mapping[str, Any]) -> None:
        for name, value in rare.items():
            runs, values = self.rare.setdefault(name, ([], []))
            runs.append(self.runs)
            values.append(value)
            if isinstance(value, list):
                self.weight += len(value)


class DroppedRows(RowBatch):
    """Replaces a batch when the memory limit is reached: counts rows and drops them."""

    __slots__ = ()

    def add(
        self,
        time: int,
        connection: ConnectionKey,
        code: int,
        channel: int = NULL,
        message: int = NULL,
        count: int = 1,
        stream: int = NULL,
        value: int = NULL,
        rare: Mapping[str, Any] | None = None,
    ) -> None:
        """Count the rows."""
        self.rows += count

    def add_sizes(self, sizes: array[int]) -> None:
        """No-op: the rows are dropped."""


def frame_code(kind: Kind, frame: type[Frame], reliable: bool | None = None) -> int:
    """Return the code of a frame's row; a MESSAGE has a number space and a size."""
    code = int(kind) | FRAME_CODES[frame] << FRAME_SHIFT
    return code if reliable is None else code | space(reliable) | SIZED
