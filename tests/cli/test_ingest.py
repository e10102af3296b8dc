"""`aqueduct ingest`, `produce` and `topics`: a server, producers and readers, each a process."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aqueduct import dev_trust
from aqueduct.cli.options import with_port
from aqueduct.ingest import DirectoryReader, WriteScope, blocking
from tests.cli.conftest import Run, Start, interrupt
from tests.ports import closed_port

SECONDS = 60
TOKEN = "a-token-for-tests"


def serving(
    start: Start, directory: Path, *arguments: str, listen: str = "127.0.0.1:0"
) -> "tuple[subprocess.Popen[str], dict[str, Any]]":
    command = ("ingest", "--dir", str(directory), "--listen", listen, "--json")
    process = start(*command, "--keep-free", "0", *arguments)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def stored(directory: Path, topic: str) -> list[bytes]:
    """All values of a topic, partition after partition."""
    reader = DirectoryReader(directory)
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
        time.sleep(0.02)


def one_line(ran: "subprocess.CompletedProcess[str]", *parts: str) -> None:
    assert ran.returncode == 1
    assert ran.stderr.startswith("aqueduct: ")
    assert len(ran.stderr.splitlines()) == 1, ran.stderr
    for part in parts:
        assert part in ran.stderr


@pytest.fixture
def unused_address() -> Iterator[str]:
    """An address without a listener."""
    with closed_port() as port:
        yield f"127.0.0.1:{port}"


def test_lines_are_stored_listed_and_counted(run: Run, start: Start, tmp_path: Path) -> None:
    server, where = serving(start, tmp_path)
    address = where["listening"]
    assert where["metrics"] is None
    lines = [f"line {number}" for number in range(1_000)]
    ran = run(
        "produce", "logs", "-s", address, "--json", "--producer-id", "one", stdin="\n".join(lines)
    )
    found = json.loads(ran.stdout)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert found.pop("seconds") > 0
    assert found == {
        "topic": "logs",
        "producer_id": "one",
        "lines": 1_000,
        "stored": 1_000,
        "stored_before": 0,
        "reconnects": 0,
        "interrupted": False,
    }
    (topic,) = json.loads(run("topics", "--server", address, "--json", fresh=True).stdout)
    assert topic["topic"] == "logs"
    assert sum(part["next_offset"] for part in topic["partitions"]) == 1_000
    again = run(
        "produce", "logs", "-s", address, "--producer-id", "one", stdin="\n".join([*lines, "x"])
    )
    assert again.stderr.startswith("1 record stored (1,000 had been stored before) in ")
    code, out, err = interrupt(server)
    counts = json.loads(out)
    assert (code, err) == (0, "")
    assert (counts["records"], counts["duplicates"], counts["refused"]) == (1_001, 0, 0)
    assert counts["bytes"] == sum(map(len, lines)) + 1
    assert sorted(stored(tmp_path, "logs")) == sorted(map(str.encode, [*lines, "x"]))


def test_the_text_before_the_separator_is_the_key(run: Run, start: Start, tmp_path: Path) -> None:
    server, where = serving(start, tmp_path)
    ran = run(
        "produce", "keyed", "-s", where["listening"], "--key", ",", stdin="a,1\nb,2\na,3\nnone\n"
    )
    assert ran.returncode == 0, ran.stderr
    with blocking.Reader(where["listening"], trust=dev_trust()) as reader:
        rows = [
            (row["partition"], row["key"], row["value"])
            for part in reader.topics("keyed")[0].partitions
            for batch in reader.read("keyed", part.partition, 0, part.next_offset)
            for row in batch.to_pylist()
        ]
    keys = {value: (partition, key) for partition, key, value in rows}
    assert keys[b"a,1"] == keys[b"a,3"]
    assert [keys[value][1] for value in (b"a,1", b"b,2", b"none")] == [b"a", b"b", None]
    assert interrupt(server)[0] == 0


def test_a_killed_producer_that_is_restarted_stores_every_line_once(
    run: Run, start: Start, tmp_path: Path
) -> None:
    server, where = serving(start, tmp_path)
    command = ("produce", "logs", "-s", where["listening"], "--producer-id", "again")
    text = "".join(f"line {number}\n" for number in range(50_000))
    killed = start(*command)
    assert killed.stdin is not None
    killed.stdin.write(text[: len(text) // 2])
    killed.stdin.flush()
    with blocking.Reader(where["listening"], trust=dev_trust()) as reader:
        wait_for(lambda: any(t.partitions[0].next_offset for t in reader.topics()))
    killed.kill()
    assert killed.wait(SECONDS) == -signal.SIGKILL
    ran = run(*command, "--json", stdin=text)
    found = json.loads(ran.stdout)
    assert found["stored_before"] > 0
    assert found["stored"] == 50_000 - found["stored_before"]
    assert interrupt(server)[0] == 0
    values = stored(tmp_path, "logs")
    assert len(values) == 50_000
    assert set(values) == set(text.encode().splitlines())


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_a_server_restart_neither_loses_nor_duplicates_records(
    start: Start, tmp_path: Path, how: signal.Signals
) -> None:
    server, where = serving(start, tmp_path, "--grace", "0")
    address = where["listening"]
    producer = start("produce", "logs", "-s", address, "--json")
    lines = [f"line {number}\n" for number in range(20_000)]

    def feed() -> None:
        assert producer.stdin is not None
        for at in range(0, len(lines), 100):
            producer.stdin.write("".join(lines[at : at + 100]))
            producer.stdin.flush()
            time.sleep(0.01)
        producer.stdin.close()

    feeding = threading.Thread(target=feed)
    feeding.start()
    wait_for(lambda: bool(list(tmp_path.glob("logs/part=0/*"))))
    server.send_signal(how)
    assert server.wait(SECONDS) == (0 if how is signal.SIGTERM else -how)
    second, _ = serving(start, tmp_path, listen=address)
    feeding.join(SECONDS)
    producer.stdin = None
    out, err = producer.communicate(timeout=SECONDS)
    assert producer.returncode == 0, err
    found = json.loads(out)
    assert (found["stored"], found["reconnects"]) == (20_000, 1)
    assert interrupt(second)[0] == 0
    values = stored(tmp_path, "logs")
    assert len(values) == 20_000
    assert set(values) == {line.rstrip().encode() for line in lines}


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=lambda how: how.name)
def test_an_interrupted_producer_stores_the_lines_it_has_read(
    start: Start, tmp_path: Path, how: signal.Signals
) -> None:
    server, where = serving(start, tmp_path)
    producer = start("produce", "logs", "-s", where["listening"])
    assert producer.stdin is not None
    producer.stdin.write("one\ntwo\nhalf a li")
    producer.stdin.flush()
    with blocking.Reader(where["listening"], trust=dev_trust()) as reader:
        wait_for(lambda: any(t.partitions[0].next_offset == 2 for t in reader.topics()))
    producer.send_signal(how)
    assert producer.wait(SECONDS) == 130  # while its input is still open
    _, err = producer.communicate()
    assert re.fullmatch(r"2 records stored in .* s; interrupted after 2 lines\n", err)
    assert interrupt(server)[0] == 0
    assert stored(tmp_path, "logs") == [b"one", b"two"]


def test_an_interrupted_server_acknowledges_pending_records(start: Start, tmp_path: Path) -> None:
    server, where = serving(start, tmp_path)
    with blocking.Producer(where["listening"], "logs", trust=dev_trust()) as producer:
        producer.send_many([b"x"] * 5_000)
        server.send_signal(signal.SIGTERM)
        producer.flush(timeout=20)
        assert producer.committed == 5_000
    out, err = server.communicate(timeout=SECONDS)
    assert (server.returncode, err) == (0, "")
    assert json.loads(out)["records"] == 5_000


def test_an_unreachable_server_is_reported_soon_and_retried_until_the_timeout(
    run: Run, start: Start, unused_address: str
) -> None:
    begun = time.monotonic()
    producer = start("produce", "logs", "-s", unused_address)
    assert producer.stderr is not None
    line = producer.stderr.readline()
    assert time.monotonic() - begun < 50
    assert line.startswith(f"aqueduct: nothing listens at {unused_address} (Connection refused)")
    assert line.endswith("; retrying for up to 60 s; Ctrl-C ends that\n")
    code, out, err = interrupt(producer)
    assert (code, out) == (130, "")
    assert err.startswith("0 records stored in ")
    one_line(
        run("produce", "logs", "-s", unused_address, "--wait", "0", stdin="x"),
        "could not be reached",
    )
    one_line(run("topics", "-s", unused_address), f"nothing listens at {unused_address}")


def test_a_silent_address_is_reported_soon(start: Start) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mute:
        mute.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        producer = start("produce", "logs", "-s", address)
        assert producer.stderr is not None
        assert producer.stderr.readline().startswith(
            f"aqueduct: {address} does not answer; retrying"
        )
        assert interrupt(producer)[0] == 130


def test_a_server_that_does_not_return_is_reported_with_the_stored_count(
    start: Start, tmp_path: Path
) -> None:
    server, where = serving(start, tmp_path, "--grace", "0")
    producer = start(
        "produce", "logs", "-s", where["listening"], "--wait", "1", "--producer-id", "p"
    )
    assert producer.stdin is not None
    producer.stdin.write("one\ntwo\n")
    producer.stdin.flush()
    with blocking.Reader(where["listening"], trust=dev_trust()) as reader:
        wait_for(lambda: any(t.partitions[0].next_offset == 2 for t in reader.topics()))
    interrupt(server)
    producer.stdin.write("three\n")
    producer.stdin.close()
    producer.stdin = None
    _, err = producer.communicate(timeout=SECONDS)
    assert producer.returncode == 1
    assert "could not be reached for 1 s" in err
    # The third line was read if there was time for it.
    assert re.search("; of [23] lines, 2 are stored: give the same input with ", err), err
    assert "--producer-id p to continue after them" in err


def test_a_line_that_is_too_long_is_reported_and_earlier_lines_are_stored(
    run: Run, start: Start, tmp_path: Path
) -> None:
    server, where = serving(start, tmp_path, "--max-record", "1000")
    ran = run("produce", "logs", "-s", where["listening"], stdin="one\n" + "x" * 200_000)
    one_line(ran, "line 2 is larger than the server accepts: 1,000 bytes", "of 1 line, 1 is stored")
    assert interrupt(server)[0] == 0
    assert stored(tmp_path, "logs") == [b"one"]


def test_topics_are_the_same_from_the_server_and_from_its_directory(
    run: Run, start: Start, tmp_path: Path
) -> None:
    server, where = serving(start, tmp_path, "--partitions", "2")
    address = where["listening"]
    assert run("topics", "-s", address).stderr == "no topics\n"
    for topic in ("b", "a"):
        assert run("produce", topic, "-s", address, stdin="x\n" * 300).returncode == 0
    with blocking.Reader(address, trust=dev_trust()) as reader:
        reader.advance("reports", "a", {0: 7})
    shown = run("topics", "a", "-s", address).stdout
    assert "255" in shown
    assert "reader reports is at 0: 7" in shown
    scope = WriteScope("query", 4, "0123456789abcdef", 0)
    with blocking.Producer(address, "a", scope=scope, trust=dev_trust()):
        pass
    shown = run("topics", "a", "-s", address).stdout
    assert re.search(
        r"job query: step 4 is unfinished \(began .*, last used .*\); it keeps rows from "
        r"offsets 0: \d+, 1: \d+ until .* if it stays idle",
        " ".join(shown.replace("│", " ").split()),
    )
    assert interrupt(server)[0] == 0
    _, again = serving(start, tmp_path)
    asked = json.loads(run("topics", "--json", "-s", again["listening"]).stdout)
    seen = json.loads(run("topics", "--json", "--dir", str(tmp_path)).stdout)
    assert [topic["topic"] for topic in asked] == ["a", "b"]
    assert [[part["partition"] for part in topic["partitions"]] for topic in seen] == [[0, 1]] * 2
    assert asked[0]["readers"] == seen[0]["readers"] == {"reports": {"0": 7}}
    kept = [topics[0]["steps"][0] for topics in (asked, seen)]
    assert all((each["job"], each["step"], each["runs"]) == ("query", 4, 1) for each in kept)
    assert kept[0]["kept_until"] - kept[0]["last_used"] == 7 * 86_400 * 10**6
    assert kept[1]["kept_until"] is None
    one_line(run("topics", "c", "-s", again["listening"]), "there is no topic 'c'; topics: a, b")
    one_line(
        run("topics", "c", "--dir", str(tmp_path)), "there is no topic 'c' in ", "topics: a, b"
    )
    one_line(run("topics", "--dir", str(tmp_path / "no")), "there is no directory")


def test_a_damaged_partition_is_listed_with_file_and_byte(
    run: Run, start: Start, tmp_path: Path
) -> None:
    server, where = serving(start, tmp_path)
    run("produce", "good", "-s", where["listening"], stdin="x\n")
    run("produce", "logs", "-s", where["listening"], stdin="x\n")
    assert interrupt(server)[0] == 0
    manifest = tmp_path / "logs" / "part=0" / "manifest.json"
    manifest.write_text("{}")
    shown = run("topics", "--dir", str(tmp_path)).stdout
    assert "manifest.json, byte 0: not a manifest" in re.sub(r"\s+", " ", shown)
    process, again = serving(start, tmp_path)
    ran = run("produce", "logs", "-s", again["listening"], stdin="x\n")
    one_line(ran, "topic logs is out of use", "manifest.json, byte 0")
    assert run("produce", "good", "-s", again["listening"], stdin="x\n").returncode == 0
    assert "out of use" in interrupt(process)[2]


def test_an_unreadable_topic_is_listed_with_the_others(
    run: Run, start: Start, tmp_path: Path
) -> None:
    server, where = serving(start, tmp_path)
    for topic in ("bad", "good"):
        assert run("produce", topic, "-s", where["listening"], stdin="x\n").returncode == 0
    assert interrupt(server)[0] == 0
    (tmp_path / "bad" / "topic.json").write_text("?")
    process, again = serving(start, tmp_path)
    for arguments in (["-s", again["listening"]], ["--dir", str(tmp_path)]):
        bad, good = json.loads(run("topics", "--json", *arguments).stdout)
        assert (bad["topic"], bad["partitions"]) == ("bad", [])
        assert "topic.json, byte 0: not the description of a topic" in bad["fault"]
        assert (good["topic"], len(good["partitions"]), good["fault"]) == ("good", 4, "")
    assert "topic.json, byte 0" in run("topics", "--dir", str(tmp_path)).stdout
    one_line(run("topics", "bad", "-s", again["listening"]), "topic bad is out of use")
    one_line(run("topics", "bad", "--dir", str(tmp_path)), "not the description of a topic")
    assert interrupt(process)[0] == 0


def parsed(text: str) -> dict[str, float]:
    """The samples of a page in Prometheus' format."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = re.fullmatch(
                r'([a-z_]+(?:\{[a-z]+="[^"]*"(?:,[a-z]+="[^"]*")*\})?) (\S+)', line
            )
            assert match is not None, line
            found[match[1]] = float(match[2])
    return found


