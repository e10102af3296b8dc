"""Complete Parquet files and nothing else: written under a hidden name, renamed when whole."""

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
# These rise by small steps, which this encoding makes small, and fast to write and to read.
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
    """One file in the making. Names that begin with a dot are invisible to Spark and to Arrow."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self.told = 0
        """Dropped rows that its rows tell of."""
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
        """Append rows, as one group."""
        self._writer.write_table(table)
        self.rows += table.num_rows

    def complete(self) -> None:
        """Finish the file and give it its name."""
        self._writer.add_key_value_metadata(SCHEMA.metadata)
        self._writer.close()
        self._file.flush()
        # Otherwise the name could outlive a power failure and the contents not.
        os.fsync(self._file.fileno())
        self._file.close()
        self._partial.rename(self.path)

    def discard(self) -> None:
        """Give the file up."""
        self.detach()
        with contextlib.suppress(OSError):
            self._partial.unlink()

    def detach(self) -> None:
        """Let go of the file as it is, whatever its writer has still to say."""
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            # The writer writes a footer when it is collected, and may hold the only reference.
            os.dup2(nowhere, self._file.fileno())
            os.close(nowhere)
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._writer.close()
        with contextlib.suppress(OSError, ValueError):
            self._file.close()
