"""One server and several client processes, and what is measured with them."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from bench.network.figures import percentile
from bench.network.peer import Json, Setting
from bench.network.processes import Failed, Process

CLIENTS = 2
"""Client processes, which share the connections."""
AT_A_TIME = 16
"""Connections that each client process opens at once."""
SETTLE_SECONDS = 1.0
PAUSE_SECONDS = 0.1
PAUSE_EACH = 0.0005
"""Seconds between two single messages, and for each subscriber, so that all have one before the
next."""
SINGLES = 10
WARM_TRIPS = 5
SPARE_DESCRIPTORS = 100

Result = dict[str, float]


class Crowd:
    """The processes of one measurement."""

    def __init__(self, server: Process, clients: list[Process], descriptors: int) -> None:
        self._server = server
        self._clients = clients
        self.descriptors = descriptors
        """Files that the server may open; over TCP each connection is one."""
        self._before = self._usage(collect=True)
        self._connections = 0

    def connect(self, connections: int) -> Result:
        """Open connections up to this number; return what it took."""
        new = connections - self._connections
        before = self._usage()
        started = time.monotonic()
        counts = shares(connections)
        found = self._ask_clients("connect", count=counts, at_a_time=AT_A_TIME)
        seconds = time.monotonic() - started
        used = self._usage()["processor"] - before["processor"]
        self._connections = connections
        times = [each for one in found for each in one["times"]]
        return {
            "connect_seconds": seconds,
            "connect_processor": 1e3 * used / new,
            "connect_p50": percentile(times, 50) / 1e6,
        }

    def idle(self, seconds: float) -> Result:
        """Return the memory of each connection, and the processor time of all while idle."""
        time.sleep(min(seconds, SETTLE_SECONDS))
        usage = self._usage(collect=True)
        if usage["subscribers"] != self._connections:
            raise Failed(f"{usage['subscribers']} of {self._connections} connections are open")
        started = time.monotonic()
        before = self._usage()["processor"]
        time.sleep(seconds)
        used = self._usage()["processor"] - before
        return {
            "memory": (usage["resident"] - self._before["resident"]) / self._connections / 1e3,
            "idle": 100 * used / (time.monotonic() - started),
        }

    def trips(self, busy: int, count: int) -> Result:
        """Time round trips on some connections at once while the others are idle."""
        busy = min(busy, self._connections)
        before = self._usage()["processor"]
        started = time.monotonic()
        found = self._ask_clients("trips", busy=shares(busy), warm=WARM_TRIPS, count=count)
        seconds = time.monotonic() - started
        used = self._usage()["processor"] - before
        made = busy * (WARM_TRIPS + count)
        times = [each for one in found for each in one["times"]]
        return {
            "trip_p50": percentile(times, 50) / 1e6,
            "trip_p99": percentile(times, 99) / 1e6,
            "trip_rate": made / seconds,
            "trip_processor": 1e6 * used / made,
        }

    def publish(self, seconds: float) -> Result:
        """Publish single messages, then as many as possible; return rates and delays."""
        pause = PAUSE_SECONDS + PAUSE_EACH * self._connections
        single = self._publish(60.0, SINGLES, pause)
        many = self._publish(seconds, 1 << 62, 0.0)
        return {
            "single_median": single["median"],
            "single_slowest": single["slowest"],
            "single_processor": single["processor"],
            "rate": many["rate"],
            "processor": many["processor"],
            "delay": many["median"],
            "slowest": many["slowest"] / many["median"],
        }

    def _publish(self, seconds: float, most: int, pause: float) -> Result:
        for client in self._clients:
            client.write(order="listen")
        sent = ask(self._server, order="publish", seconds=seconds, most=most, pause=pause)
        found = [each for client in self._clients for each in client.read()["found"]]
        messages = sent["messages"]
        if len(found) != self._connections or any(count != messages for count, _, _ in found):
            raise Failed(f"not all subscribers got {messages} messages")
        delays = [delay / count / 1e6 for count, delay, _ in found]
        lasted = (max(last for _, _, last in found) - sent["started"]) / 1e9
        total = messages * len(found)
        return {
            "rate": total / lasted,
            "processor": 1e6 * sent["processor"] / total,
            "median": median(delays),
            "slowest": max(delays),
        }

    def channels(self, channels: int, seconds: float) -> Result:
        """Send on this many channels of one connection at once."""
        before = self._usage()["processor"]
        client = self._clients[0]
        sent = ask(client, order="crowd", channels=channels, warm=seconds / 3, seconds=seconds)
        counted = ask(self._server, order="counts", channels=channels)
        used = self._usage()["processor"] - before
        messages = counted["messages"]
        if messages != sent["messages"]:
            raise Failed(f"{messages} messages arrived instead of {sent['messages']}")
        steady = sent["steady"]
        middle = median(steady) or 1
        return {
            "rate": messages / (counted["last"] - sent["started"]) * 1e9,
            "sender": 1e6 * sent["processor"] / messages,
            "receiver": 1e6 * used / messages,
            "slowest": min(steady) / middle,
            "fastest": max(steady) / middle,
        }

    def _usage(self, *, collect: bool = False) -> Json:
        return ask(self._server, order="usage", collect=collect)

    def _ask_clients(self, order: str, **shared: Any) -> list[Json]:
        """Give all clients an order, each its share where there is a list."""
        for number, client in enumerate(self._clients):
            mine = {
                name: value[number] if isinstance(value, list) else value
                for name, value in shared.items()
            }
            client.write(order=order, **mine)
        return [client.read() for client in self._clients]


def shares(count: int) -> list[int]:
    """Divide a count among the clients."""
    return [(count + number) // CLIENTS for number in range(CLIENTS)]


def ask(process: Process, **order: object) -> Json:
    """Give a process an order, and return its answer."""
    process.write(**order)
    return process.read()


@contextlib.contextmanager
def started(transport: str, setting: Setting, log_path: Path, sources: Path) -> Iterator[Crowd]:
    """Start a server and the clients, and stop them."""
    with log_path.open("wb") as log, contextlib.ExitStack() as stack:

        def start(role: str) -> Process:
            process = Process(role, transport, setting, log, sources, "bench.many.worker")
            stack.callback(process.end)
            return process

        server = start("server")
        clients = [start("client") for _ in range(CLIENTS)]
        info = ask(server, order="open")
        for client in clients:
            ask(client, order="open", address=info["address"])
        yield Crowd(server, clients, info["descriptors"])
