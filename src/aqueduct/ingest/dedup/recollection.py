"""Reads the ids of a step back from its stored rows, after a restart or a failed commit group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from aqueduct.ingest.dedup.ledger import Ledger
from aqueduct.ingest.dedup.scope import (
    ID_HEADER,
    Job,
    ScopeFault,
    WriteScope,
    parse_producer_id,
)
from aqueduct.ingest.errors import RefusedRecords
from aqueduct.ingest.server.memory import release_free_memory
from aqueduct.ingest.storage.base import PartitionStorage

_PIECE = 8_192
"""Rows to convert at a time: each id is a Python object meanwhile."""
_COLUMNS = ("producer_id", "headers")
"""The columns with the id of a row; values may be a thousand times larger, and are not read."""


@dataclass(frozen=True)
class Recollection:
    """Ids to read back before a producer may write, in any thread; then see `Jobs.install`."""

    scope: WriteScope
    ledger: Ledger
    ends: dict[int, int]
    job: Job
    known: Ledger | None = None
    """The ledger of the job in memory, if other parts are known."""
    only_counts: bool = False
    """Whether to compute only the fingerprint of the stored rows."""

    def read(self, partitions: Sequence[PartitionStorage]) -> None:
        """Fill the ledger from the rows of the step."""
        release_free_memory()  # free memory of earlier writes, about as much as the read needs
        try:
            for part in partitions:
                # The ids of rows that retention has removed are unknown.
                began = self.job.offsets.get(part.number, 0)
                start = max(began, part.first_offset)
                end = self.ends[part.number]
                if began < start:
                    self.ledger.is_partial = True
                if start < end:
                    for batch in part.read(start, end, _COLUMNS):
                        for at in range(0, batch.num_rows, _PIECE):
                            self._recall(batch.slice(at, _PIECE))
                        # Arrow's pool keeps freed memory, measured at many times the batch.
                        pa.default_memory_pool().release_unused()
        except ScopeFault as fault:
            raise RefusedRecords(str(fault)) from None
        finally:
            release_free_memory()

    def _recall(self, batch: pa.RecordBatch) -> None:
        producers = batch.column("producer_id")
        for producer in pc.unique(producers).to_pylist():
            found = parse_producer_id(producer)
            if found is None or found[:2] != (self.scope.job, self.scope.step):
                continue
            part = found[3]
            headers = batch.column("headers").filter(pc.equal(producers, producer))
            if self.only_counts:
                self.ledger.count(ids_of(headers))
            elif self.ledger.is_by_part and part != self.scope.part:
                self.ledger.forget(part)  # read again when a producer opens the part
                self.ledger.count(ids_of(headers))
            else:
                self.ledger.recall(part, ids_of(headers))


def ids_of(headers: pa.Array) -> list[bytes]:
    """Return the ids of rows, which are in the last header of each row that has one."""
    headers = headers.filter(pc.greater(pc.list_value_length(headers), 0))
    last = pc.subtract(headers.offsets.slice(1), pa.scalar(1, pa.int32()))
    names, values = (headers.values.field(number).take(last) for number in (0, 1))
    ids: list[bytes] = values.filter(pc.equal(names, ID_HEADER)).to_pylist()
    return ids
