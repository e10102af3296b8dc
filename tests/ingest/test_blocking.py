"""Producers and readers for threads."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import aqueduct
from aqueduct import ForkedConnectionError, ingest
from aqueduct.ingest import blocking
from aqueduct.runtime.background import background
from aqueduct.security import make_authority, make_certificate
from tests.ingest.jobbing import RUNS, ids_of

AUTHORITY = make_authority("a test")
SHOWN = make_certificate(["127.0.0.1"], AUTHORITY)
TRUST = aqueduct.trust(AUTHORITY.certificate)
SECONDS = 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ingest.IngestServer]:
    """Run a server on the shared background loop."""
    limits = ingest.IngestSettings(low_water=0)

    def make() -> ingest.IngestServer:
        return ingest.IngestServer("127.0.0.1:0", tmp_path, tls=SHOWN, limits=limits)

    server = background().call(make)
    background().run(server.open())
    yield server
    background().run(server.close(0))


def values_in(reader: blocking.Reader, topic: str) -> list[bytes]:
    return [
        value
        for part in reader.topics(topic)[0].partitions
        for batch in reader.read(topic, part.partition, part.first_offset, part.next_offset)
        for value in batch.column("value").to_pylist()
    ]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_threads_send_through_one_producer_and_a_reader_reads_it_all(
    server: ingest.IngestServer,
) -> None:
    with blocking.Producer(server.address, "logs", trust=TRUST) as producer:
        with ThreadPoolExecutor(8) as pool:
            for sent in [pool.submit(producer.send, str(n).encode()) for n in range(500)]:
                sent.result(SECONDS)
        producer.send_many(str(n).encode() for n in range(500, 10_000))
        producer.flush(timeout=SECONDS)
        assert (producer.committed, producer.reconnects) == (10_000, 0)
        assert (producer.is_connected, producer.disconnect_reason) == (True, "")
        stored = producer.send_and_wait(b"last", partition=2)
    with blocking.Reader(server.address, trust=TRUST) as reader:
        found = values_in(reader, "logs")
        (last,) = reader.read("logs", 2, stored.offset or 0, (stored.offset or 0) + 1)
        assert last.column("value").to_pylist() == [b"last"]
        assert reader.offsets_at("logs", 0) == dict.fromkeys(range(4), 0)
        reader.advance("me", "logs", {0: 3})
        assert reader.topics("logs")[0].readers == {"me": {0: 3}}
    assert sorted(found) == sorted([*(str(n).encode() for n in range(10_000)), b"last"])


def test_threads_write_parts_of_a_job_over_one_connection(server: ingest.IngestServer) -> None:
    values = [b"%d" % (number % 100) for number in range(1_000)]
    run = RUNS[0]
    with blocking.Client(server.address, trust=TRUST) as client:

        def write(part: int) -> bool:
            scope = ingest.WriteScope("job", 1, run, part)
            with blocking.Producer(client.address, "logs", scope=scope, client=client) as producer:
                assert producer.scope == scope
                was_done = producer.is_done
                producer.send_many(iter(values), ids=ids_of(values))
                producer.send(b"x", id=ids_of([b"x"])[0])
                producer.complete(timeout=SECONDS)
                assert producer.is_done
                rows[part] = producer.fingerprint
                return was_done

        rows: dict[int, ingest.Fingerprint] = {}
        with ThreadPoolExecutor(4) as pool:
            assert not any(pool.map(write, range(4)))
            assert all(pool.map(write, range(4)))
        total = sum(rows.values(), ingest.Fingerprint())
        assert total.count == 4 * (len(values) + 1)
        client.end_step("logs", "job", 1, run, rows=total)
        blocking.end_step(server.address, "logs", "job", 1, run, rows=total, trust=TRUST)
        assert write(9)
        with pytest.raises(ingest.StepConflict, match="step 1 of job 'job' ended with"):
            client.end_step("logs", "job", 1, run, rows=total + rows[9])
        assert len(server._server.connections) <= 2
    with blocking.Reader(server.address, trust=TRUST) as reader:
        assert sorted(values_in(reader, "logs")) == sorted(4 * [*values, b"x"])


def test_blocking_twins_have_the_members_of_the_originals() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    fields = {"topic", "producer_id", "partitions", "committed", "max_record", "reconnects"}
    originals: dict[type, tuple[type, set[str]]] = {
        ingest.Producer: (
            blocking.Producer,
            fields | {"disconnect_reason", "scope", "is_done", "fingerprint"},
        ),
        ingest.Client: (blocking.Client, {"address"}),
        ingest.Reader: (blocking.Reader, set()),
    }
    for original, (twin, more) in originals.items():
        assert public(original) | more == public(twin)
        assert set(inspect.signature(original).parameters) == set(
            inspect.signature(twin).parameters
        )
        for name in public(original) & public(twin):
            has_timeout = name in ("flush", "complete")
            if inspect.isfunction(getattr(original, name)) and not has_timeout:
                methods = (getattr(kind, name) for kind in (original, twin))
                one, other = (inspect.signature(method).parameters for method in methods)
                assert list(one) == list(other)


def test_an_error_in_the_block_closes_without_a_flush(server: ingest.IngestServer) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        blocking.Producer(server.address, "logs", trust=TRUST) as producer,
    ):
        raise ZeroDivisionError
    with pytest.raises(ingest.IngestError, match="closed"):
        producer.send(b"x")


def test_a_flush_that_times_out_keeps_the_records(
    server: ingest.IngestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = threading.Event()
    commit = server._store.commit

    def wait(groups: Any) -> None:
        slow.wait(SECONDS)
        commit(groups)

    monkeypatch.setattr(server._store, "commit", wait)
    with blocking.Producer(server.address, "logs", trust=TRUST) as producer:
        producer.send(b"x")
        with pytest.raises(TimeoutError):
            producer.flush(timeout=0.05)
        slow.set()
        producer.flush(timeout=SECONDS)
        assert producer.committed == 1


@pytest.fixture
def long_topic(server: ingest.IngestServer) -> ingest.IngestServer:
    """Store more rows in a partition than a channel sends ahead of its reader."""
    with blocking.Producer(server.address, "long", trust=TRUST, partitions=1) as producer:
        producer.send_many([bytes(1_000)] * 30_000)
    return server


def channels(reader: blocking.Reader) -> float:
    return background().call(reader._inner._connection.statistics)["channels"]


@pytest.mark.parametrize("how", ["closed", "collected", "collected on the loop"])
def test_an_abandoned_read_leaves_nothing_behind(long_topic: ingest.IngestServer, how: str) -> None:
    with blocking.Reader(long_topic.address, trust=TRUST) as reader:
        before = channels(reader)
        rows: Any = reader.read("long", 0, 0, 30_000)
        assert next(rows).num_rows > 0
        assert channels(reader) > before
        if how == "closed":
            rows.close()
        elif how == "collected":
            del rows
            gc.collect()
        else:
            holder = [rows]
            del rows
            background().call(holder.clear)
        wait_for(lambda: channels(reader) == before)
        wait_for(lambda: not blocking._leaving)
        wait_for(lambda: long_topic._reading._slots.free == long_topic.limits.max_fetches)
        assert len(values_in(reader, "long")) == 30_000  # and the next read works


def test_a_read_that_was_never_started_leaves_nothing_behind(
    long_topic: ingest.IngestServer,
) -> None:
    with blocking.Reader(long_topic.address, trust=TRUST) as reader:
        before = channels(reader)
        reader.read("long", 0, 0, 30_000)
        assert channels(reader) == before


def test_a_reader_may_be_closed_during_a_read(long_topic: ingest.IngestServer) -> None:
    with blocking.Reader(long_topic.address, trust=TRUST) as reader:
        rows: Any = reader.read("long", 0, 0, 30_000)
        next(rows)
    with pytest.raises(aqueduct.AqueductError):
        list(rows)


def test_an_interrupted_read_can_be_closed(
    long_topic: ingest.IngestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with blocking.Reader(long_topic.address, trust=TRUST) as reader:
        rows: Any = reader.read("long", 0, 0, 30_000)
        next(rows)

        def interrupted(work: Any, timeout: float | None = None) -> None:
            asyncio.run_coroutine_threadsafe(work, background().loop).cancel()
            raise KeyboardInterrupt

        monkeypatch.setattr(reader._background, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(rows)
        monkeypatch.undo()
        wait_for(lambda: not blocking._leaving)
        assert reader.topics("long")


def test_a_producer_may_be_closed_twice_and_opened_once(server: ingest.IngestServer) -> None:
    with blocking.Producer(server.address, "logs", trust=TRUST) as producer:
        with pytest.raises(ingest.IngestError, match="was opened already"):
            producer.open()
        producer.send(b"x")
        producer.close()
        producer.close()


def test_an_interrupted_open_is_abandoned(
    server: ingest.IngestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = blocking.Producer("127.0.0.1:1", "logs", trust=TRUST)

    def interrupted(*_: object) -> None:
        wait_for(lambda: producer._inner._task is not None)
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        producer.open()
    monkeypatch.undo()
    wait_for(lambda: producer._inner._is_closed)


def test_use_after_a_fork_raises_an_error_that_names_the_fork(
    server: ingest.IngestServer,
) -> None:
    with (
        blocking.Producer(server.address, "logs", trust=TRUST) as producer,
        blocking.Reader(server.address, trust=TRUST) as reader,
    ):
        producer.send(b"x")
        producer.flush()
        rows = reader.read("logs", 0, 0, 1)
        next(rows)
        pid = os.fork()
        if pid == 0:
            code = 0
            for call in (lambda: producer.send(b"x"), reader.topics, lambda: list(rows)):
                try:
                    call()
                except ForkedConnectionError:
                    code += 1
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        producer.send(b"still good")
        producer.flush()


def test_a_program_that_does_not_close_its_producers_exits(server: ingest.IngestServer) -> None:
    program = (
        "import aqueduct\n"
        "from aqueduct.ingest import blocking\n"
        f"where = {server.address!r}\n"
        f"trust = aqueduct.trust({AUTHORITY.certificate!r})\n"
        "producer = blocking.Producer(where, 'logs', trust=trust, partitions=1)\n"
        "producer.open()\n"
        "producer.send_and_wait(b'x')\n"
        "producer.send(b'y')\n"
        "client = blocking.Client(where, trust=trust)\n"
        "shared = blocking.Producer(where, 'logs', client=client)\n"
        "shared.open()\n"
        "shared.send(b'z')\n"
        "reader = blocking.Reader(where, trust=trust)\n"
        "reader.__enter__()\n"
        "rows = reader.read('logs', 0, 0, 1)\n"
        "next(rows)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        timeout=SECONDS,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
