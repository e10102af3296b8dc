"""The page about traces: its example runs, and it documents every column and row."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from aqueduct.observe.trace.kinds import FRAME_NAMES, Kind
from aqueduct.observe.trace.schema import SCHEMA, SCHEMA_VERSION

PAGE = Path(__file__).resolve().parents[3] / "docs" / "trace.md"
TEXT = PAGE.read_text()
TYPES = {
    pa.string(): "string",
    pa.int64(): "int64",
    pa.bool_(): "bool",
    pa.list_(pa.int64()): "list of int64",
    pa.list_(pa.string()): "list of string",
    pa.timestamp("us", tz="UTC"): "timestamp, µs, UTC",
}


def test_the_example_prints_the_fate_of_each_message(recorded: Path) -> None:
    program = re.findall(r"```python\n(.*?)```", TEXT, re.S)[-1]
    done = subprocess.run(
        [sys.executable, "-c", program, str(recorded)], check=True, capture_output=True, text=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) > 900
    assert "client#1> 299: delivered" in lines
    assert "client#3> datagram 0: delivered" in lines
    assert "client#4> 0: delivered, never taken" in lines
    assert "client#5> 0: undelivered" in lines
    assert "client#6> 0: lost" in lines
    assert "client#8> 0: open" in lines


def test_every_column_is_documented_with_its_type() -> None:
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \| ([^|]+) \|", TEXT, re.M)
    documented: dict[str, str] = {}
    for names, types in rows:
        columns = re.findall(r"`([a-z_]+)`", names)
        kinds = types.split(", ") if len(columns) > 1 else [types]
        documented |= dict(zip(columns, kinds, strict=False))
    for field in SCHEMA:
        assert documented[field.name] == TYPES[field.type], field.name


def test_every_kind_of_row_and_every_frame_with_columns_is_documented() -> None:
    for kind in Kind:
        assert f"`{kind.name.lower()}`" in TEXT
    for frame in re.findall(r"`([A-Z_]{6,})`", TEXT):
        assert frame in FRAME_NAMES


def test_the_version_is_the_one_of_the_code() -> None:
    assert f"The files carry the version of this schema, `{SCHEMA_VERSION}`" in TEXT
