from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aqueduct.errors import TraceError
from aqueduct.observe.trace.read import channels, ledger, read
from aqueduct.observe.trace.schema import SCHEMA, VERSION_KEY


def test_each_channel_comes_after_its_carrier(recorded: Path) -> None:
    seen: set[int] = set()
    for one in channels(read(recorded)):
        assert one.carrier is None or one.carrier in seen
        seen.add(one.channel)
    assert len(seen) > 10


def test_one_end_alone_can_be_read(conversation: tuple[Path, object]) -> None:
    messages = ledger(read(conversation[0] / "client"))
    assert "dropped" not in messages["fate"].to_pylist()
    assert messages.num_rows > 900


def test_a_single_file_can_be_read(recorded: Path) -> None:
    path = next(recorded.iterdir())
    assert read(path).num_rows == pq.read_table(path).num_rows


def test_incomplete_files_are_ignored(recorded: Path, tmp_path: Path) -> None:
    for path in recorded.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / ".aqueduct-1.parquet.partial").write_bytes(b"PAR1")
    assert read(tmp_path).num_rows == read(recorded).num_rows
    assert pq.read_table(tmp_path).num_rows == read(recorded).num_rows


def test_a_directory_without_files_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no trace files in"):
        read(tmp_path)
    with pytest.raises(TraceError, match="missing"):
        read(tmp_path / "missing")


def test_a_broken_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(TraceError, match=r"broken\.parquet"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [({VERSION_KEY: b"99"}, "a trace of schema 99"), ({}, "no trace")],
)
def test_another_schema_is_an_error_that_says_so(
    tmp_path: Path, metadata: dict[bytes, bytes], said: str
) -> None:
    empty = SCHEMA.with_metadata(metadata).empty_table()
    pq.write_table(empty, tmp_path / "other.parquet")
    with pytest.raises(TraceError, match=said):
        read(tmp_path)


def test_a_cycle_of_carriers_does_not_hang() -> None:
    rows = [
        {"connection": "c", "kind": "channel_created", "channel": 8, "carrier": 16},
        {"connection": "c", "kind": "channel_created", "channel": 16, "carrier": 8},
    ]
    columns = {
        name: pa.array([row.get(name) for row in rows], SCHEMA.field(name).type)
        for name in SCHEMA.names
    }
    assert len(channels(pa.table(columns))) == 2
