"""`aqueduct pipeline` as a process: from devices to tables and a report, and its exits."""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run, Start
from tests.cli.piping import SECONDS, Running, all_gone, check, table

ROOT = Path(__file__).resolve().parent.parent.parent
TOKEN = "a-long-random-token"
SMALL = ("--master", "local[2]", "--devices", "8", "--rate", "400", "--loss", "0.03")


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


def test_the_example_of_the_guide_stores_every_record_in_the_tables(
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


def test_ctrl_c_stores_all_sent_records_with_running_servers(
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


def test_a_second_ctrl_c_ends_the_pipeline_at_once(
    begin: Callable[..., Running], tmp_path: Path
) -> None:
    running = begin(*SMALL, "--duration", "100", "--out", str(tmp_path / "out"))
    running.until("devices are sending")
    family = running.family()
    running.process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(timeout=30) == 130
    assert "Traceback" not in running.said.read_text()
    assert all_gone(family)


def test_ctrl_c_during_the_start_leaves_no_files(
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


def test_a_killed_pipeline_ends_all_its_processes(
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
        (["--master", "lokal"], "'lokal' is not a master URL of Spark"),
        (["--master", "spark://127.0.0.1:1"], "check that a master runs there"),
        (["--out", "/dev/null/out"], "--out /dev/null/out cannot be written: Not a directory"),
        (["--servers", "nowhere"], "'nowhere' is not of the form host:port"),
        (["--topic", "a b"], "'a b'"),
        (["--rate", "2"], "at least one record per second"),
        (["--out", "."], "is not empty"),
        (["--conf", "executor.memory=1g"], "'executor.memory' is not a Spark property"),
    ],
)
def test_an_invalid_option_is_an_error_in_one_line_before_anything_starts(
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
        ["--system"],
        ["--conf", "spark.executor.memory"],
        ["--conf", "spark.executor.cores=1", "--conf", "spark.executor.cores=2"],
    ],
    ids=" ".join,
)
def test_invalid_options_are_wrong_usage(run: Run, arguments: list[str]) -> None:
    assert run("pipeline", *arguments).returncode == 2


def test_an_error_names_the_unreachable_server(
    begin: Callable[..., Running], tmp_path: Path
) -> None:
    running = begin(*SMALL, "--servers", "127.0.0.1:9", "--out", str(tmp_path / "out"))
    assert running.process.wait(timeout=SECONDS) == 1
    last = running.said.read_text().splitlines()[-1]
    assert last.startswith("aqueduct: the gateway ended: 127.0.0.1:9 could not be reached")
