"""Writing parts: every row once, over attempts, runs, topics and servers."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from aqueduct.errors import ConnectionLost
from aqueduct.ingest.dedup.scope import Fingerprint
from aqueduct.ingest.errors import RefusedRecords, StepConflict
from aqueduct.ingest.protocol import LAST_TIME
from aqueduct.ingest.server.permissions import Grant, Permissions
from aqueduct.ingest.settings import IngestSettings
from aqueduct.security import ServerTLS, trust
from aqueduct.spark.backend import Backend
from aqueduct.spark.errors import SinkError
from aqueduct.spark.sink.columns import ColumnNames
from aqueduct.spark.sink.task_writer import Sink, Step, clients, drop_if_broken, write_part
from tests.spark.landing import Landing, stored_rows, stored_values

TOKEN = "a-long-random-token"
VALUE = ColumnNames("value")

FORKING = """
import os, sys, uuid
import pyarrow as pa
from aqueduct.security import trust
from aqueduct.spark.sink.columns import ColumnNames
from aqueduct.spark.backend import Backend
from aqueduct.spark.sink.task_writer import Sink, Step, clients, write_part

backend = Backend(server=sys.argv[1], trust=trust(sys.argv[2]))
sink, step = Sink((backend,), ColumnNames("value"), "logs"), Step("job", 0, uuid.uuid4().hex)
write_part(sink, step, 0, [pa.record_batch({"value": ["a"]})])
kept = clients.get(backend)
child = os.fork()
if child == 0:
    code = 1
    try:
        write_part(sink, step, 1, [pa.record_batch({"value": ["b"]})])
        code = 0
    finally:
        os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert clients.get(backend) is kept
