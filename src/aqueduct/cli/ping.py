"""``aqueduct ping``: measures the time to connect to an echo server, and round-trip times."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from aqueduct.api.client import connect
from aqueduct.api.connection import Connection
from aqueduct.api.handles import Sender
from aqueduct.cli import options, running
from aqueduct.errors import AqueductError, ConnectionLost
from aqueduct.security import ServerTLS, Trust
from aqueduct.transport.address import format_address


class PingRequest(msgspec.Struct):
    """A request; an echo server answers with the same bytes."""

    number: int
    filling: bytes
    reply: Sender[bytes]


def ping(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT")],
    count: Annotated[
        int, typer.Option("--count", "-c", min=0, help="Messages to send; 0 sends until Ctrl-C.")
    ] = 10,
    interval: Annotated[
        float,
        typer.Option("--interval", "-i", min=0, metavar="SECONDS", help="Time between messages."),
    ] = 0.1,
    size: Annotated[int, typer.Option("--size", "-s", min=0, help="Payload in bytes.")] = 64,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", "-t", min=0.001, metavar="SECONDS", help="Time to wait for an answer."
        ),
    ] = 5.0,
    ca: options.Authority = None,
    pin: options.Pin = None,
    system: options.System = False,
    cert: options.OwnCertificate = None,
    key: options.Key = None,
    trace: options.TraceDirectory = None,
    as_json: options.Json = False,
) -> None:
    """Measure connect and round-trip times to `aqueduct echo`.

    Exits with 1 if a message was not answered.

    Example: aqueduct ping localhost:4433 --count 100 --interval 0.01
    """
    trust = options.client_trust(ca, pin, system)
    traced = options.trace_directory(trace)
    run = PingRun(address, count, interval, size, timeout, as_json, traced)
    running.run(run.run(trust, options.own_certificate(cert, key)))


@dataclass
class PingRun:
    """A series of pings, and what it measured."""

    address: str
    count: int
    interval: float
    size: int
    timeout: float
    as_json: bool
    trace: Path | None
    connect_time: float = 0.0
    sent: int = 0
    times: list[float] = field(default_factory=list)
    problem: str | None = None

    async def run(self, trust: Trust, certificate: ServerTLS | None) -> int:
        """Connect, ping and report; return the exit code."""
        async with running.interrupts() as stop:
            start = time.perf_counter()
            connecting = connect(
                self.address,
                PingRequest,
                trust=trust,
                certificate=certificate,
                timeout=self.timeout,
                trace=self.trace,
            )
            async with connecting as connection:
                self.connect_time = time.perf_counter() - start
                where = format_address(connection.peer)
                if not self.as_json:
                    running.notes.print(
                        f"connected to {where} in {1000 * self.connect_time:.1f} ms"
                    )
                await running.until(stop, self._ping_all(connection))
        self._report()
        if not self.sent:
            return running.INTERRUPTED
        return 0 if len(self.times) == self.sent else running.FAILED

    async def _ping_all(self, connection: Connection[PingRequest]) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while self.problem is None and (self.count == 0 or self.sent < self.count):
            if self.sent:
                due += self.interval
                await asyncio.sleep(max(0, due - loop.time()))
            self.sent += 1
            with contextlib.suppress(asyncio.CancelledError):
                await self._ping(connection)
                continue
            self.sent -= 1  # Ctrl-C cancelled it; it is not lost
            return

    async def _ping(self, connection: Connection[PingRequest]) -> None:
        number = self.sent
        filling = bytes(self.size)
        start = time.perf_counter()
        try:
            await connection.entrypoint.call(
                PingRequest, number=number, filling=filling, timeout=self.timeout
            )
        except TimeoutError:
            self._say(f"number={number} no answer within {self.timeout:g} s")
        except ConnectionLost as error:
            self.problem = str(error)
            self._say(f"number={number} {error}")
        except AqueductError as error:
            self._say(f"number={number} {error}; check that `aqueduct echo` listens there")
        else:
            took = time.perf_counter() - start
            self.times.append(took)
            self._say(f"number={number} size={self.size} time={1000 * took:.3f} ms")

    def _say(self, line: str) -> None:
        if not self.as_json:
            print(line, flush=True)

    def summary(self) -> dict[str, Any]:
        """Return the results, with times in milliseconds."""
        times = [1000 * one for one in self.times]
        found: dict[str, Any] = {
            "address": self.address,
            "connect_ms": round(1000 * self.connect_time, 3),
            "sent": self.sent,
            "answered": len(times),
            "lost": self.sent - len(times),
            "size": self.size,
        }
        if times:
            found["round_trip_ms"] = {
                "min": round(min(times), 3),
                "p50": round(options.percentile(times, 50), 3),
                "p99": round(options.percentile(times, 99), 3),
                "max": round(max(times), 3),
            }
        if self.problem is not None:
            found["problem"] = self.problem
        return found

    def _report(self) -> None:
        found = self.summary()
        if self.as_json:
            print(json.dumps(found))
            return
        print(
            f"{found['sent']} sent, {found['answered']} answered, {found['lost']} lost; "
            f"connect {found['connect_ms']:.1f} ms"
        )
        if self.times:
            trip = found["round_trip_ms"]
            print(
                f"round trip min {trip['min']:.3f}  p50 {trip['p50']:.3f}  "
                f"p99 {trip['p99']:.3f}  max {trip['max']:.3f} ms"
            )
