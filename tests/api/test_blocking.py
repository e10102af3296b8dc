"""Channels for threads: `aqueduct.blocking`."""

import itertools
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import msgspec
import pytest

import aqueduct
from aqueduct import DELIVERED, blocking
from aqueduct.blocking import Receiver, Sender

SECONDS = 60


class Sum(msgspec.Struct):
    numbers: Receiver[int]
    reply: Sender[int]


class Shared(msgspec.Struct):
    """A message type declared for asynchronous code, which threads use too."""

    numbers: aqueduct.Receiver[int]
    reply: aqueduct.Sender[int]


@pytest.fixture(autouse=True)
def own_certificates(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path_factory.getbasetemp() / "certificates"
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(directory))


def add_up(connection: "blocking.Connection[Any]") -> None:
    for request in connection.entrypoint:
        with request.numbers, request.reply:
            request.reply.send(sum(request.numbers))


def serve_in_process(pipe: Pipe) -> None:
    with blocking.serve("127.0.0.1:0", Sum, tls=aqueduct.dev_tls()) as server:
        pipe.send(server.address)
        server.run(add_up)


@pytest.fixture
def address(own_certificates: None) -> Iterator[str]:
    """Start a server in another process, and return its address."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve_in_process, args=(there,), daemon=True)
    process.start()
    there.close()
    yield here.recv()
    here.close()
    process.terminate()
    process.join()


def connected(address: str, kind: Any = Sum) -> "blocking.Connection[Any]":
    return blocking.connect(address, kind, trust=aqueduct.dev_trust())


# -- local channels --------------------------------------------------------------------------------


def test_messages_go_from_thread_to_thread_in_order() -> None:
    tx, rx = blocking.channel(int, capacity=3)

    def send() -> None:
        with tx:
            for number in range(100):
                tx.send(number)

    thread = threading.Thread(target=send)
    thread.start()
    assert list(rx) == list(range(100))
    thread.join()


def test_a_timeout_sends_nothing_and_receives_nothing() -> None:
    tx, rx = blocking.channel(int, capacity=1)
    with tx, rx:
        with pytest.raises(TimeoutError):
            rx.receive(timeout=0.05)
        tx.send(1)
        with pytest.raises(TimeoutError):
            tx.send(2, timeout=0.05)
        with pytest.raises(aqueduct.WouldBlock):
            tx.send_nowait(2)
        assert rx.receive() == 1
        with pytest.raises(aqueduct.WouldBlock):
            rx.receive_nowait()


def test_batches_are_sent_and_received_with_few_calls_to_the_loop() -> None:
    tx, rx = blocking.channel(int, capacity=10_000)
    with rx:
        assert tx.send_many(range(5_000)) == 5_000
        tx.finish()
        assert rx.receive_many(10) == list(range(10))
        assert rx.receive() == 10  # reads ahead; the order stays
        assert rx.receive_many(5) == [11, 12, 13, 14, 15]
        assert rx.statistics() == {"received": 16, "queued": 4_984}
        assert list(rx) == list(range(16, 5_000))
        with pytest.raises(aqueduct.EndOfChannel):
            rx.receive_many()


def test_a_batch_that_fails_says_how_much_of_it_was_sent() -> None:
    tx, rx = blocking.channel(int, capacity=7)
    with pytest.raises(TimeoutError) as caught:
        tx.send_many(iter(range(10)), timeout=0.05)
    assert caught.value.__notes__ == ["7 messages were sent before"]
    rx.close()
    with pytest.raises(aqueduct.ReceiverClosed):
        tx.send(1)
    tx.cancel()


def test_messages_read_ahead_by_one_thread_are_available_to_all() -> None:
    tx, rx = blocking.channel(int, capacity=1_000)
    taken: list[list[int]] = [[] for _ in range(4)]
    barrier = threading.Barrier(4)

    def work(mine: list[int]) -> None:
        first = rx.receive(timeout=SECONDS)
        mine.append(first)
        barrier.wait(SECONDS)  # no thread continues before each has received one
        mine.extend(rx)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    tx.send_many(range(500))
    tx.finish()
    for thread in threads:
        thread.join(SECONDS)
    assert sorted(itertools.chain(*taken)) == list(range(500))


def test_leaving_a_sender_with_an_exception_cancels_it() -> None:
    tx, rx = blocking.channel(int)
    tx.send(1)
    with pytest.raises(ZeroDivisionError), tx:
        raise ZeroDivisionError
    with pytest.raises(aqueduct.ChannelCancelled):
        rx.receive()
    rx.close()


def test_a_garbage_collected_half_warns_and_is_ended() -> None:
    tx, rx = blocking.channel(int)
    with pytest.warns(
        ResourceWarning, match="<blocking.Sender .* open> was not closed; use `with`"
    ):
        del tx
    with pytest.raises(aqueduct.ChannelCancelled):
        rx.receive(timeout=SECONDS)


def test_a_half_names_its_mode_and_state() -> None:
    tx, rx = blocking.channel(int, mode=aqueduct.Mode.UNRELIABLE)
    assert repr(tx) == "<blocking.Sender channel=local mode=unreliable open>"
    tx.finish()
    assert repr(rx) == "<blocking.Receiver channel=local mode=unreliable finished>"
    wrong: Any = "unreliable"
    with pytest.raises(TypeError, match="mode is a Mode"):
        blocking.channel(int, mode=wrong)
    rx.close()


def test_a_call_on_the_background_thread_raises_instead_of_waiting_for_itself() -> None:
    tx, rx = blocking.channel(int)
    with tx, rx, pytest.raises(RuntimeError, match="would wait for itself"):
        tx._background.call(rx.receive)


# -- over the network ------------------------------------------------------------------------------


def test_channels_are_fields_of_messages(address: str) -> None:
    with connected(address) as connection:
        tx, rx = blocking.channel(int)
        reply, answer = blocking.oneshot(int)
        connection.entrypoint.send(Sum(rx, reply))
        with tx:
            tx.send_many(range(10_000))
        assert answer.receive(timeout=SECONDS) == sum(range(10_000))
        with pytest.raises(aqueduct.ChannelMoved):
            rx.receive()


def test_a_call_makes_the_channel_for_its_answer(address: str) -> None:
    with connected(address) as connection:
        tx, rx = blocking.channel(int)
        tx.send_many([1, 2, 3])
        tx.finish()
        assert connection.entrypoint.call(Sum, numbers=rx, timeout=SECONDS) == 6
        hanging, rx = blocking.channel(int)
        with hanging, pytest.raises(TimeoutError):
            connection.entrypoint.call(Sum, numbers=rx, timeout=0.1)


def test_types_declared_for_asynchronous_code_work_in_threads(address: str) -> None:
    def add_shared(connection: "blocking.Connection[Any]") -> None:
        for request in connection.entrypoint:
            with Receiver(request.numbers) as numbers, Sender(request.reply) as reply:
                reply.send(sum(numbers))

    with blocking.serve("127.0.0.1:0", Shared, tls=aqueduct.dev_tls()) as server:
        thread = threading.Thread(target=server.run, args=(add_shared,))
        thread.start()
        with connected(server.address, Shared) as connection:
            tx, rx = blocking.channel(int)
            tx.send_many([4, 5])
            tx.finish()
            assert connection.entrypoint.call(Shared, numbers=rx, timeout=SECONDS) == 9
    thread.join(SECONDS)


def test_a_message_type_for_asyncio_takes_the_asynchronous_twins_of_halves(address: str) -> None:
    with connected(address, Shared) as connection:
        tx, rx = blocking.channel(int)
        reply, answer = blocking.oneshot(int)
        request = Shared(rx.asynchronous, reply.asynchronous)
        assert isinstance(request.numbers, aqueduct.Receiver)
        connection.entrypoint.send(request)
        with tx:
            tx.send_many([1, 2])
        assert answer.receive(SECONDS) == 3


def test_flush_and_receipts_report_delivery(address: str) -> None:
    with connected(address) as connection:
        tx, rx = blocking.channel(int)
        reply, answer = blocking.oneshot(int)
        connection.entrypoint.send(Sum(rx, reply))
        with tx, answer:
            receipt = tx.send(1, receipt=True)
            assert receipt is not None
            assert receipt.result(SECONDS) is DELIVERED
            tx.flush(SECONDS)
            assert tx.statistics()["delivered"] == 1
            assert connection.statistics()["channels"] >= 2


def test_nothing_is_received_after_the_cancel_has_arrived(own_certificates: None) -> None:
    """AQ-CANCEL-5: also not what was read ahead."""
    with (
        blocking.serve("127.0.0.1:0", Sum, tls=aqueduct.dev_tls()) as server,
        connected(server.address, Sum) as connection,
    ):
        tx, rx = blocking.channel(int)
        reply, answer = blocking.oneshot(int)
        connection.entrypoint.send(Sum(rx, reply))
        with server.accept(SECONDS) as accepted, answer:
            request = accepted.entrypoint.receive(SECONDS)
            request.reply.cancel()
            theirs = request.numbers
            tx.send_many(range(1_000))
            tx.flush(SECONDS)
            assert theirs.receive(SECONDS) == 0
            assert theirs.receive(SECONDS) == 1
            assert theirs._shared.ahead
            tx.cancel()
            tx.wait_closed(SECONDS)
            with pytest.raises(aqueduct.ChannelCancelled):
                theirs.receive(SECONDS)
            with pytest.raises(aqueduct.ChannelCancelled):
                theirs.receive_many(timeout=SECONDS)
            assert theirs.statistics() == {"received": 2, "queued": 0}


class Total(aqueduct.Request[list[int]]):
    numbers: aqueduct.Receiver[int]


def test_a_thread_may_wrap_a_half_anew_for_each_use(own_certificates: None) -> None:
    """Neither does the end of a twin end the half, nor takes it along what was read ahead."""

    def collect(request: Total) -> list[int]:
        numbers = [blocking.Receiver(request.numbers).receive(SECONDS) for _ in range(5)]
        assert blocking.Receiver(request.numbers).statistics()["received"] == 5
        return numbers + list(blocking.Receiver(request.numbers))

    with blocking.serve("127.0.0.1:0", Total, tls=aqueduct.dev_tls()) as server:
        thread = threading.Thread(target=server.serve, args=(collect,))
        thread.start()
        with connected(server.address, Total) as connection:
            tx, rx = blocking.channel(int)
            tx.send_many(range(20))
            tx.finish()
            assert connection.entrypoint.call(Total(rx.asynchronous), timeout=SECONDS) == list(
                range(20)
            )
    thread.join()


def test_a_half_that_was_taken_out_of_its_twin_lives_on() -> None:
    tx, rx = blocking.channel(int)
    half = rx.asynchronous
    del rx
    tx.send(1)
    assert blocking.Receiver(half).receive(SECONDS) == 1
    with pytest.warns(ResourceWarning, match=r"<blocking.Receiver .* open> was not closed"):
        del half
    tx.wait_closed(SECONDS)
    tx.cancel()


def test_a_sender_learns_that_its_receiver_was_closed(address: str) -> None:
    with connected(address) as connection:
        tx, rx = blocking.channel(int)
        reply, answer = blocking.oneshot(int)
        connection.entrypoint.send(Sum(rx, reply))
        with tx:
            before = tx.is_closed
            assert not before
            with pytest.raises(TimeoutError):
                tx.wait_closed(0.01)
            connection.close()
            tx.wait_closed(SECONDS)
            assert tx.is_closed
            with pytest.raises(aqueduct.ConnectionLost):
                tx.flush(SECONDS)
        answer.close()


def test_the_accept_callback_refuses_clients_by_their_headers(own_certificates: None) -> None:
    def accept(headers: aqueduct.Headers, peer: tuple[str, int]) -> aqueduct.Accept:
        if headers.text("password") != "secret":
            raise aqueduct.Refuse("who are you?", unauthenticated=True)
        return aqueduct.Accept("ada", {"welcome": "yes"})

    trust = aqueduct.dev_trust()
    with blocking.serve("127.0.0.1:0", Sum, tls=aqueduct.dev_tls(), accept=accept) as server:
        with pytest.raises(aqueduct.Unauthenticated, match="who are you"):
            blocking.connect(server.address, Sum, trust=trust)
        with blocking.connect(
            server.address, Sum, trust=trust, headers={"password": "secret"}
        ) as connection:
            assert connection.headers.text("welcome") == "yes"
            with server.accept(timeout=SECONDS) as other:
                assert other.headers.text("password") == "secret"
                assert other.identity == "ada"
            connection.wait_closed(timeout=SECONDS)
            with pytest.raises(aqueduct.ConnectionLost):
                connection.entrypoint.send(None)  # type: ignore[arg-type]


def test_an_accept_callback_of_threads_is_a_plain_function() -> None:
    async def accept(headers: aqueduct.Headers, peer: tuple[str, int]) -> aqueduct.Accept:
        return aqueduct.Accept()

    with pytest.raises(TypeError, match="plain function"):
        blocking.serve("memory://", tls=aqueduct.dev_tls(), accept=accept)


def test_accept_callbacks_that_wait_block_no_other_call(own_certificates: None) -> None:
    """A callback may ask another server, whose name is resolved in the loop's executor."""
    tls, trust = aqueduct.dev_tls(), aqueduct.dev_trust()
    clients = 40  # more than the executor has threads
    all_ask = threading.Barrier(clients)

    with blocking.serve("127.0.0.1:0", tls=tls) as directory:
        where = directory.address.replace("127.0.0.1", "localhost")

        def accept(headers: aqueduct.Headers, peer: tuple[str, int]) -> aqueduct.Accept:
            all_ask.wait(SECONDS)
            with blocking.connect(where, trust=trust, timeout=SECONDS):
                return aqueduct.Accept()

        with (
            blocking.serve("127.0.0.1:0", tls=tls, accept=accept) as server,
            ThreadPoolExecutor(clients) as pool,
        ):
            options = aqueduct.QuicSettings(handshake_timeout=SECONDS)

            def connect(_: int) -> None:
                with blocking.connect(
                    server.address, trust=trust, timeout=SECONDS, options=options
                ):
                    pass

            assert list(pool.map(connect, range(clients))) == [None] * clients


