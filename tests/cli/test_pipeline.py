"""`aqueduct pipeline` as people run it: from devices to tables and a report, and its ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Run, Start

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = 240
"""A machine with other work needs long for what takes 30 s on an idle one."""
TOKEN = "a-long-random-token"
SMALL = ("--master", "local[2]", "--devices", "8", "--rate", "400", "--loss", "0.03")


class Running:
    """A pipeline in a process of its own; what it says is in a file, so that it never waits."""

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
        """Wait until it says something."""
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
        """The processes that it has started, and those that they have."""
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


@pytest.fixture
def begin(own_certificates: None, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def begin_(*arguments: str) -> Running:
        started.append(Running(tmp_path, *arguments))
        return started[-1]

    yield begin_
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


def all_gone(family: set[int]) -> bool:
    """Whether these processes have ended, or do so soon."""
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
    """What Spark says that is in a table: its log of files, and not what lies there."""
    files = {
        entry["path"].rpartition("/")[2]
        for log in (out / name / "_spark_metadata").iterdir()
        if not log.name.startswith(".")
        for line in log.read_text().splitlines()[1:]
        if (entry := json.loads(line))["action"] == "add"
    }
    return pa.concat_tables(pq.read_table(out / name / file) for file in sorted(files))


def check(out: Path, found: dict[str, Any]) -> None:
    """That the tables have exactly what was sent."""
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
    assert "It adds up" in page
    assert page.count("<svg") >= 4


def test_the_example_of_the_guide_has_all_that_devices_send_in_the_tables(
    begin: Callable[..., Running], tmp_path: Path
) -> None:
    out = tmp_path / "telemetry"
    guide = (ROOT / "docs" / "pipeline.md").read_text()
    _, command, *example = re.findall(r"```\n(aqueduct pipeline .*)\n```", guide)[0].split()
    assert command == "pipeline"
    running = begin(*(str(out) if each == out.name else each for each in example))
    running.until("devices are sending")
    family = running.family()
    assert len(family) >= 4
    code, found = running.summary()
    assert code == 0, running.said.read_text()
    assert (found["interrupted"], found["source"]) == (False, "files")
    check(out, found)
    assert found["late"]["buffered"] > 0
    assert 0 < sum(one["too_late"] for one in found["modes"].values()) <= found["late"]["stale"]
    assert 0 < found["latency"]["p50"] <= found["latency"]["p95"] <= found["latency"]["p99"]
    assert re.search(r"\d+ s: [\d,]+ sent, [\d,]+/s; [\d,]+ in the table", running.said.read_text())
    assert "Traceback" not in running.said.read_text()
    assert all_gone(family)


def test_ctrl_c_has_all_that_was_sent_go_into_the_tables_from_servers_that_run(
    begin: Callable[..., Running], run: Run, start: Start, tmp_path: Path
) -> None:
    out, tokens, keys = tmp_path / "out", tmp_path / "tokens.json", tmp_path / "keys"
    tokens.write_text(json.dumps({TOKEN: {"write": ["telemetry-*"], "read": ["telemetry-*"]}}))
    assert run("cert", "make", "127.0.0.1", "--out", str(keys)).returncode == 0
    ours = ("--cert", str(keys / "server.pem"), "--key", str(keys / "server.key"))
    servers = [
        start(
            *("ingest", "--dir", str(tmp_path / name), "--listen", "127.0.0.1:0", "--json"),
            *("--tokens", str(tokens), *ours),
        )
        for name in ("data-1", "data-2")
    ]
    addresses = []
    for server in servers:
        assert server.stdout is not None
        addresses.append(json.loads(server.stdout.readline())["listening"])
    theirs = ("--servers", ",".join(addresses), "--ca", str(keys / "authority.pem"))
    running = begin(
        *(*SMALL, *theirs, "--token", TOKEN, "--duration", "100", "--out", str(out)),
        *("--conf", "spark.driver.memory=512m"),
    )
    running.until(" sent, ")
    family = running.family()
    running.process.send_signal(signal.SIGINT)
    code, found = running.summary()
    assert code == 130, running.said.read_text()
    assert (found["interrupted"], found["source"]) == (True, "servers")
    check(out, found)
    assert found["topics"] == ["telemetry-1", "telemetry-2"]
    assert set(table(out, "readings")["topic"].to_pylist()) == set(found["topics"])
    assert not (out / "landing").exists()
    assert all_gone(family)
    assert [server.poll() for server in servers] == [None, None]
    assert TOKEN not in (out / "spark.log").read_text() + running.said.read_text()


def test_a_second_ctrl_c_ends_it_at_once(begin: Callable[..., Running], tmp_path: Path) -> None:
    running = begin(*SMALL, "--duration", "100", "--out", str(tmp_path / "out"))
    running.until("devices are sending")
    family = running.family()
    running.process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(timeout=30) == 130
    assert "Traceback" not in running.said.read_text()
    assert all_gone(family)


def test_ctrl_c_while_it_starts_leaves_nothing(
    begin: Callable[..., Running], tmp_path: Path
) -> None:
    running = begin(*SMALL, "--out", str(tmp_path / "out"))
    running.until("starting Java")
    time.sleep(1.0)
    family = running.family()
    assert family
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(timeout=30) == 130
    assert running.said.read_text().splitlines()[-1].startswith("interrupted before anything")
    assert not (tmp_path / "out").exists()
    assert all_gone(family)


def test_all_processes_end_with_one_that_is_killed(
    begin: Callable[..., Running], tmp_path: Path
) -> None:
    running = begin(*SMALL, "--out", str(tmp_path / "out"))
    running.until("starting the queries")
    family = running.family()
    assert len(family) >= 4
    os.kill(running.process.pid, signal.SIGKILL)
    assert all_gone(family)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--master", "lokal"], "'lokal' is none of Spark's"),
        (["--servers", "nowhere"], "'nowhere' is not of the form host:port"),
        (["--topic", "a b"], "'a b'"),
        (["--rate", "2"], "at least one record a second"),
        (["--out", "."], "is not empty"),
        (["--conf", "executor.memory=1g"], "'executor.memory' is no setting of Spark"),
    ],
)
def test_what_cannot_be_is_one_line_before_anything_starts(
    run: Run, arguments: list[str], says: str
) -> None:
    ran = run("pipeline", *arguments)
    assert ran.returncode == 1
    assert ran.stderr.startswith("aqueduct: ")
    assert says in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--duration", "-1"],
        ["--loss", "0.9"],
        ["--token", "x"],
        ["--conf", "spark.executor.memory"],
        ["--conf", "spark.executor.cores=1", "--conf", "spark.executor.cores=2"],
    ],
    ids=" ".join,
)
def test_options_that_do_not_go_are_wrong_usage(run: Run, arguments: list[str]) -> None:
    assert run("pipeline", *arguments).returncode == 2


def test_a_server_that_is_not_there_is_named(begin: Callable[..., Running], tmp_path: Path) -> None:
    running = begin(*SMALL, "--servers", "127.0.0.1:9", "--out", str(tmp_path / "out"))
    assert running.process.wait(timeout=SECONDS) == 1
    last = running.said.read_text().splitlines()[-1]
    assert last.startswith("aqueduct: the gateway ended: 127.0.0.1:9 could not be reached")