def test_metrics_have_the_prometheus_format(run: Run, start: Start, tmp_path: Path) -> None:
    server, where = serving(start, tmp_path, "--metrics", "127.0.0.1:0", "--partitions", "1")
    assert run("produce", "logs", "-s", where["listening"], stdin="x\n" * 300).returncode == 0
    page = f"http://{where['metrics']}/metrics"
    with urllib.request.urlopen(page, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        samples = parsed(answer.read().decode())
    assert samples["aqueduct_ingest_records_total"] == 300
    assert samples["aqueduct_ingest_bytes_total"] == 300
    assert samples['aqueduct_ingest_next_offset{topic="logs",partition="0"}'] == 300
    count = samples["aqueduct_ingest_commit_seconds_count"]
    assert samples['aqueduct_ingest_commit_seconds_bucket{le="+Inf"}'] == count > 0
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://{where['metrics']}/", timeout=10)
    assert interrupt(server)[0] == 0


def test_only_a_valid_token_is_accepted(
    run: Run, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps({TOKEN: {"write": ["logs.*"], "read": ["logs.*"]}}))
    _, where = serving(start, tmp_path / "data", "--tokens", str(tokens))
    command = ("produce", "logs.a", "-s", where["listening"])
    one_line(run(*command, stdin="x"), "wants a token that it knows", "--token")
    one_line(run(*command, "--token", "something-else", stdin="x"), "wants a token that it knows")
    one_line(run("topics", "-s", where["listening"]), "wants a token that it knows")
    monkeypatch.setenv("AQUEDUCT_TOKEN", TOKEN)
    assert run(*command, stdin="x").returncode == 0
    refused = run("produce", "other", "-s", where["listening"], stdin="x")
    one_line(refused, "this token may not write to topic 'other'")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("host", "host:4434"),
        ("host:1", "host:1"),
        ("[::1]", "[::1]:4434"),
        ("[::1]:1", "[::1]:1"),
    ],
)
def test_the_default_port_is_that_of_ingest(given: str, meant: str) -> None:
    assert with_port(given) == meant