def test_a_handler_that_fails_ends_its_connection_and_no_other() -> None:
    def fail_at_odd(connection: "blocking.Connection[Any]") -> None:
        for number in connection.entrypoint:
            if number % 2:
                raise ValueError(number)

    with blocking.serve("127.0.0.1:0", int, tls=aqueduct.dev_tls()) as server:
        server._background.loop.set_exception_handler(lambda loop, context: None)
        thread = threading.Thread(target=server.run, args=(fail_at_odd,))
        thread.start()
        with connected(server.address, int) as good, connected(server.address, int) as bad:
            bad.entrypoint.send(1)
            bad.wait_closed(timeout=SECONDS)
            good.entrypoint.send(2)
            good.entrypoint.flush(SECONDS)
            assert good.is_open
    server._background.loop.set_exception_handler(None)
    thread.join(SECONDS)


def test_a_handler_that_loses_another_connection_ends_its_own() -> None:
    def lose(connection: "blocking.Connection[Any]") -> None:
        for _ in connection.entrypoint:
            raise aqueduct.ConnectionLost("of another connection")

    reported: list[Any] = []
    with blocking.serve("127.0.0.1:0", int, tls=aqueduct.dev_tls()) as server:
        loop = server._background.loop
        loop.set_exception_handler(lambda loop, context: reported.append(context["exception"]))
        thread = threading.Thread(target=server.run, args=(lose,))
        thread.start()
        with connected(server.address, int) as client:
            client.entrypoint.send(1)
            client.wait_closed(timeout=SECONDS)
    loop.set_exception_handler(None)
    thread.join(SECONDS)
    assert [type(one) for one in reported] == [aqueduct.ConnectionLost]


