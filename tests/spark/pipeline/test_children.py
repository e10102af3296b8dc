"""The processes of the pipeline without Spark: records are stored once, and counted."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aqueduct.ingest.client.reader import DirectoryReader
from aqueduct.spark.pipeline.children import ChildProcess
from aqueduct.spark.pipeline.messages import (
    DevicesPlan,
    GatewayPlan,
    IngestPlan,
    Listening,
    MarkersWritten,
    StartSending,
    Stop,
    WriteMarkers,
)

SECONDS = 60


@pytest.fixture(autouse=True)
def own_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(tmp_path / "certificates"))


def stored(directory: Path) -> list[dict[str, Any]]:
    reader = DirectoryReader(directory)
    return [
        json.loads(value)
        for part in reader.topics("telemetry")[0].partitions
        for batch in reader.read("telemetry", part.partition, 0, part.next_offset)
        for value in batch.column("value").to_pylist()
    ]


@asynccontextmanager
async def ending(*children: ChildProcess) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(SECONDS):
            yield
    finally:
        for child in children:
            await child.kill()


async def started_gateway(ingest: ChildProcess, gateway: ChildProcess, directory: Path) -> str:
    await ingest.start(IngestPlan(str(directory), "127.0.0.1:0", 2))
    server = await ingest.expect(Listening)
    target = (server.address, "telemetry")
    await gateway.start(
        GatewayPlan([target], "gateway", 2, None, server.fingerprint, None, give_up_after=1.0)
    )
    return (await gateway.expect(Listening)).address


async def test_records_of_devices_are_stored_once_and_losses_are_counted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    children = (
        ChildProcess("ingest", "ingest_server"),
        ChildProcess("gateway", "gateway"),
        ChildProcess("devices", "devices"),
    )
    ingest, gateway, devices = children
    async with ending(*children):
        address = await started_gateway(ingest, gateway, data)
        await devices.start(DevicesPlan(address, devices=6, rate=600.0, seed=1, loss=0.2))
        await devices.expect(Listening)
        devices.send(StartSending())
        await asyncio.sleep(2.0)
        await devices.close(Stop(), SECONDS)
        counted = devices.done.result()
        gateway.send(WriteMarkers(event=None))
        marked = await gateway.expect(MarkersWritten)
        await gateway.close(Stop(), SECONDS)
        await ingest.close(Stop(), SECONDS)
    rows = stored(data)
    counts = Counter(row["mode"] for row in rows)
    assert counts.pop("mark") == 4
    assert counts == Counter(counted.arrived)
    for mode in ("ordered", "unordered"):
        assert counted.sent[mode] == counted.arrived[mode]
    assert counted.sent["unreliable"] == counted.arrived["unreliable"] + counted.lost["unreliable"]
    assert counted.lost["unreliable"] > 0
    names = [(row["device"], row["mode"], row["number"]) for row in rows if row["mode"] != "mark"]
    assert len(set(names)) == len(names)
    assert sum(offset + 2 for offset in marked.offsets["telemetry"].values()) == len(rows)


async def test_a_failing_process_reports_the_reason(tmp_path: Path) -> None:
    child = ChildProcess("ingest server", "ingest_server")
    async with ending(child):
        (tmp_path / "file").write_text("")
        await child.start(IngestPlan(str(tmp_path / "file"), "127.0.0.1:0", 2))
        reason = await child.ended
    assert reason.startswith("the ingest server ended: ")
    assert "Traceback" not in reason


async def test_a_gateway_without_its_server_exits_with_the_reason(tmp_path: Path) -> None:
    children = ChildProcess("ingest", "ingest_server"), ChildProcess("gateway", "gateway")
    async with ending(*children):
        await started_gateway(*children, tmp_path / "data")
        await children[0].kill()
        children[1].send(WriteMarkers(event=None))
        assert "could not be reached" in await children[1].ended


@pytest.mark.parametrize("module", ["ingest_server", "gateway", "devices"])
def test_a_process_exits_when_its_parent_has_exited(module: str, tmp_path: Path) -> None:
    plans = {
        "ingest_server": IngestPlan(str(tmp_path / "data"), "127.0.0.1:0", 2),
        "gateway": GatewayPlan([], "gateway", 2, None, None, None),
        "devices": DevicesPlan("127.0.0.1:9", 1, 1.0, 1, 0.0),
    }
    command = [sys.executable, "-m", f"aqueduct.spark.pipeline.{module}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(plans[module]) + b"\n")
        process.stdin.flush()
        if module != "devices":
            assert process.stdout is not None
            assert os.read(process.stdout.fileno(), 1)
        process.stdin.close()
        assert process.wait(timeout=SECONDS) in {0, 1}
