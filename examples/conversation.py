"""Two processes exchange messages, and a sequence diagram of both sides is drawn.

A server process and a client process talk over QUIC on this machine. The client asks for the primes
below a hundred: one message that carries two channels, one for progress, which is unreliable, and
one for the results, which is ordered.
Each process logs what it does; afterwards the logs are merged and drawn.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import aqueduct
from aqueduct import Mode, Sender

ROWS = {"send": "──▶", "answer": "◀──", "end": "──┤", "gone": "├──", "note": "   "}


class Primes(msgspec.Struct):
    below: int
    found: Sender[int]
    progress: Sender[int]


# -- the server process ----------------------------------------------------------------------------


async def search(request: Primes) -> None:
    log("note", f"a request: primes below {request.below}, with two senders in it")
    async with request.found, request.progress:
        sieve = set(range(2, request.below))
        for number in range(2, request.below):
            if number in sieve:
                sieve -= set(range(2 * number, request.below, number))
                await request.found.send(number)
            if number % 25 == 0:
                await request.progress.send(number)
                log("answer", f"progress: {number}, {request.progress.mode.value}")
        await request.found.flush()
        log("answer", f"{request.found.statistics()['sent']} primes, in order, all acknowledged")
    log("gone", "both channels finished")


async def run_server() -> None:
    async with aqueduct.serve("127.0.0.1:0", Primes, tls=aqueduct.dev_tls()) as server:
        print(server.address, flush=True)
        log("note", f"listens on {server.address}")
        async for connection in server:  # serves one connection
            await connection.serve(search)
            await connection.wait_closed()
            log("note", "the client has closed the connection")
            break


# -- the client process ----------------------------------------------------------------------------


async def run_client(address: str) -> None:
    start = time.perf_counter()
    async with aqueduct.connect(address, Primes, trust=aqueduct.dev_trust()) as connection:
        log("note", f"connected, encrypted, in {1000 * (time.perf_counter() - start):.1f} ms")
        their_found, found = aqueduct.channel(int)
        their_progress, progress = aqueduct.channel(int, mode=Mode.UNRELIABLE)
        await connection.entrypoint.send(Primes(100, their_found, their_progress))
        log("send", "Primes(below=100, found=…, progress=…)")
        primes = [prime async for prime in found]
        log("note", f"received {primes[:4]} … {primes[-2:]}, then the end")
        heard = [number async for number in progress]
        log("note", f"heard progress {heard}")
        statistics = connection.statistics()
        milliseconds = 1000 * statistics["rtt"]
        lost = statistics["lost_packets"]
        log("note", f"round trip {milliseconds:.1f} ms, {lost:.0f} packets lost")
        connection.entrypoint.finish()
        log("end", "finished the entrypoint")


# -- the picture -----------------------------------------------------------------------------------


def log(kind: str, text: str) -> None:
    """Write an entry of this process's log to standard error."""
    print(json.dumps({"at": time.time(), "kind": kind, "text": text}), file=sys.stderr, flush=True)


def play() -> list[dict[str, Any]]:
    """Run both processes, and return the entries of both logs in order of time."""
    with started("server") as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        with started("client", address) as client:
            _, client_log = client.communicate(timeout=20)
        _, server_log = server.communicate(timeout=20)
    events = [{"side": "client", **event} for event in read_log(client_log)]
    events += [{"side": "server", **event} for event in read_log(server_log)]
    return sorted(events, key=lambda event: event["at"])


@contextlib.contextmanager
def started(*role: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(Path(__file__)), *role]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_log(text: str) -> list[dict[str, Any]]:
    lines = text.splitlines()
    try:
        return [json.loads(line) for line in lines]
    except ValueError:
        sys.exit(f"a process failed:\n{text}")


def draw(events: list[dict[str, Any]]) -> None:
    table = Table(box=None, padding=(0, 1), show_header=True, header_style="bold")
    table.add_column("ms", justify="right", style="dim", no_wrap=True)
    table.add_column("client process", justify="right", ratio=1)
    table.add_column("", justify="center", no_wrap=True)
    table.add_column("server process", ratio=1)
    for event in events:
        mine = event["side"] == "client"
        text = Text(event["text"], style="cyan" if mine else "green")
        arrow = Text(ROWS[event["kind"]], style="bold yellow")
        cells = (text, arrow, "") if mine else ("", arrow, text)
        table.add_row(f"{1000 * (event['at'] - events[0]['at']):.1f}", *cells)
    Console().print(Panel(table, title="two processes, one connection", border_style="blue"))


def main() -> None:
    match sys.argv[1:]:
        case ["server"]:
            asyncio.run(run_server())
        case ["client", address]:
            asyncio.run(run_client(address))
        case _:
            draw(play())
            Console().print(
                "Next: [bold]aqueduct doctor[/], [bold]aqueduct bench[/], and the other examples."
            )


if __name__ == "__main__":
    main()