def test_ctrl_c_ends_a_server_whose_handlers_wait_for_clients(own_certificates: None) -> None:
    script = """
        import os, signal, threading
        import aqueduct
        from aqueduct import blocking

        # A background job ignores SIGINT otherwise.
        signal.signal(signal.SIGINT, signal.default_int_handler)

        def handle(connection):
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            for _ in connection.entrypoint:
                pass

        with blocking.serve("127.0.0.1:0", tls=aqueduct.dev_tls()) as server:
            client = blocking.connect(server.address, trust=aqueduct.dev_trust())
            try:
                server.run(handle, threads=1)  # the only thread is busy; the wait for it ends too
            except KeyboardInterrupt:
                client.wait_closed(timeout=10)
    """
    ran_well(script)


@pytest.mark.parametrize("clients", [0, 2])
@pytest.mark.parametrize("interrupted", [False, True], ids=["ends", "interrupted"])
def test_a_server_in_a_daemon_thread_does_not_keep_a_program_alive(
    clients: int, interrupted: bool, own_certificates: None
) -> None:
    script = """
        import os, signal, sys, threading
        import aqueduct
        from aqueduct import blocking

        signal.signal(signal.SIGINT, signal.default_int_handler)
        clients, interrupted = int(sys.argv[1]), sys.argv[2] == "True"
        handled = threading.Semaphore(0)

        def handle(connection):
            assert threading.current_thread().daemon
            handled.release()
            for _ in connection.entrypoint:
                pass

        server = blocking.serve("127.0.0.1:0", tls=aqueduct.dev_tls())
        threading.Thread(target=server.run, args=(handle,), daemon=True).start()
        trust = aqueduct.dev_trust()
        connections = [blocking.connect(server.address, trust=trust) for _ in range(clients)]
        for _ in connections:
            handled.acquire()
        if interrupted:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                threading.Event().wait()
            except KeyboardInterrupt:
                sys.exit()
    """
    ran_well(script, str(clients), str(interrupted))


