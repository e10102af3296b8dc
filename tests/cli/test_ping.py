"""`aqueduct ping`."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run, Start, interrupt


def test_ping_measures_connect_and_round_trip_times(run: Run, echo: str) -> None:
    ran = run("ping", echo, "--count", "5", "--interval", "0")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert len(lines) == 7
    assert lines[0].startswith("number=1 size=64 time=")
    assert "5 sent, 5 answered, 0 lost; connect" in lines[5]
    assert "p50" in lines[6]
    assert "p99" in lines[6]


def test_json_output_is_one_object(run: Run, echo: str) -> None:
    ran = run(
        "ping", echo, "--count", "20", "--interval", "0", "--size", "5000", "--json", fresh=True
    )
    found = json.loads(ran.stdout)
    assert ran.returncode == 0
    assert (found["sent"], found["answered"], found["lost"]) == (20, 20, 0)
    trips = found["round_trip_ms"]
    assert 0 < trips["min"] <= trips["p50"] <= trips["p99"] <= trips["max"]


def test_ctrl_c_ends_ping_with_a_summary(start: Start, echo: str) -> None:
    process = start("ping", echo, "--count", "0", "--interval", "0.01")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("number=1 ")
    code, out, err = interrupt(process)
    assert code == 0, err
    assert " 0 lost; connect" in out
    assert out.splitlines()[-1].startswith("round trip min ")


def test_a_missing_server_is_reported_with_a_remedy(run: Run) -> None:
    ran = run("ping", "127.0.0.1:9", "--timeout", "2")
    assert ran.returncode == 1
    assert len(ran.stderr.splitlines()) == 1
    assert "start the server" in ran.stderr


def test_a_server_with_another_certificate_is_not_trusted(run: Run, echo: str) -> None:
    ran = run("ping", echo, "--pin", 64 * "0")
    assert ran.returncode == 1
    assert len(ran.stderr.splitlines()) == 1
    assert "Traceback" not in ran.stderr
    assert "--ca FILE, --pin SHA256 or --system" in ran.stderr
    assert "trust=" not in ran.stderr


def test_unwritable_certificates_are_an_error_in_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(tmp_path / "file" / "certificates"))
    for command in (["ping", "127.0.0.1:1"], ["echo", "--listen", "127.0.0.1:0"], ["cert", "show"]):
        ran = run(*command)
        assert ran.returncode == 1
        assert len(ran.stderr.splitlines()) == 1, ran.stderr
        assert "set AQUEDUCT_DEV_DIR to a directory that can be written" in ran.stderr