def test_an_untrusted_certificate_is_an_error_in_one_line(
    run: Run, start: Start, tmp_path: Path
) -> None:
    _, where = serving(start, tmp_path)
    for command in (("produce", "logs"), ("topics",)):
        ran = run(*command, "-s", where["listening"], "--pin", "ab" * 32, stdin="x")
        one_line(ran, "no trust between us and", "--ca FILE, --pin SHA256 or --system")


def test_a_server_that_cannot_start_is_an_error_in_one_line(
    run: Run, start: Start, tmp_path: Path
) -> None:
    _, where = serving(start, tmp_path / "data", "--metrics", "127.0.0.1:0")
    free = ("--listen", "127.0.0.1:0")
    (tmp_path / "file").touch()

    def ingest(directory: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return run("ingest", "--dir", str(tmp_path / directory), *arguments)

    one_line(ingest("data", *free), "another server has ")
    one_line(ingest("more", "--listen", where["listening"]), "Address already in use")
    one_line(ingest("more", *free, "--metrics", where["metrics"]), "cannot serve metrics at ")
    one_line(ingest("file", *free), "cannot store anything in ")
    one_line(ingest("more", *free, "--tokens", str(tmp_path / "no")), "cannot read the tokens in ")
    one_line(ingest("more", *free, "--tokens", str(tmp_path / "file")), "does not hold tokens")
    one_line(
        ingest("more", *free, "--max-record", "100000000"),
        "--max-record: give a whole number from 1 to 8,388,608",
    )
    one_line(ingest("more", "--listen", "x:y"), "not an address: 'x:y'; write host:port")


@pytest.mark.parametrize(
    "arguments",
    [
        ["ingest"],
        ["ingest", "--dir", "data", "--partitions", "0"],
        ["ingest", "--dir", "data", "--cert", "cert.pem"],
        ["produce"],
        ["produce", "logs", "--key", ""],
        ["topics", "--pin", "ab", "--system"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_two(run: Run, arguments: list[str]) -> None:
    ran = run(*arguments)
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr


def test_a_terminal_shows_the_growing_count(
    start: Start, tmp_path: Path, dev_directory: Path
) -> None:
    _, where = serving(start, tmp_path)
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "aqueduct", "produce", "logs", "-s", where["listening"]]
    environment: dict[str, Any] = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=theirs, stdout=theirs, env=environment
    ) as process:
        os.close(theirs)
        assert process.stdin is not None
        process.stdin.write(b"x\n" * 1_234)
        process.stdin.flush()
        seen = b""
        while b"1,234 records stored" not in seen:
            seen += os.read(ours, 65_536)
        process.stdin.close()
        assert process.wait(SECONDS) == 0
    os.close(ours)


def test_a_damaged_log_is_shown_and_truncated_on_request(
    run: Run, start: Start, tmp_path: Path
) -> None:
    process, where = serving(start, tmp_path)
    run("produce", "logs", "-s", where["listening"], "--partitions", "1", stdin="a\nb\n")
    interrupt(process)
    for log in (*tmp_path.rglob("*.wal"),):
        log.write_bytes(log.read_bytes()[:-1])
    command = ("topics", "logs", "--dir", str(tmp_path), "--repair")
    shown = run(*command)
    assert "a block is cut short" in shown.stdout
    assert "nothing was changed" in shown.stderr
    assert run(*command, "--cut").stdout == shown.stdout
    assert run(*command).stderr == "nothing to repair\n"
    one_line(run("topics", "--dir", str(tmp_path), "--repair"), "name the topic")
    one_line(run("topics", "logs", "--repair"), "--repair needs --dir")
    one_line(run("topics", "logs", "--cut"), "--cut requires --repair")
    one_line(run("topics", "logs", "--dir", str(tmp_path), "--forget-reader", "r"), "omit --dir")


def test_a_named_reader_is_removed_on_request(run: Run, start: Start, tmp_path: Path) -> None:
    _, where = serving(start, tmp_path)
    address = where["listening"]
    run("produce", "logs", "-s", address, stdin="a\n")
    with blocking.Reader(address, trust=dev_trust()) as reader:
        reader.advance("r", "logs", {0: 0})
        assert reader.topics()[0].readers == {"r": {0: 0}}
        assert run("topics", "logs", "-s", address, "--forget-reader", "r").returncode == 0
        assert reader.topics()[0].readers == {}


@pytest.mark.parametrize("mode", ["x", "777", "640"])
def test_an_invalid_directory_mode_is_an_error(run: Run, tmp_path: Path, mode: str) -> None:
    one_line(run("ingest", "--dir", str(tmp_path / "data"), "--dir-mode", mode), "750")
    assert not (tmp_path / "data").exists()


def test_the_mode_of_stored_files_can_be_chosen(run: Run, start: Start, tmp_path: Path) -> None:
    for mode in (0o750, 0o755):
        given = [] if mode == 0o750 else ["--dir-mode", f"{mode:o}"]
        server, where = serving(start, tmp_path / "data", *given)
        run("produce", "logs", "-s", where["listening"], stdin="line")
        interrupt(server)
        assert (tmp_path / "data" / "logs").stat().st_mode & 0o777 == mode