@pytest.mark.parametrize("which", ["server", "connection", "receiver"])
def test_busy_handlers_of_requests_in_a_daemon_thread_do_not_keep_a_program_alive(
    which: str, own_certificates: None
) -> None:
    script = """
        import sys, threading
        import aqueduct
        from aqueduct import blocking

        busy = threading.Event()

        def handle(request):
            assert threading.current_thread().daemon
            busy.set()
            threading.Event().wait()  # for ever

        trust, tls = aqueduct.dev_trust(), aqueduct.dev_tls()
        server = blocking.serve("127.0.0.1:0", int, tls=tls)
        client = blocking.connect(server.address, int, trust=trust)
        client.entrypoint.send(1)
        served = {
            "server": lambda: server,
            "connection": server.accept,
            "receiver": lambda: server.accept().entrypoint,
        }[sys.argv[1]]()
        threading.Thread(target=served.serve, args=(handle,), daemon=True).start()
        busy.wait()
    """
    ran_well(script, which)


def test_an_accept_callback_that_waits_does_not_keep_a_program_alive(
    own_certificates: None,
) -> None:
    script = """
        import contextlib, threading
        import aqueduct
        from aqueduct import blocking

        asked = threading.Event()

        def accept(headers, peer):
            asked.set()
            threading.Event().wait()  # for ever

        def connect():
            with contextlib.suppress(aqueduct.ConnectError):  # the program has ended
                blocking.connect(server.address, trust=aqueduct.dev_trust(), timeout=600)

        server = blocking.serve("127.0.0.1:0", tls=aqueduct.dev_tls(), accept=accept)
        threading.Thread(target=server.serve, args=(print,), daemon=True).start()
        threading.Thread(target=connect, daemon=True).start()
        asked.wait()
    """
    ran_well(script)


