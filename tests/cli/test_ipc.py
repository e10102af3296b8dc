"""`aqueduct ipc send` to `aqueduct ipc listen`, two processes."""

import base64
import json
import signal
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from aqueduct.cli.ipc import IpcSendRun, OutgoingMessage
from aqueduct.ipc.address import parse
from tests.cli.conftest import Run, Start, interrupt
from tests.ports import closed_port

SECONDS = 60


def listening(start: Start, *arguments: str) -> "tuple[subprocess.Popen[str], str]":
    process = start("ipc", "listen", "udp://127.0.0.1:0", "--json", *arguments)
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    assert list(ready) == ["address"]
    return process, ready["address"]


def objects(process: "subprocess.Popen[str]") -> list[dict[str, Any]]:
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


def payloads(process: "subprocess.Popen[str]") -> list[bytes]:
    return [base64.b64decode(one["payload_base64"]) for one in objects(process)]


@pytest.fixture
def unused_address() -> Iterator[str]:
    """An address without a listener."""
    with closed_port() as port:
        yield f"udp://127.0.0.1:{port}"


def test_each_message_is_a_line_of_json_with_four_fields(run: Run, start: Start) -> None:
    listener, address = listening(start, "--count", "2")
    sent = run("ipc", "send", address, "hello", "wörld", "--parallel", "1")
    assert sent.returncode == 0, sent.stderr
    assert sent.stderr.startswith("2 messages, 11 bytes acknowledged in ")
    assert sent.stdout == ""
    first, second = objects(listener)
    assert list(first) == ["from", "id", "size", "payload_base64"]
    assert first["from"].startswith("udp://127.0.0.1:")
    assert uuid.UUID(first["id"]) != uuid.UUID(second["id"])
    assert (first["size"], second["size"]) == (5, 6)
    assert base64.b64decode(second["payload_base64"]).decode() == "wörld"


def test_lines_of_standard_input_are_messages(run: Run, start: Start) -> None:
    # No more than a pipe holds, because the output is read only after the sender is done.
    listener, address = listening(start, "--count", "300")
    lines = [f"line {number}" for number in range(300)]
    sent = run("ipc", "send", address, "--json", stdin="\n".join(lines))
    summary = json.loads(sent.stdout)
    assert (sent.returncode, sent.stderr) == (0, "")
    assert summary.pop("seconds") > 0
    assert summary == {
        "messages": 300,
        "bytes": sum(map(len, lines)),
        "failed": 0,
        "given_up": 0,
        "failures": [],
    }
    assert sorted(payloads(listener)) == sorted(line.encode() for line in lines)


def test_all_of_standard_input_can_be_one_message(run: Run, start: Start) -> None:
    listener, address = listening(start, "--count", "1")
    assert run("ipc", "send", address, "--whole", stdin="two\nlines\n").returncode == 0
    assert payloads(listener) == [b"two\nlines\n"]


def test_a_file_is_one_message_even_an_empty_one(start: Start, tmp_path: Path) -> None:
    content = bytes(range(256)) * 600  # three PDUs
    picture, empty = tmp_path / "picture.bin", tmp_path / "empty"
    picture.write_bytes(content)
    empty.touch()
    listener, address = listening(start, "--count", "2")
    # Both at once: the listener prints more than a pipe holds.
    sender = start("ipc", "send", address, "-f", str(picture), "-f", str(empty), "--json")
    assert sorted(payloads(listener)) == [b"", content]
    assert json.loads(sender.communicate(timeout=SECONDS)[0])["messages"] == 2


def test_messages_are_printed_with_their_source_and_without_control_characters(
    run: Run, start: Start
) -> None:
    process = start("ipc", "listen")
    assert process.stderr is not None
    address = process.stderr.readline().split()[-1]
    assert run("ipc", "send", address, "red", "\x1b[31m", "-p", "1").returncode == 0
    code, out, err = interrupt(process)
    lines = [line.split(": ")[1] for line in out.splitlines()]
    assert (code, lines, err) == (0, ["red", "\\x1b[31m"], "")
    assert out.startswith("udp://127.0.0.1:")


def test_raw_payloads_are_printed_unescaped(run: Run, start: Start) -> None:
    process = start("ipc", "listen", "udp://127.0.0.1:0", "--raw", fresh=True)
    assert process.stderr is not None
    address = process.stderr.readline().split()[-1]
    assert run("ipc", "send", address, "a\tb", fresh=True).returncode == 0
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out, err) == (0, "a\tb\n", "")


def test_a_listener_acknowledges_only_what_it_prints(run: Run, start: Start) -> None:
    listener, address = listening(start, "--count", "3")
    texts = [str(number) for number in range(20)]
    sent = run("ipc", "send", address, *texts, "--json", "--timeout", "2")
    summary = json.loads(sent.stdout)
    assert sent.returncode == 1
    assert (summary["messages"], summary["failed"]) == (3, 17)
    assert len(payloads(listener)) == 3
    assert {one["error"] for one in summary["failures"]} <= {"MessageRefused", "SendTimeout"}


def test_a_listener_with_a_closed_output_acknowledges_nothing(run: Run, start: Start) -> None:
    listener, address = listening(start)
    assert listener.stdout is not None
    assert listener.stderr is not None
    listener.stdout.close()
    sent = run("ipc", "send", address, "lost?", "--json")
    assert (sent.returncode, json.loads(sent.stdout)["messages"]) == (1, 0)
    assert listener.wait(SECONDS) == 1
    assert listener.stderr.read() == ""


