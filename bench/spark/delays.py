"""The latency of rows from send to commit, from the files and logs of a query."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq


def delays(table: Path, checkpoint: Path, lead: float) -> list[float]:
    """Return the seconds of each row from its timestamp to the commit of its batch.

    Rows of the first ``lead`` seconds do not count, because Spark compiles then.
    """
    pairs = []
    for batch, file in batches(table):
        committed = (checkpoint / "commits" / str(batch)).stat().st_mtime
        sent = pq.read_table(file, columns=["timestamp"]).column(0).cast("timestamp[us]")
        pairs += [(each / 1e6, committed) for each in sent.cast("int64").to_pylist()]
    first = min(sent for sent, _ in pairs)
    return [committed - sent for sent, committed in pairs if sent >= first + lead]


def batches(table: Path) -> Iterator[tuple[int, Path]]:
    """Return each file of a table with the batch that wrote it, from the table's log."""
    seen = set()
    logs = [path for path in (table / "_spark_metadata").iterdir() if path.name[0] != "."]
    for log in sorted(logs, key=lambda path: int(path.name.partition(".")[0])):
        for line in log.read_text().splitlines()[1:]:
            file = Path(unquote(urlparse(json.loads(line)["path"]).path))
            if file not in seen:
                seen.add(file)
                yield int(log.name.partition(".")[0]), file