def test_connections_wait_for_a_free_thread_at_the_server(own_certificates: None) -> None:
    done = threading.Event()

    handled = threading.Semaphore(0)

    def handle(connection: "blocking.Connection[Any]") -> None:
        handled.release()
        done.wait(SECONDS)

    with blocking.serve("127.0.0.1:0", int, tls=aqueduct.dev_tls()) as server:
        thread = threading.Thread(target=server.run, args=(handle,), kwargs={"threads": 2})
        thread.start()
        clients = [connected(server.address, int) for _ in range(4)]
        for _ in range(2):
            assert handled.acquire(timeout=SECONDS)
        deadline = time.monotonic() + SECONDS
        while len(server._inner._ready) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(server._inner._ready) == 2
        assert not handled.acquire(timeout=0.05)
        done.set()
        for client in clients:
            client.wait_closed(timeout=SECONDS)
    thread.join(SECONDS)


def test_a_receiver_that_is_sent_away_takes_its_queued_messages_along() -> None:
    class Carry(msgspec.Struct):
        numbers: Receiver[int]

    with (
        blocking.serve("127.0.0.1:0", Carry, tls=aqueduct.dev_tls()) as server,
        connected(server.address, Carry) as client,
        server.accept(timeout=SECONDS) as other,
    ):
        tx, rx = blocking.channel(int)
        tx.send_many(range(5))
        assert rx.receive() == 0
        client.entrypoint.send(Carry(rx))
        tx.send(5)
        tx.finish()
        with other.entrypoint.receive(SECONDS).numbers as numbers:
            assert list(numbers) == [1, 2, 3, 4, 5]
        with pytest.raises(aqueduct.ChannelMoved):
            rx.receive(SECONDS)


