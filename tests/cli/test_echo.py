"""`aqueduct echo`: raw messages with attached channels."""

import subprocess

import msgspec
import pytest

import aqueduct
from aqueduct import blocking
from aqueduct.blocking import Receiver, Sender
from tests.cli.conftest import Start, interrupt

SECONDS = 60


class Ask(msgspec.Struct):
    text: str
    first: Sender[bytes]
    second: Sender[bytes]


class Nested(msgspec.Struct):
    depth: int
    inner: Receiver["Nested"] | None = None
    answer: Sender[bytes] | None = None


def connected(address: str, kind: object) -> "blocking.Connection[object]":
    return blocking.connect(address, kind, trust=aqueduct.dev_trust())


def test_echo_prints_its_address_when_it_is_ready(start: Start) -> None:
    process = start("echo", "--listen", "127.0.0.1:0", fresh=True)
    assert process.stdout is not None
    host, port = process.stdout.readline().strip().split(":")
    assert host == "127.0.0.1"
    assert 0 < int(port) < 65_536
    code, out, err = interrupt(process)
    assert (code, out, err) == (0, "", "")


def test_every_attached_sender_gets_the_payload_and_headers_and_is_finished(echo: str) -> None:
    with connected(echo, Ask) as connection:
        first, answers = blocking.channel(bytes)
        second, other_answers = blocking.oneshot(bytes)
        message = Ask("hello", first, second)
        connection.entrypoint.send(message, headers={"trace": "17"})
        for receiver in (answers, other_answers):
            got = receiver.receive_message(timeout=SECONDS)
            assert msgspec.msgpack.decode(got.payload)["text"] == "hello"
            assert got.headers.text("trace") == "17"
            with pytest.raises(aqueduct.EndOfChannel):
                receiver.receive(timeout=SECONDS)


def test_attached_receivers_are_read_three_levels_deep(echo: str) -> None:
    with connected(echo, Nested) as connection:
        outer, theirs = blocking.channel(Nested)
        inner, theirs_too = blocking.channel(Nested)
        answer, answers = blocking.oneshot(bytes)
        connection.entrypoint.send(Nested(1, inner=theirs))
        with outer, inner:
            outer.send(Nested(2, inner=theirs_too))
            inner.send(Nested(3, answer=answer))
            payload = answers.receive(timeout=SECONDS)
        assert msgspec.msgpack.decode(payload)["depth"] == 3


def test_a_cancelled_channel_does_not_affect_others(echo: str) -> None:
    with connected(echo, Nested) as connection:
        doomed, theirs = blocking.channel(Nested)
        connection.entrypoint.send(Nested(1, inner=theirs))
        doomed.cancel()
        answer, answers = blocking.oneshot(bytes)
        connection.entrypoint.send(Nested(2, answer=answer))
        assert answers.receive(timeout=SECONDS)


def test_a_finished_entrypoint_does_not_end_the_connection(echo: str) -> None:
    with connected(echo, Nested) as connection:
        outer, theirs = blocking.channel(Nested)
        connection.entrypoint.send(Nested(1, inner=theirs))
        connection.entrypoint.finish()
        connection.entrypoint.flush(timeout=SECONDS)
        with outer:
            answer, answers = blocking.oneshot(bytes)
            outer.send(Nested(2, answer=answer))
            assert answers.receive(timeout=SECONDS)
        assert connection.is_open


def test_ctrl_c_drains_open_connections(start: Start) -> None:
    process = start("echo", "--listen", "127.0.0.1:0", "--grace", "1")
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    with connected(address, Nested) as connection:
        answer, answers = blocking.oneshot(bytes)
        connection.entrypoint.send(Nested(1, answer=answer))
        answers.receive(timeout=SECONDS)
        code, _, err = interrupt(process)
        assert code == 0
        assert "draining 1 connection" in err
        connection.wait_closed(timeout=SECONDS)


def test_an_address_in_use_is_an_error_in_one_line(start: Start, echo: str) -> None:
    process: subprocess.Popen[str] = start("echo", "--listen", echo)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert len(err.splitlines()) == 1
    assert f"cannot listen on {echo}" in err