write_part(sink, step, 2, [pa.record_batch({"value": ["c"]})])
"""


@pytest.fixture
def backend(landing: Landing, tls: ServerTLS, authority: ServerTLS) -> Iterator[Backend]:
    with landing.served(tls) as server:
        yield Backend(server=server.address, trust=trust(authority.certificate))


def step(job: str = "job", number: int = 0) -> Step:
    return Step(job, number, uuid.uuid4().hex)


def batch(*values: str) -> pa.RecordBatch:
    return pa.record_batch({"value": list(values)})


def counts(written: dict[tuple[str, str], Fingerprint]) -> dict[str, int]:
    return {topic: rows.count for (_, topic), rows in written.items()}


def fails_after(*batches: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise RuntimeError("a task dies")


def test_rows_are_stored_unchanged(backend: Backend) -> None:
    headers = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
    rows = pa.record_batch(
        {
            "v": ["a", "b"],
            "k": [b"key", None],
            "h": pa.array([[{"name": "n", "value": b"t"}], None], headers),
            "t": pa.array([LAST_TIME, None], pa.timestamp("us", tz="UTC")),
        }
    )
    sink = Sink((backend,), ColumnNames("v", "k", "h", "t"), "logs", partitions=3)
    assert counts(write_part(sink, step(), 0, [rows])) == {"logs": 2}
    first, second = sorted(stored_rows(backend, "logs"), key=lambda row: row["value"])
    assert (first["value"], first["key"]) == (b"a", b"key")
    assert {"name": "n", "value": b"t"} in first["headers"]
    assert first["timestamp"].isoformat() == "9999-12-31T23:59:59.999999+00:00"
    assert (second["value"], second["key"]) == (b"b", None)
    assert second["timestamp"].year > 2023
    assert len(backend.topics("logs")[0].partitions) == 3


def test_a_retried_part_adds_the_missing_rows(backend: Backend) -> None:
    sink, this = Sink((backend,), VALUE, "logs"), step()
    with pytest.raises(RuntimeError, match="a task dies"):
        write_part(sink, this, 0, fails_after(batch("a", "b", "a")))
    for _ in range(2):
        write_part(sink, this, 0, [batch("c", "a"), batch("a", "b")])
    assert stored_values(backend, "logs") == Counter({b"a": 2, b"b": 1, b"c": 1})


def test_an_iterator_that_ends_early_does_not_complete_a_part(backend: Backend) -> None:
    """Spark ends the iterator when a task fails for another reason than the writer."""
    sink, this = Sink((backend,), VALUE, "logs"), step()
    write_part(sink, this, 0, [batch("a", "b")])
    write_part(sink, this, 0, [batch("a", "b", "c"), batch("a")])
    assert stored_values(backend, "logs") == Counter({b"a": 2, b"b": 1, b"c": 1})


def test_equal_rows_of_different_parts_are_all_stored(backend: Backend) -> None:
    sink, this = Sink((backend,), VALUE, "logs"), step()
    for part in range(3):
        write_part(sink, this, part, [batch("a", "a")])
    assert stored_values(backend, "logs") == Counter({b"a": 6})


def test_another_run_can_distribute_the_rows_differently(backend: Backend) -> None:
    sink, first, second = Sink((backend,), VALUE, "logs"), step(), step()
    write_part(sink, first, 0, [batch("a", "a", "b")])
    with pytest.raises(RuntimeError, match="a task dies"):
        write_part(sink, first, 1, fails_after(batch("a")))
    write_part(sink, second, 0, [batch("b", "c")])
    with pytest.raises(SinkError, match=r"'logs' on server .* cannot be written: .*superseded"):
        write_part(sink, first, 1, [batch("a", "c")])
    write_part(sink, second, 1, [batch("a", "a", "a")])
    assert stored_values(backend, "logs") == Counter({b"a": 3, b"b": 1, b"c": 1})


def test_an_ended_step_stores_no_rows_and_returns_their_fingerprint(backend: Backend) -> None:
    sink, this = Sink((backend,), VALUE, "logs"), step()
    rows = write_part(sink, this, 0, [batch("a", "b", "a")])[backend.server, "logs"]
    end_step = clients.get(backend).end_step
    end_step("logs", this.job, this.number, this.run, rows=rows)
    assert write_part(sink, step(), 0, [batch("b", "a", "a")]) == {(backend.server, "logs"): rows}
    again = step()
    first = write_part(sink, again, 0, [batch("a")])[backend.server, "logs"]
    second = write_part(sink, again, 1, [batch("a", "b")])[backend.server, "logs"]
    assert first + second == rows
    end_step("logs", again.job, again.number, again.run, rows=first + second)
    with pytest.raises(StepConflict, match=r"step 0 of job 'job' ended with 3 rows .* with 1:"):
        end_step("logs", again.job, again.number, again.run, rows=first)
    assert stored_values(backend, "logs") == Counter({b"a": 2, b"b": 1})
    write_part(sink, step(number=1), 0, [batch("a")])
    assert stored_values(backend, "logs") == Counter({b"a": 3, b"b": 1})


def test_rows_with_equal_user_ids_are_stored_once_across_parts(backend: Backend) -> None:
    sink, this = Sink((backend,), ColumnNames("value", id="id"), "logs"), step()
    for part in range(2):
        rows = pa.record_batch({"value": [f"a{part}", "b", "b"], "id": [1, 2 + part, 2 + part]})
        write_part(sink, this, part, [rows])
    assert stored_values(backend, "logs") == Counter({b"a0": 1, b"b": 2})


def test_a_column_selects_the_topic_of_a_row(backend: Backend) -> None:
    sink, this = Sink((backend,), ColumnNames("value", topic="topic")), step()
    rows = pa.record_batch({"value": ["a", "b", "a"], "topic": ["x", "y", "x"]})
    for _ in range(2):
        written = write_part(sink, this, 0, [rows, rows.slice(0, 0)])
        assert counts(written) == {"x": 2, "y": 1}
    assert stored_values(backend, "x") == Counter({b"a": 2})
    assert stored_values(backend, "y") == Counter({b"b": 1})


def test_a_part_can_write_to_more_topics_than_it_has_open_producers(
    backend: Backend,
) -> None:
    sink, this = Sink((backend,), ColumnNames("value", topic="topic")), step()
    topics = [f"t{number}" for number in range(IngestSettings().max_connection_streams + 1)]
    rows = pa.record_batch({"value": ["a"] * len(topics), "topic": topics})
    for _ in range(2):
        written = write_part(sink, this, 0, [rows, rows])
        assert set(counts(written).values()) == {2}
    assert len(written) == len(topics)
    for topic in (topics[0], topics[-1]):
        assert stored_values(backend, topic) == Counter({b"a": 2})


def test_a_part_without_rows_does_not_connect() -> None:
    nowhere = Sink((Backend(server="127.0.0.1:9"),), VALUE, "logs")
    assert write_part(nowhere, step(), 0, [batch().slice(0, 0)]) == {}


def test_a_row_that_is_too_large_is_reported_with_its_number(backend: Backend) -> None:
    sink = Sink((backend,), VALUE, "logs")
    fault = r"row 3 of this task: column value has 1,048,577 bytes; .* 1,048,576 .*--max-record"
    with pytest.raises(SinkError, match=fault):
        write_part(sink, step(), 0, [batch("a", "b"), batch("c" * (2**20 + 1))])


def test_a_topic_is_written_to_the_server_that_has_it(
    tmp_path: Path, tls: ServerTLS, authority: ServerTLS
) -> None:
    one, two = Landing(tmp_path / "one"), Landing(tmp_path / "two")
    one.write("both", 1)
    two.write("both", 1)
    two.write("logs", 1)
    trusted = trust(authority.certificate)
    with one.served(tls) as first, two.served(tls) as second:
        backends = tuple(Backend(server=each.address, trust=trusted) for each in (first, second))
        sink = Sink(backends, VALUE)
        assert sink.backend_of("logs") == backends[1]
        assert sink.backend_of("new") == backends[0]
        with pytest.raises(SinkError, match=f"'both' is on server {first.address} and on server"):
            sink.backend_of("both")


def test_an_error_names_the_topic_without_write_permission(
    landing: Landing, tls: ServerTLS, authority: ServerTLS
) -> None:
    permissions = Permissions({TOKEN: Grant(["logs"], [])})
    with landing.served(tls, permissions=permissions) as server:
        backend = Backend(server=server.address, trust=trust(authority.certificate), token=TOKEN)
        write_part(Sink((backend,), VALUE, "logs"), step(), 0, [batch("a")])
        fault = f"'other' on server {server.address} cannot be written: .*may not write.* token"
        with pytest.raises(SinkError, match=fault):
            write_part(Sink((backend,), VALUE, "other"), step(), 0, [batch("a")])
        both = Sink((backend, Backend(server="127.0.0.1:9")), VALUE, "logs")
        with pytest.raises(SinkError, match=r"cannot find out whether server .* has topic 'logs'"):
            both.backend_of("logs")


def test_a_connection_is_cached_until_it_breaks(backend: Backend) -> None:
    kept = clients.get(backend)
    drop_if_broken(backend, RefusedRecords("too many"))
    assert clients.get(backend) is kept
    drop_if_broken(backend, ConnectionLost("gone"))
    assert clients.get(backend) is not kept
    drop_if_broken(backend, ConnectionLost("gone"))


def test_parts_are_written_across_a_server_restart(
    landing: Landing, tls: ServerTLS, authority: ServerTLS
) -> None:
    this = step()
    with landing.served(tls) as server:
        address = server.address
        backend = Backend(server=address, trust=trust(authority.certificate))
        sink = Sink((backend,), VALUE, "logs")
        write_part(sink, this, 0, [batch("a")])
    with landing.served(tls, address):
        write_part(sink, this, 0, [batch("a")])
        write_part(sink, this, 1, [batch("a")])
        assert stored_values(backend, "logs") == Counter({b"a": 2})


def test_a_forked_process_opens_its_own_connections(
    backend: Backend, authority: ServerTLS, tmp_path: Path
) -> None:
    pem = tmp_path / "ca.pem"
    pem.write_bytes(authority.certificate)
    done = subprocess.run(
        [sys.executable, "-c", FORKING, backend.server, str(pem)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    assert stored_values(backend, "logs") == Counter({b"a": 1, b"b": 1, b"c": 1})
