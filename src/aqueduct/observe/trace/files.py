"""Parquet files that are written under a hidden name and renamed when they are complete."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from aqueduct.observe.trace.schema import NAMES, SCHEMA, WRITTEN

PARTIAL = ".partial"

_DICTIONARY = [*NAMES, "mode", "how", "rule", "limits"]
# These columns grow by small steps, which delta encoding stores compactly.
_ENCODINGS = {
    "sequence": "DELTA_BINARY_PACKED",
    "monotonic_ns": "DELTA_BINARY_PACKED",
    "wall": "DELTA_BINARY_PACKED",
    "channel": "DELTA_BINARY_PACKED",
    "message": "DELTA_BINARY_PACKED",
    "size": "DELTA_BINARY_PACKED",
    "payload_size": "DELTA_BINARY_PACKED",
    "stream": "DELTA_BINARY_PACKED",
}


class TraceFile:
    """A file that is being written. Spark and Arrow ignore names that begin with a dot."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self.reported = 0
        """Dropped rows that are reported by rows of this file."""
        self._partial = path.with_name(f".{path.name}{PARTIAL}")
        # Private: a trace reveals which peers exchanged how much data, and when.
        handle = os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
        self._file: BinaryIO = os.fdopen(handle, "wb")
        try:
            self._writer: Any = pq.ParquetWriter(
                self._file,
                WRITTEN,
                store_schema=False,
                compression="zstd",
                compression_level=1,
                use_dictionary=_DICTIONARY,
                column_encoding=_ENCODINGS,
                write_statistics=["connection", "kind", "channel", "sequence", "wall"],
            )
        except BaseException:
            self.discard()
            raise

    def write(self, table: pa.Table) -> None:
        """Append rows as one row group."""
        self._writer.write_table(table)
        self.rows += table.num_rows

    def complete(self) -> None:
        """Finish the file, sync it and rename it."""
        self._writer.add_key_value_metadata(SCHEMA.metadata)
        self._writer.close()
        self._file.flush()
        # Without it, a power failure could leave the name without the contents.
        os.fsync(self._file.fileno())
        self._file.close()
        self._partial.rename(self.path)

    def discard(self) -> None:
        """Delete the incomplete file."""
        self.detach()
        with contextlib.suppress(OSError):
            self._partial.unlink()

    def detach(self) -> None:
        """Release the file without writing anything more to it."""
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            # The Arrow writer writes a footer when it is collected, so redirect its descriptor.
            os.dup2(nowhere, self._file.fileno())
            os.close(nowhere)
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._writer.close()
        with contextlib.suppress(OSError, ValueError):
            self._file.close()