def test_connecting_where_no_server_listens_fails_at_once(own_certificates: None) -> None:
    with pytest.raises(aqueduct.ConnectError, match="nothing listens"):
        connected("127.0.0.1:9")


# -- processes -------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_receive_message_nowait_returns_headers_and_number() -> None:
    tx, rx = blocking.channel(int)
    with pytest.raises(aqueduct.WouldBlock):
        rx.receive_message_nowait()
    for number in range(3):
        tx.send(number, headers={"n": str(number)})
    assert rx.receive() == 0
    for number in (1, 2):
        message = rx.receive_message_nowait()
        assert (message.payload, message.number) == (number, number)
        assert message.headers.text("n") == str(number)
    with pytest.raises(aqueduct.WouldBlock):
        rx.receive_message_nowait()
    tx.finish()
    rx.close()


def test_after_fork_the_parents_connection_raises_and_a_new_one_works(address: str) -> None:
    script = """
        import os, sys
        import aqueduct
        from aqueduct import blocking
        from tests.api.test_blocking import Sum, connected

        def ask(connection):
            tx, rx = blocking.channel(int)
            with tx:
                tx.send_many([1, 2])
            return connection.entrypoint.call(Sum, numbers=rx, timeout=60)

        connection = connected(sys.argv[1])
        assert ask(connection) == 3
        child = os.fork()
        if child == 0:
            try:
                connection.entrypoint.send(None)
            except aqueduct.ForkedConnectionError:
                with connected(sys.argv[1]) as fresh:
                    os._exit(7 if ask(fresh) == 3 else 1)
            os._exit(2)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7, status
        assert ask(connection) == 3
    """
    ran_well(script, address)


def test_a_program_that_ends_without_closing_tells_the_server(own_certificates: None) -> None:
    with blocking.serve("127.0.0.1:0", Sum, tls=aqueduct.dev_tls()) as server:
        script = """
            import sys
            from tests.api.test_blocking import connected
            connection = connected(sys.argv[1])
        """
        ran_well(script, server.address)
        with server.accept(timeout=SECONDS) as connection:
            connection.wait_closed(timeout=SECONDS)


def ran_well(script: str, *arguments: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ran = subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *arguments],
            cwd=Path(__file__).parent.parent.parent,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    assert "Error" not in ran.stderr