def test_without_a_listener_each_message_is_reported_as_failed(
    run: Run, unused_address: str
) -> None:
    ran = run("ipc", "send", unused_address, "one", "two", "--timeout", "0.2")
    assert ran.returncode == 1
    lines = ran.stderr.splitlines()
    for number, line in enumerate(sorted(lines[:2]), 1):
        assert line.startswith(
            f"aqueduct: message {number}: {unused_address} did not take the message"
        )
    assert lines[2].startswith("0 messages, 0 bytes acknowledged in ")
    assert lines[2].endswith("; 2 failed")


def test_json_output_has_the_failures(run: Run, unused_address: str, tmp_path: Path) -> None:
    path = tmp_path / "letter"
    path.write_text("dear")
    ran = run("ipc", "send", unused_address, "--file", str(path), "--timeout", "0.2", "--json")
    (failure,) = json.loads(ran.stdout)["failures"]
    assert "did not take the message in time" in failure.pop("reason")
    assert failure == {
        "number": 1,
        "file": str(path),
        "address": unused_address,
        "error": "SendTimeout",
        "may_have_arrived": False,
    }


def test_a_message_that_is_too_large_for_the_receiver_fails_alone(
    run: Run, start: Start, tmp_path: Path
) -> None:
    large, small = tmp_path / "large", tmp_path / "small"
    large.write_bytes(bytes(100_000))
    small.write_bytes(b"small")
    listener, address = listening(start, "--count", "1", "--max-message", "65536")
    ran = run("ipc", "send", address, "-f", str(large), "-f", str(small))
    assert ran.returncode == 1
    assert f"aqueduct: {large}: the message exceeds the max_message of {address}" in ran.stderr
    assert payloads(listener) == [b"small"]


def test_many_failures_are_counted_and_only_some_printed(run: Run, unused_address: str) -> None:
    ran = run("ipc", "send", unused_address, *"abcdefghijklmno", "--timeout", "0.1")
    lines = ran.stderr.splitlines()
    assert len(lines) == 11
    assert lines[-1].endswith("; 15 failed")


async def test_unreadable_input_ends_the_command_with_the_reason() -> None:
    async def broken() -> AsyncIterator[OutgoingMessage]:
        yield OutgoingMessage(1, None, b"under way")
        raise OSError("the disk is gone")

    job = IpcSendRun("udp://127.0.0.1:9", None, 1)
    with pytest.raises(OSError, match="the disk is gone"):
        await job.run(parse(job.address), None, broken(), None, as_json=False)
    assert (job.messages, job.failed) == (0, 0)


def test_ctrl_c_ends_a_sender_with_a_summary(start: Start) -> None:
    listener, address = listening(start)
    sender = start("ipc", "send", address, "--parallel", "1")
    assert sender.stdin is not None
    sender.stdin.write("one line\ntwo lines\n")
    sender.stdin.flush()
    assert listener.stdout is not None
    sizes = [json.loads(listener.stdout.readline())["size"] for _ in range(2)]
    assert sizes == [8, 9]  # so the first is acknowledged, and the second is about to be
    sender.send_signal(signal.SIGINT)
    assert sender.wait(SECONDS) == 130  # while its input is still open
    out, err = sender.communicate()
    assert out == ""
    assert err.startswith(("1 messages, 8 bytes", "2 messages, 17 bytes"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["send", "localhost:5000", "x"], "not an address: 'localhost:5000'; write udp://host"),
        (["send", "udp://127.0.0.1", "x"], "not an address to send to: 'udp://127.0.0.1'; write"),
        (["send", "udp://127.0.0.1:99999", "x"], "not an address: "),
        (["send", "local://here", "x"], "not an address: 'local://here'; write udp://host"),
        (["send", "udp://nowhere.invalid:5", "x"], "cannot find 'nowhere.invalid'"),
        (["listen", "http://127.0.0.1:0"], "not an address: 'http://127.0.0.1:0'; write udp://"),
        (["listen", "tls://"], "not an address to listen at: 'tls://'; write tls://host:port"),
        (
            ["listen", "udp://nowhere.invalid:5"],
            "cannot listen at udp://nowhere.invalid:5: cannot find 'nowhere.invalid'",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_invalid_address_is_an_error_in_one_line(
    run: Run, arguments: list[str], says: str
) -> None:
    ran = run("ipc", *arguments)
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"aqueduct: {says}")
    assert len(ran.stderr.splitlines()) == 1
    assert "local://name" not in ran.stderr


def test_an_address_in_use_is_an_error_in_one_line(run: Run, start: Start) -> None:
    _, address = listening(start)
    ran = run("ipc", "listen", address)
    assert ran.returncode == 1
    assert ran.stderr == f"aqueduct: cannot listen at {address}: Address already in use\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["send", "udp://127.0.0.1:5", "x", "--system"],
        ["send", "udp://127.0.0.1:5", "x", "--parallel", "0"],
        ["send", "udp://127.0.0.1:5", "x", "--file", "setup.py"],
        ["listen", "udp://127.0.0.1:0", "--cert", "cert.pem"],
        ["listen", "udp://127.0.0.1:0", "--max-message", "1000"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_two(run: Run, arguments: list[str]) -> None:
    ran = run("ipc", *arguments)
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr


def test_an_address_reachable_from_the_network_prints_a_warning(start: Start) -> None:
    process = start("ipc", "listen", "udp://0.0.0.0:0")
    assert process.stderr is not None
    warning = process.stderr.readline()
    assert warning.startswith("aqueduct: udp://0.0.0.0:0: ScalableIPC over UDP is for one host")
    assert process.stderr.readline().startswith("listening on udp://0.0.0.0:")
    assert interrupt(process)[0] == 0
