"""A pipeline in its own process, and a check of its tables."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SECONDS = 240
"""Seconds; an idle machine needs 30."""


class Running:
    """A pipeline in its own process, with its output in a file, so that it never blocks."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.said = directory / "said.txt"
        with self.said.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "aqueduct", "pipeline", *arguments, "--json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=file,
            )

    def until(self, words: str) -> None:
        """Wait until the output contains a text."""
        deadline = time.monotonic() + SECONDS
        while words not in self.said.read_text():
            assert self.process.poll() is None, self.said.read_text()
            assert time.monotonic() < deadline, self.said.read_text()
            time.sleep(0.05)

    def summary(self) -> tuple[int, dict[str, Any]]:
        out, _ = self.process.communicate(timeout=SECONDS)
        assert out, self.said.read_text()
        return self.process.returncode, json.loads(out)

    def family(self) -> set[int]:
        """Return its descendants."""
        listed = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
        ).stdout
        children: dict[int, list[int]] = {}
        for line in listed.splitlines():
            pid, parent = map(int, line.split())
            children.setdefault(parent, []).append(pid)
        found: set[int] = set()
        waiting = [self.process.pid]
        while waiting:
            new = children.get(waiting.pop(), [])
            found.update(new)
            waiting += new
        return found


def all_gone(family: set[int]) -> bool:
    """Return whether these processes exit soon."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        listed = subprocess.run(
            ["ps", "-A", "-o", "pid=,stat="], capture_output=True, text=True, check=True
        ).stdout
        states = {int(line.split()[0]): line.split()[1] for line in listed.splitlines()}
        if all(states.get(pid, "Z").startswith("Z") for pid in family):
            return True
        time.sleep(0.1)
    return False


def table(out: Path, name: str) -> pa.Table:
    """Read a table by Spark's commit log, which may omit files in the directory."""
    files = {
        entry["path"].rpartition("/")[2]
        for log in (out / name / "_spark_metadata").iterdir()
        if not log.name.startswith(".")
        for line in log.read_text().splitlines()[1:]
        if (entry := json.loads(line))["action"] == "add"
    }
    return pa.concat_tables(pq.read_table(out / name / file) for file in sorted(files))


def check(out: Path, found: dict[str, Any]) -> None:
    """Check that the tables have exactly the records that were sent."""
    assert found["faults"] == []
    rows = table(out, "readings").select(["device", "mode", "number", "late"]).to_pylist()
    modes = found["modes"]
    assert Counter(row["mode"] for row in rows) == {m: one["arrived"] for m, one in modes.items()}
    for mode in ("ordered", "unordered"):
        assert modes[mode]["sent"] == modes[mode]["rows"] > 0
        numbers = Counter(row["device"] for row in rows if row["mode"] == mode)
        for row in rows:
            assert row["mode"] != mode or 1 <= row["number"] <= numbers[row["device"]]
    assert len({(row["device"], row["mode"], row["number"]) for row in rows}) == len(rows)
    assert modes["unreliable"]["sent"] == modes["unreliable"]["rows"] + modes["unreliable"]["lost"]
    windows = table(out, "windows").to_pylist()
    in_windows = sum(row["readings"] for row in windows)
    too_late = sum(one["too_late"] for one in modes.values())
    assert in_windows + too_late == len(rows) == found["rows"]
    assert all(row["least"] <= row["mean"] <= row["greatest"] for row in windows)
    assert len({(row["start"], row["device"], row["mode"]) for row in windows}) == len(windows)
    page = Path(found["report"]).read_text()
    assert "Every record is accounted for" in page
    assert page.count("<svg") >= 4