# -- draining --------------------------------------------------------------------------------------


def test_a_blocking_server_drains(own_certificates: None) -> None:
    """AQ-DRAIN-1, AQ-DRAIN-2, AQ-DRAIN-3."""
    kind = Sender[int]
    tls, trust = aqueduct.dev_tls(), aqueduct.dev_trust()
    may_answer = threading.Event()
    working = threading.Event()

    def answer(connection: blocking.ServerConnection[Sender[int]]) -> None:
        for reply in connection.entrypoint:
            working.set()
            assert may_answer.wait(SECONDS)
            with reply:
                reply.send(1)

    with blocking.serve("127.0.0.1:0", kind, tls=tls) as server:
        serving = threading.Thread(target=server.run, args=(answer,))
        serving.start()
        client = blocking.connect(server.address, kind, trust=trust)
        idle = blocking.connect(server.address, kind, trust=trust)
        reply, answered = blocking.channel(int)
        client.entrypoint.send(reply)
        assert working.wait(SECONDS)
        draining = threading.Thread(target=server.drain, args=(600,))
        draining.start()
        idle.wait_closed(SECONDS)
        client.entrypoint.wait_closed(SECONDS)
        with pytest.raises(aqueduct.GoingAway):
            blocking.connect(server.address, kind, trust=trust)
        unused, other = blocking.channel(int)
        with pytest.raises(aqueduct.ReceiverClosed, match="connect again"):
            client.entrypoint.send(unused)
        unused.cancel()
        other.close()
        may_answer.set()
        assert list(answered) == [1]
        draining.join(SECONDS)
        serving.join(SECONDS)
        assert not serving.is_alive()
        client.close()
        idle.close()


# -- clients that leave ----------------------------------------------------------------------------


def fail_as_client(address: str) -> None:
    with blocking.connect(address, trust=aqueduct.dev_trust()) as client:
        client.entrypoint.send(b"half of it")
        raise ZeroDivisionError


def test_a_client_that_leaves_ends_the_loop_of_a_blocking_server(
    own_certificates: None, caplog: pytest.LogCaptureFixture
) -> None:
    """AQ-LEAVE-1, AQ-LEAVE-2."""
    ended: list[BaseException | None] = []
    done = threading.Semaphore(0)

    def handle(connection: blocking.ServerConnection[bytes]) -> None:
        try:
            for _ in connection.entrypoint:
                pass
        except BaseException as error:
            ended.append(error)
            raise
        else:
            ended.append(None)
        finally:
            done.release()

    with blocking.serve("127.0.0.1:0", tls=aqueduct.dev_tls()) as server:
        thread = threading.Thread(target=server.run, args=(handle,))
        thread.start()
        with blocking.connect(server.address, trust=aqueduct.dev_trust()) as client:
            client.entrypoint.send(b"all of it")
        assert done.acquire(timeout=SECONDS)
        with pytest.raises(ZeroDivisionError):
            fail_as_client(server.address)
        assert done.acquire(timeout=SECONDS)
    thread.join(SECONDS)
    assert ended[0] is None
    assert isinstance(ended[1], aqueduct.ConnectionLost)
    assert caplog.records == []


@pytest.mark.parametrize("address", ["memory://delivery", "127.0.0.1:0"])
def test_both_sides_take_settings_of_delivery(address: str) -> None:
    ours = aqueduct.Delivery(ack_delay=0.02, max_datagram=900)
    theirs = aqueduct.Delivery(receipt_deadline_min=0.1)
    with (
        blocking.serve(address, tls=aqueduct.dev_tls(), delivery=theirs) as server,
        blocking.connect(server.address, trust=aqueduct.dev_trust(), delivery=ours) as connection,
        server.accept(SECONDS) as accepted,
    ):
        config = connection._inner._driver.core.config
        assert (config.ack_delay, config.max_datagram) == (0.02, 900)
        config = accepted._inner._driver.core.config
        assert (config.ack_delay, config.receipt_deadline_min) == (0.010, 0.1)
