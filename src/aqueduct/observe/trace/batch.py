"""Rows that wait to be written, kept as few plain numbers for each run of alike rows."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from aqueduct.observe.trace.kinds import FRAME_CODES, FRAME_SHIFT, NULL, SIZED, Kind, space
from aqueduct.wire.frames import Frame

FIELDS = 8
"""Numbers per run: time, connection, code, channel, first message, count, stream, value."""

Connection = tuple[str, str]
"""The id of a connection and the side that recorded it."""

_SIGN = 1 << 63


def signed(value: int) -> int:
    """A 64-bit number as its column holds it: Parquet's readers share only signed ones."""
    return value if value < _SIGN else value - 2 * _SIGN


class Batch:
    """Rows of any number of connections, in the order they were recorded.

    A run is one entry in ``numbers`` and stands for ``count`` rows with rising message numbers.
    Columns that few rows have are in ``rare``, by name, as (run, value).
    """

    __slots__ = ("connections", "numbers", "rare", "rows", "runs", "sizes", "told", "weight")

    def __init__(self) -> None:
        self.numbers = array("q")
        self.sizes = array("q")
        self.rare: dict[str, tuple[list[int], list[Any]]] = {}
        self.connections: dict[Connection, int] = {}
        self.runs = 0
        self.rows = 0
        self.told = 0
        """Dropped rows that a row in here tells of."""
        self.weight = 0
        """Rows, and besides them what rare columns hold in lists."""

    def add(
        self,
        time: int,
        connection: Connection,
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
        """The sizes of the messages in the run that comes next; its code says SIZED."""
        self.sizes.extend(sizes)

    def _add_rare(self, rare: Mapping[str, Any]) -> None:
        for name, value in rare.items():
            runs, values = self.rare.setdefault(name, ([], []))
            runs.append(self.runs)
            values.append(value)
            if isinstance(value, list):
                self.weight += len(value)


class Waste(Batch):
    """Takes the place of a batch when there is no room: counts rows and forgets them."""

    __slots__ = ()

    def add(
        self,
        time: int,
        connection: Connection,
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
        """Nothing to keep."""


def frame_code(kind: Kind, frame: type[Frame], reliable: bool | None = None) -> int:
    """The code of a frame's row; of a MESSAGE with its number space, and sizes."""
    code = int(kind) | FRAME_CODES[frame] << FRAME_SHIFT
    return code if reliable is None else code | space(reliable) | SIZED
