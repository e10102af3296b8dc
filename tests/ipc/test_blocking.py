"""Endpoints for threads."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from aqueduct import (
    EncodeError,
    EndpointClosed,
    ForkedConnectionError,
    LocalProtocolError,
    MessageRefused,
    ipc,
)
from aqueduct.ipc import blocking


def test_a_thread_sends_and_another_receives() -> None:
    with (
        blocking.Endpoint("udp://127.0.0.1:0", int) as sender,
        blocking.Endpoint("udp://127.0.0.1:0", int) as receiver,
        ThreadPoolExecutor(8) as pool,
    ):
        sends = [pool.submit(sender.send, receiver.address, n) for n in range(100)]
        got = [receiver.receive(timeout=10).payload for _ in sends]
        assert sorted(got) == list(range(100))
        assert [send.result() for send in sends] == [None] * 100
        assert receiver.statistics().received == 100


def test_a_future_is_done_when_the_message_was_taken() -> None:
    with (
        blocking.Endpoint("udp://127.0.0.1:0", int) as sender,
        blocking.Endpoint("udp://127.0.0.1:0", int) as receiver,
    ):
        futures = [sender.send_soon(receiver.address, number) for number in range(20)]
        assert sorted(receiver.receive(timeout=10).payload for _ in futures) == list(range(20))
        assert [future.result(10) for future in futures] == [None] * 20
        with pytest.raises(EncodeError):
            sender.send_soon(receiver.address, object())  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="an address is a string"):
            sender.send_soon(None, 1)  # type: ignore[arg-type]


def test_a_callback_gets_the_outcome_and_may_send() -> None:
    outcomes: list[BaseException | None] = []
    done = threading.Semaphore(0)

    def refuse(message: ipc.ReceivedMessage[bytes]) -> None:
        if message.payload == b"bad":
            raise ValueError(message.payload)

    with (
        blocking.Endpoint("local://", on_message=refuse) as receiver,
        blocking.Endpoint("local://") as sender,
    ):

        def record(error: BaseException | None) -> None:
            outcomes.append(error)
            if len(outcomes) == 1:
                sender.send(receiver.address, b"again")  # it may block
                sender.send_soon(receiver.address, b"bad", callback=record)
            done.release()

        sender.send_soon(receiver.address, b"good", callback=record)
        for _ in range(2):
            assert done.acquire(timeout=10)
        assert outcomes[0] is None
        assert isinstance(outcomes[1], MessageRefused)
        assert outcomes[1].code == 1


def test_a_cancelled_future_aborts_the_transfer() -> None:
    called = threading.Event()
    with blocking.Endpoint("local://") as sender, blocking.Endpoint("local://") as receiver:
        future = sender.send_soon(receiver.address, b"never taken", callback=lambda _: called.set())
        assert future.cancel()
        assert called.wait(10)
        sender.send_soon(receiver.address, b"taken")
        assert receiver.receive(timeout=10).payload == b"taken"


def test_the_futures_of_an_endpoint_that_is_closed_fail() -> None:
    with blocking.Endpoint("local://") as receiver:
        with blocking.Endpoint("local://") as sender:
            future = sender.send_soon(receiver.address, b"not taken")
        with pytest.raises(EndpointClosed) as caught:
            future.result(10)
        assert caught.value.code == -3
        with pytest.raises(EndpointClosed):
            sender.send_soon(receiver.address, b"late").result(10)


def test_a_loop_answers_until_the_endpoint_is_closed() -> None:
    with blocking.Endpoint("local://") as client:
        server = blocking.Endpoint("local://")
        server.open()

        def serve() -> None:
            for message in server:
                server.send(message.source, message.payload * 2)

        thread = threading.Thread(target=serve)
        thread.start()
        client.send(server.address, b"ab")
        assert client.receive(timeout=10).payload == b"abab"
        server.close()
        thread.join(60)
        assert not thread.is_alive()
        with pytest.raises(EndpointClosed):
            server.receive()


def test_a_function_runs_in_a_thread_and_may_block_and_send() -> None:
    def answer(message: ipc.ReceivedMessage[bytes]) -> None:
        if message.payload == b"bad":
            raise ValueError("bad")
        server.send(message.source, message.payload.upper())

    server = blocking.Endpoint("local://", on_message=answer)
    with server, blocking.Endpoint("local://") as client:
        with ThreadPoolExecutor() as pool:
            sending = pool.submit(client.send, server.address, b"good")
            assert client.receive(timeout=10).payload == b"GOOD"
            sending.result(10)
        with pytest.raises(MessageRefused):
            client.send(server.address, b"bad")


def test_waiting_functions_do_not_block_name_resolution() -> None:
    program = (
        "import sys; sys.modules['uvloop'] = None\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from threading import Barrier\n"
        "from aqueduct.ipc import blocking\n"
        "barrier = Barrier(20)\n"
        "def forward(message):\n"
        "    barrier.wait(10)\n"
        "    relay.send(f'udp://localhost:{port}', message.payload)\n"
        "relay = blocking.Endpoint('udp://127.0.0.1:0', on_message=forward, threads=20)\n"
        "end = blocking.Endpoint('udp://127.0.0.1:0')\n"
        "with relay, end, ThreadPoolExecutor(20) as pool:\n"
        "    port = end.address.rsplit(':', 1)[1]\n"
        "    sends = [pool.submit(end.send, relay.address, b'x') for _ in range(20)]\n"
        "    for _ in sends:\n"
        "        end.receive(timeout=4)\n"
        "    for send in sends:\n"
        "        send.result()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=30, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_functions_run_in_at_most_the_configured_threads() -> None:
    names: set[str] = set()

    def note(message: ipc.ReceivedMessage[bytes]) -> None:
        names.add(threading.current_thread().name)

    with (
        blocking.Endpoint("local://", on_message=note, threads=2) as receiver,
        blocking.Endpoint("local://") as sender,
        ThreadPoolExecutor(8) as pool,
    ):
        for send in [pool.submit(sender.send, receiver.address, b"x") for _ in range(50)]:
            send.result(10)
    assert len(names) <= 2
    with pytest.raises(ValueError, match="at least 1"):
        blocking.Endpoint("local://", threads=0)


def test_a_close_waits_for_a_function_that_runs_and_its_message_is_taken() -> None:
    began = threading.Event()
    done: list[bytes] = []

    def pay(message: ipc.ReceivedMessage[bytes]) -> None:
        began.set()
        time.sleep(0.1)
        done.append(message.payload)

    receiver = blocking.Endpoint("local://", on_message=pay, threads=1)
    receiver.open()
    with blocking.Endpoint("local://") as sender, ThreadPoolExecutor(2) as pool:
        sends = [pool.submit(sender.send, receiver.address, b"100") for _ in range(2)]
        assert began.wait(10)
        time.sleep(0.02)
        receiver.close()
        assert done == [b"100"]
        errors = [send.exception(10) for send in sends]
        assert errors.count(None) == 1
        assert sum(isinstance(error, MessageRefused) for error in errors) == 1  # it had to wait


def test_a_function_that_does_not_return_does_not_keep_the_endpoint_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocking, "GRACE", 0.05)
    began, may_end = threading.Event(), threading.Event()

    def hang(message: ipc.ReceivedMessage[bytes]) -> None:
        began.set()
        may_end.wait(20)

    receiver = blocking.Endpoint("local://", on_message=hang)
    receiver.open()
    with blocking.Endpoint("local://") as sender, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(sender.send, receiver.address, b"x")
        assert began.wait(10)
        receiver.close()
        assert isinstance(sending.exception(10), MessageRefused)
    may_end.set()


def test_a_function_may_close_its_endpoint_and_has_taken_its_message() -> None:
    def end(message: ipc.ReceivedMessage[bytes]) -> None:
        receiver.close()

    receiver = blocking.Endpoint("local://", on_message=end)
    receiver.open()
    with blocking.Endpoint("local://") as sender:
        sender.send(receiver.address, b"the last one")
        receiver.close()


def test_a_receive_times_out_and_the_next_message_is_not_lost() -> None:
    with blocking.Endpoint("local://") as one, blocking.Endpoint("local://") as other:
        with pytest.raises(TimeoutError):
            other.receive(timeout=0.01)
        with ThreadPoolExecutor() as pool:
            sending = pool.submit(one.send, other.address, b"x")
            assert other.receive(timeout=10).payload == b"x"
            sending.result(10)


def test_an_unopened_endpoint_cannot_be_used() -> None:
    endpoint = blocking.Endpoint("local://")
    with pytest.raises(LocalProtocolError, match="open the endpoint"):
        endpoint.send("local://x", b"x")
    assert repr(endpoint) == "<Endpoint local://, not open>"


def test_the_blocking_endpoint_has_the_methods_of_the_async_one() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert public(ipc.Endpoint) - public(blocking.Endpoint) == {
        "handle_pdus",
        "handle_sent",
        "handle_transient_error",
        "handle_unreachable",
    }
    shared = {"address", "type", "on_message", "tls", "trust", "config", "limits"}
    assert set(inspect.signature(ipc.Endpoint).parameters) == shared
    assert set(inspect.signature(blocking.Endpoint).parameters) == shared | {"threads"}


def test_use_after_a_fork_raises_an_error_that_names_the_fork() -> None:
    with blocking.Endpoint("local://") as endpoint:
        pid = os.fork()
        if pid == 0:
            try:
                endpoint.send("local://x", b"x")
            except ForkedConnectionError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_a_program_that_forgets_to_close_still_exits() -> None:
    program = (
        "from aqueduct.ipc import blocking\n"
        "endpoint = blocking.Endpoint('udp://127.0.0.1:0')\n"
        "endpoint.open()\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        timeout=20,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
