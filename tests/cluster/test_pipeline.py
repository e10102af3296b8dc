"""`aqueduct pipeline` on a cluster with a remote server, while an executor is killed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aqueduct.security import ServerTLS
from tests.cli.piping import SECONDS, Running, all_gone, check
from tests.cluster.standalone import SETTINGS, Cluster

RUN = ("--devices", "6", "--rate", "300", "--duration", "0", "--trigger", "1")
"""Until it is interrupted: how long the cluster needs for a batch is not for us to say."""
IN_THE_TABLE = re.compile(r"; ([\d,]+) in the table")


@pytest.fixture
def server(tmp_path: Path, tls: ServerTLS) -> Iterator[str]:
    """The address of an ingest server in its own process."""
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    certificate.write_bytes(tls.certificate)
    key.write_bytes(tls.key)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "aqueduct", "ingest", "--dir", str(tmp_path / "data")),
            *("--listen", "127.0.0.1:0", "--cert", str(certificate), "--key", str(key), "--json"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    yield json.loads(process.stdout.readline())["listening"]
    process.kill()
    process.communicate()


def more_rows(running: Running, than: int) -> int:
    """Wait until the pipeline reports more rows; return their number."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and running.process.poll() is None:
        counts = IN_THE_TABLE.findall(running.said.read_text())
        rows = int(counts[-1].replace(",", "")) if counts else 0
        if rows > than:
            return rows
        time.sleep(0.05)
    raise AssertionError(running.said.read_text())


def test_the_tables_have_every_record_although_an_executor_is_killed(
    cluster: Cluster, server: str, tmp_path: Path, authority: ServerTLS
) -> None:
    ca, out = tmp_path / "authority.pem", tmp_path / "out"
    ca.write_bytes(authority.certificate)
    running = Running(
        tmp_path,
        *("--master", cluster.master, "--servers", server, "--ca", str(ca), "--out", str(out)),
        *(each for name, value in SETTINGS.items() for each in ("--conf", f"{name}={value}")),
        *RUN,
    )
    try:
        before = more_rows(running, than=0)
        family = running.family()
        killed = cluster.kill_executor()
        more_rows(running, than=before)
        running.process.send_signal(signal.SIGINT)
        code, found = running.summary()
        assert code == 0, running.said.read_text()
        assert (found["source"], found["interrupted"]) == ("servers", True)
        check(out, found)
        assert killed not in cluster.executors()
        assert all_gone(family)
    finally:
        running.process.kill()
        running.process.communicate()
