"""The files on disk match docs/ingest.md; this test reads them without our own code."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

import aqueduct
from aqueduct import ingest
from tests.processes.peers import eventually

COLUMNS = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("ingest_time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("producer_id", pa.string(), nullable=False),
        pa.field("producer_sequence", pa.int64(), nullable=False),
    ]
)


METADATA = tuple[
    int, dict[int, int], dict[str, int], int, int, int, dict[int, int], dict[str, str], int
]


async def store(directory: Path, *values: bytes) -> None:
    limits = ingest.IngestSettings(low_water=0, roll_age=3_600)
    async with (
        ingest.IngestServer(
            "127.0.0.1:0", directory, tls=aqueduct.dev_tls(), limits=limits
        ) as server,
        ingest.Producer(
            server.address, "t", producer_id="p", partitions=1, trust=aqueduct.dev_trust()
        ) as producer,
    ):
        for value in values:
            await producer.send_and_wait(value, key=b"k", headers={"h": b"v"}, timestamp=1.5)


async def test_a_log_is_blocks_of_metadata_and_rows(tmp_path: Path) -> None:
    await store(tmp_path, b"first", b"second")
    about = content_of(tmp_path / "t" / "topic.json")
    assert re.fullmatch("[0-9a-f]{32}", about.pop("id"))
    ((epoch, starts),) = about.pop("epochs")
    assert re.fullmatch("[0-9a-f]{16}", epoch)
    assert starts == [0]
    assert about == {"partitions": 1, "version": 1}
    assert content_of(tmp_path / "t" / "closed.json") == {"ends": {"0": 2}, "version": 1}
    data = (tmp_path / "t" / "part=0" / f"{0:020}.wal").read_bytes()
    position, values = 0, []
    while position < len(data):
        magic, size, more, first, count, checksum, of_header = struct.unpack_from(
            "<4sIIQIII", data, position
        )
        assert of_header == zlib.crc32(data[position : position + 28])
        start = position + 32
        metadata, rows = data[start : start + size], data[start + size : start + size + more]
        assert (magic, zlib.crc32(metadata + rows)) == (b"AQW1", checksum)
        group, members, producers, stored, least, greatest, others, instances, clock = (
            msgspec.msgpack.decode(metadata, type=METADATA)
        )
        assert (group, members, producers) == (first + 1, {0: first}, {"p": first + 1})
        assert (others, list(instances)) == ({}, ["p"])
        assert (least, greatest) == (1_500_000, 1_500_000)
        assert 0 < clock <= stored
        (row,) = pa.ipc.read_record_batch(pa.py_buffer(rows), COLUMNS).to_pylist()
        assert (row["offset"], count, row["producer_sequence"]) == (first, 1, first + 1)
        assert (row["key"], row["headers"]) == (b"k", [{"name": "h", "value": b"v"}])
        assert int(row["ingest_time"].timestamp() * 1e6) // 1_000 == stored // 1_000
        values.append(row["value"])
        position = start + size + more
    assert values == [b"first", b"second"]


async def test_a_manifest_names_the_segments(tmp_path: Path) -> None:
    await store(tmp_path, b"first", b"second")
    await _roll(tmp_path)
    part = tmp_path / "t" / "part=0"
    manifest = content_of(part / "manifest.json")
    (segment,) = manifest["segments"]
    assert (manifest["first"], manifest["next"], manifest["version"]) == (0, 2, 1)
    assert list(manifest["instances"]) == ["p"]
    assert (manifest["group"], manifest["producers"]["p"][0]) == (2, 2)
    assert manifest["proof"] == {"0": 2}
    assert (segment["first_time"], segment["last_time"]) == (1_500_000, 1_500_000)
    name = f"{segment['first']:020}-{segment['last']:020}.parquet"
    assert sorted(path.name for path in part.iterdir()) == [name, "manifest.json"]
    data = (part / name).read_bytes()
    assert (len(data), zlib.crc32(data)) == (segment["size"], segment["checksum"])
    table = pq.read_table(part / name)
    assert table.schema.names == COLUMNS.names
    assert table.column("value").to_pylist() == [b"first", b"second"]


async def test_jobs_are_journaled_and_their_rows_have_ids(tmp_path: Path) -> None:
    await store(tmp_path, b"before")
    run = "0123456789abcdef"
    row_id = bytes(range(20))
    async with (
        ingest.IngestServer("127.0.0.1:0", tmp_path, tls=aqueduct.dev_tls()) as server,
        ingest.Client(server.address, trust=aqueduct.dev_trust()) as client,
    ):
        scope = ingest.WriteScope("job", 7, run, 3)
        async with ingest.Producer(server.address, "t", scope=scope, client=client) as producer:
            await producer.send(b"value", id=row_id)
            await producer.complete()
        *_, change = lines_of(tmp_path / "t" / "jobs.log")
        ((name, job),) = change["jobs"].items()
        assert name == "job"
        assert job.pop("time") >= job.pop("began") > 1_700_000_000_000_000
        assert job == {
            "step": 7,
            "runs": [run],
            "unique": False,
            "offsets": {"0": 1},
            "parts": [3],
            "is_over": False,
            "is_dense": False,
            "ended": "",
        }
        await client.end_step("t", "job", 7, run, rows=producer.fingerprint)
        *_, change = lines_of(tmp_path / "t" / "jobs.log")
        job = change["jobs"]["job"]
        assert (job["is_over"], job["parts"]) == (True, [])
        ended = base64.b64decode(job["ended"])
        assert ended == struct.pack("<QQ16s", 7, 1, row_id[:16])
        async with ingest.Reader(server.address, trust=aqueduct.dev_trust()) as reader:
            (batch,) = [rows async for rows in reader.read("t", 0, 1, 2)]
    (row,) = batch.to_pylist()
    assert row["headers"] == [{"name": "aqueduct-id", "value": row_id}]
    assert row["producer_id"] == "job.7.01234567.3"


def content_of(path: Path) -> Any:
    text = path.read_bytes()
    inner = text[text.index(b'"content":') + len(b'"content":') : -1]
    assert json.loads(text)["checksum"] == zlib.crc32(inner)
    return json.loads(inner)


def lines_of(path: Path) -> list[Any]:
    lines = [line.split(b" ", 1) for line in path.read_bytes().splitlines()]
    assert all(int(checksum, 16) == zlib.crc32(text) for checksum, text in lines)
    found = [json.loads(text) for _, text in lines]
    assert found[0]["version"] == 1
    assert found[0]["base"] <= path.stat().st_size
    return found[1:]


async def _roll(directory: Path) -> None:
    """Start a server, which rolls finished logs into segments."""
    limits = ingest.IngestSettings(low_water=0)
    async with ingest.IngestServer(
        "127.0.0.1:0", directory, tls=aqueduct.dev_tls(), limits=limits
    ) as server:
        await eventually(lambda: server.statistics().segments > 0, "a segment")
