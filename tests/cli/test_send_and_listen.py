"""`aqueduct send` to `aqueduct listen`, two processes."""

import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from aqueduct import ChannelCancelled
from aqueduct.cli import running
from aqueduct.cli.listen import Printer, create, readable
from tests.cli.conftest import Run, Start, interrupt

SECONDS = 60


def listening(
    start: Start, *arguments: str, at: str = "127.0.0.1:0"
) -> "tuple[subprocess.Popen[str], str]":
    process = start("listen", at, "--json", *arguments)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["listening"]


def objects(process: "subprocess.Popen[str]") -> list[dict[str, Any]]:
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()]


def test_arguments_are_messages_with_headers(run: Run, start: Start) -> None:
    listener, address = listening(start, "--count", "2")
    sent = run("send", address, "hello", "wörld", "--header", "from=me")
    assert sent.returncode == 0, sent.stderr
    assert "2 messages, 11 bytes acknowledged" in sent.stderr
    first, second = objects(listener)
    assert (first["text"], second["text"]) == ("hello", "wörld")
    assert (first["number"], second["number"]) == (0, 1)
    assert first["headers"] == [["from", "me"]]


@pytest.mark.parametrize("scheme", ["aqueduct+quic://", "aqueduct+tcp://"])
@pytest.mark.parametrize("serves_both", [False, True])
def test_messages_arrive_over_each_transport(
    run: Run, start: Start, scheme: str, serves_both: bool
) -> None:
    at = "127.0.0.1:0" if serves_both else f"{scheme}127.0.0.1:0"
    listener, address = listening(start, "--count", "1", at=at)
    assert address.startswith("127." if serves_both else scheme)
    sent = run("send", f"{scheme}{address.removeprefix(scheme)}", "hello")
    assert sent.returncode == 0, sent.stderr
    assert [one["text"] for one in objects(listener)] == ["hello"]


def test_lines_of_standard_input_are_messages(run: Run, start: Start) -> None:
    # No more than a pipe holds, because the output is read only after the sender is done.
    listener, address = listening(start, "--count", "400")
    text = "".join(f"line {number}\n" for number in range(400))
    sent = run("send", address, "--json", stdin=text)
    assert json.loads(sent.stdout)["messages"] == 400
    assert [one["text"] for one in objects(listener)] == text.splitlines()


def test_all_of_standard_input_can_be_one_message(run: Run, start: Start) -> None:
    listener, address = listening(start, "--count", "1")
    assert run("send", address, "--whole", stdin="two\nlines\n").returncode == 0
    assert [one["text"] for one in objects(listener)] == ["two\nlines\n"]


def test_files_arrive_completely(run: Run, start: Start, tmp_path: Path) -> None:
    content = bytes(range(256)) * 10_000
    picture, empty, out = tmp_path / "picture.bin", tmp_path / "empty", tmp_path / "out"
    picture.write_bytes(content)
    empty.touch()
    listener, address = listening(start, "--count", "2", "--out", str(out))
    sent = run("send", address, "--file", str(picture), "--file", str(empty))
    assert sent.returncode == 0, sent.stderr
    assert {one["file"]: one["size"] for one in objects(listener)} == {
        "picture.bin": len(content),
        "empty": 0,
    }
    assert (out / "picture.bin").read_bytes() == content
    assert (out / "empty").read_bytes() == b""


def test_an_interrupted_listener_has_printed_everything(run: Run, start: Start) -> None:
    process = start("listen", "127.0.0.1:0", fresh=True)
    assert process.stderr is not None
    address = process.stderr.readline().split()[-1]
    assert run("send", address, "red", "\x1b[31m", fresh=True).returncode == 0
    code, out, err = interrupt(process)
    assert (code, out, err) == (0, "red\n\\x1b[31m\n", "")


def test_without_a_listener_sending_fails_in_one_line(run: Run) -> None:
    ran = run("send", "127.0.0.1:9", "hello")
    assert ran.returncode == 1
    assert ran.stderr.startswith("aqueduct: nothing listens at 127.0.0.1:9")
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("a.txt", "a.txt"),
        ("../../etc/passwd", "passwd"),
        ("..", "file"),
        ("c:\\x\\y.txt", "y.txt"),
        ("", "file"),
        ("ж" * 200, "ж" * 100),  # 255 bytes is what a file system takes
    ],
)
def test_a_file_name_cannot_escape_the_directory(name: str, kept: str, tmp_path: Path) -> None:
    for number in (1, 2):
        path, file = create(tmp_path, name)
        file.close()
        assert path == tmp_path / (kept if number == 1 else f"{kept}.2")


def test_long_and_binary_payloads_are_shown_safely() -> None:
    assert readable(b"\x00\xff\x1b[0m") == "\\x00\\xff\\x1b[0m"
    assert readable(b"x" * 5_000).endswith("… (5,000 bytes)")


def test_errors_of_a_peer_are_printed_without_control_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = io.StringIO()
    monkeypatch.setattr(running, "notes", Console(file=written, highlight=False, width=200))
    Printer().ended("[\x1b]0;mine\x07\x9b31m] ", ChannelCancelled("because\n\x1b[2J"))
    assert written.getvalue() == "[\\x1b]0;mine\\x07\\x9b31m] because\\n\\x1b[2J\n"


def test_failures_are_printed_without_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(typer.Exit):
        running.fail("127.0.0.1:1 said: \x1b[2J")
    assert capsys.readouterr().err == "aqueduct: 127.0.0.1:1 said: \\x1b[2J\n"


def test_an_unwritable_directory_is_an_error_in_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = run("listen", "127.0.0.1:0", "--out", str(tmp_path / "file" / "out"))
    assert ran.returncode == 1
    assert ran.stderr.startswith("aqueduct: cannot keep files in ")
    assert len(ran.stderr.splitlines()) == 1
