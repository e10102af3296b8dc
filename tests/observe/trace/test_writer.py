from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aqueduct.observe.trace import Trace
from aqueduct.observe.trace.files import TraceFile
from aqueduct.observe.trace.kinds import Kind
from aqueduct.observe.trace.schema import SCHEMA, VERSION_KEY
from aqueduct.observe.trace.writer import acquire, release

ONE = ("c0ffee", "client")


def add(trace: Trace, count: int = 1) -> None:
    writer = trace._writer
    with writer.lock:
        writer.batch.add(time.monotonic_ns(), ONE, int(Kind.MESSAGE_TAKEN), 0, 0, count)
        writer.check()


def rows(directory: Path) -> pa.Table:
    return pq.read_table(directory)


def test_recorded_rows_are_readable_after_close(tmp_path: Path) -> None:
    with Trace(tmp_path / "new" / "folder") as trace:
        add(trace, 5)
        add(trace, 7)
    (path,) = (tmp_path / "new" / "folder").iterdir()
    assert pq.read_table(path).num_rows == 12
    assert trace.rows_written == 12
    assert trace.rows_dropped == 0


def test_a_file_has_the_schema_and_its_version(tmp_path: Path) -> None:
    with Trace(tmp_path) as trace:
        add(trace)
    table = rows(tmp_path)
    assert table.schema.equals(SCHEMA)
    assert table.schema.metadata[VERSION_KEY] == b"2"


def test_flush_makes_recorded_rows_readable(tmp_path: Path) -> None:
    with Trace(tmp_path) as trace:
        add(trace, 3)
        trace.flush()
        assert rows(tmp_path).num_rows == 3
        add(trace, 4)
        trace.flush()
        assert rows(tmp_path).num_rows == 7
    assert len(list(tmp_path.iterdir())) == 2


def test_rows_are_written_after_the_interval(tmp_path: Path) -> None:
    with Trace(tmp_path, interval=0.05) as trace:
        add(trace, 3)
        deadline = time.monotonic() + 10
        while not list(tmp_path.glob("*.parquet")) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert rows(tmp_path).num_rows == 3


def test_a_file_ends_when_it_has_enough_rows(tmp_path: Path) -> None:
    with Trace(tmp_path, rows_per_group=10, rows_per_file=20) as trace:
        for _ in range(10):
            add(trace, 10)
    table = rows(tmp_path)
    assert table.num_rows == 100
    assert sorted(table["sequence"].to_pylist()) == list(range(100))
    assert len(list(tmp_path.iterdir())) == 5


def test_two_traces_in_one_directory_are_independent(tmp_path: Path) -> None:
    with Trace(tmp_path) as one, Trace(tmp_path) as other:
        add(one, 2)
        add(other, 3)
    table = rows(tmp_path)
    assert table.num_rows == 5
    assert len(set(table["recorder"].to_pylist())) == 2


def test_many_threads_may_record(tmp_path: Path) -> None:
    def many(trace: Trace) -> None:
        for _ in range(500):
            add(trace)

    with Trace(tmp_path, rows_per_group=100) as trace:
        threads = [threading.Thread(target=many, args=(trace,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert rows(tmp_path).num_rows == 2_000


def test_a_slow_disk_drops_rows_and_logs_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate = threading.Event()
    write = TraceFile.write

    def slowly(file: TraceFile, table: pa.Table) -> None:
        gate.wait(100)
        write(file, table)

    monkeypatch.setattr(TraceFile, "write", slowly)
    with caplog.at_level(logging.WARNING), Trace(tmp_path, rows_per_group=10, max_rows=50) as trace:
        for _ in range(20):
            began = time.monotonic()
            add(trace, 10)
            assert time.monotonic() - began < 50
        gate.set()
        trace.flush()
        add(trace, 1)
    table = rows(tmp_path)
    said = table.filter(pa.compute.equal(table["kind"], "rows_dropped"))
    assert trace.rows_dropped > 0
    assert sum(said["value"].to_pylist()) == trace.rows_dropped
    assert table.num_rows - said.num_rows + trace.rows_dropped == 201
    assert len([one for one in caplog.records if "dropped" in one.message]) == 1


def test_a_full_disk_drops_rows_and_leaves_no_broken_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = True
    write = TraceFile.write

    def refuse(file: TraceFile, table: pa.Table) -> None:
        if full:
            raise OSError(28, "No space left on device")
        write(file, table)

    monkeypatch.setattr(TraceFile, "write", refuse)
    with caplog.at_level(logging.WARNING), Trace(tmp_path) as trace:
        add(trace, 10)
        trace.flush()
        assert list(tmp_path.iterdir()) == []
        full = False
        add(trace, 4)
        trace.flush()
        add(trace, 1)
    table = rows(tmp_path)
    assert trace.rows_dropped == 10
    assert table["value"].drop_null().to_pylist() == [10]
    assert "No space left" in caplog.text


def test_a_removed_directory_drops_rows_only(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with Trace(gone) as trace:
        gone.rmdir()
        add(trace, 3)
    assert trace.rows_dropped == 3


def test_a_directory_that_cannot_be_made_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        Trace(tmp_path / "file" / "below")


def test_users_of_one_directory_share_a_trace(tmp_path: Path) -> None:
    first, second = acquire(tmp_path), acquire(str(tmp_path))
    assert first is second
    release(first)
    add(second, 2)
    release(second)
    assert rows(tmp_path).num_rows == 2
    third = acquire(tmp_path)
    assert third is not first
    release(third)


def test_the_caller_closes_a_trace_that_it_made(tmp_path: Path) -> None:
    with Trace(tmp_path) as trace:
        assert acquire(trace) is trace
        release(trace)
        add(trace, 2)
    assert trace.rows_written == 2


def _fork_and_record(directory: Path) -> None:
    trace = Trace(directory, rows_per_group=1)
    add(trace, 3)
    while trace._writer._file is None:
        time.sleep(0.001)
    child = os.fork()
    if child == 0:
        add(trace, 100)
        trace.close()
        sys.exit(0)
    os.waitpid(child, 0)
    add(trace, 4)
    trace.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where there is fork()")
def test_a_forked_child_does_not_touch_the_files(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=_fork_and_record, args=(tmp_path,)
    )
    process.start()
    process.join()
    assert process.exitcode == 0
    assert rows(tmp_path).num_rows == 7
    assert [path for path in tmp_path.iterdir() if path.suffix != ".parquet"] == []


RECORDS_ENDLESSLY = """
import sys, time
from pathlib import Path
from aqueduct.observe.trace import Trace
from tests.observe.trace.test_writer import add
trace = Trace(sys.argv[1], rows_per_group=50, rows_per_file=100)
while True:
    add(trace, 10)
    time.sleep(0.001)
"""


def test_a_killed_process_leaves_only_complete_files(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", RECORDS_ENDLESSLY, str(tmp_path)])
    deadline = time.monotonic() + 30
    while len(list(tmp_path.glob("*.parquet"))) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    table = rows(tmp_path)
    assert sorted(table["sequence"].to_pylist()) == list(range(table.num_rows))
    assert table.num_rows >= 500


def test_a_program_that_does_not_close_its_trace_loses_no_rows(tmp_path: Path) -> None:
    program = RECORDS_ENDLESSLY.replace("while True", "for _ in range(7)")
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    assert rows(tmp_path).num_rows == 70
