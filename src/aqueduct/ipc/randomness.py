"""Where the ids and backoffs of an endpoint come from."""

from __future__ import annotations

import os
from random import Random

_POOL = 4_096
"""Bytes asked of the system at a time; the call costs as much as sending a small message does."""


class SystemChance:
    """Ids that nobody can guess, each byte of the system's used once; backoffs that anybody may.

    An endpoint does not outlive a fork, so no two processes have the same pool.
    """

    __slots__ = ("_at", "_pool", "uniform")

    def __init__(self) -> None:
        self._pool = b""
        self._at = 0
        self.uniform = Random().uniform

    def randbytes(self, n: int, /) -> bytes:
        """Bytes nobody can guess."""
        at = self._at
        end = at + n
        if end > len(self._pool):
            self._pool = os.urandom(max(_POOL, n))
            at, end = 0, n
        self._at = end
        return self._pool[at:end]
