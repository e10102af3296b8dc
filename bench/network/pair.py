"""Measures one pair of processes."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from bench.network import figures
from bench.network.machine import Watch, other_process_seconds
from bench.network.measures import CHANNELS, Kind, Manner, Measure
from bench.network.peer import Json, Setting
from bench.network.processes import Failed, Process, started


@dataclass(frozen=True)
class Effort:
    """The amount of work of each measurement."""

    seconds: float = 3.0
    """The seconds of one stream."""
    warm: float = 0.3
    """The seconds of a warm-up stream: windows have grown, and its rate sizes the next stream."""
    calls: int = 5_000
    fresh: int = 30
    probes: int = 1_000
    """Small things that are timed beside a channel in bulk, of each kind."""
    channels: int = CHANNELS
    tries: int = 2
    """Maximum attempts of a measurement while the machine is busy."""
    disturbed: float = 0.03
    """The fraction of the machine that others may use before a measurement is repeated."""
    quiet_timeout: float = 10.0
    """Seconds to wait for a quiet machine before each pair."""
    log: int = 1_000_000_000
    """Bytes of the log to recover."""
    rows: int = 2_000_000
    """Rows of the topic that Spark reads."""
    files: int = 500
    """Files of the topic that Spark streams over."""


QUICK = Effort(
    seconds=0.5, calls=500, fresh=5, probes=50, channels=5_000, tries=1, quiet_timeout=0.0
)


class Measured(Protocol):
    """The processes of one peer."""

    def measure(self, measure: Measure) -> Json:
        """Return the figures of one measurement."""
        ...


@contextlib.contextmanager
def meet(
    peer: str, setting: Setting, log: Path, sources: Path, effort: Effort
) -> Iterator[Measured]:
    """Start a server and a client, and stop them."""
    with started(peer, setting, log, sources) as (server, client, info):
        yield Pair(server, client, info, effort)


class Pair:
    """A server and a client that are connected."""

    def __init__(self, server: Process, client: Process, info: Json, effort: Effort) -> None:
        self.server = server
        self.client = client
        self.effort = effort
        self._broker: int | None = info.get("broker")

    def measure(self, measure: Measure) -> Json:
        """Warm up and return the figures of one measurement."""
        if measure.kind is Kind.STREAM:
            return self._lasting(measure, self._pour)
        if measure.kind is Kind.DELIVER:
            return self._lasting(measure, self._deliver)
        if measure.kind is Kind.HOLD:
            return self._hold(measure)
        if measure.kind is Kind.BULK:
            return self._steady(lambda: self._probe(measure))
        return self._times(measure)

    def _lasting(self, measure: Measure, pour: Callable[[Measure, int], Json]) -> Json:
        """Measure a stream that lasts the wanted time."""
        count = figures.first_count(measure.large)
        while (trial := pour(measure, count))["seconds"] < self.effort.warm:
            count = figures.larger_count(count, trial["seconds"], self.effort.warm)
        rate = trial["rate"]

        def once() -> Json:
            nonlocal rate
            while True:
                found = pour(measure, figures.full_count(rate, self.effort.seconds))
                rate = max(found["rate"], rate)
                if found["seconds"] >= figures.LONG_ENOUGH * self.effort.seconds:
                    return found
                rate *= 1.2  # the rate grew after the warm-up

        return self._steady(once)

    def _pour(self, measure: Measure, count: int) -> Json:
        """Measure one stream of this many messages."""
        found = self._watched(measure, count)
        seconds = (found["server"].pop("at") - found["client"].pop("at")) / 1e9
        if measure.manner is Manner.UNRELIABLE:
            received = found["server"].pop("count")
            found["lost"] = 100 * (count - received) / count
        else:
            received = check_received(found["server"], measure, count)
        rate = received / seconds
        megabytes = rate * measure.size / 1e6
        return {**found, "seconds": seconds, "rate": rate, "megabytes": megabytes}

    def _deliver(self, measure: Measure, count: int) -> Json:
        """Measure this many messages, each awaited until it was acknowledged."""
        found = self._watched(measure, count)
        seconds, times = found["client"].pop("seconds"), found["client"].pop("times")
        check_received(found["server"], measure, count)
        rate = count / seconds
        megabytes = rate * measure.size / 1e6
        p50, p99 = (figures.percentile(times, percent) / 1e3 for percent in (50, 99))
        return {
            **found,
            "seconds": seconds,
            "rate": rate,
            "megabytes": megabytes,
            "p50": p50,
            "p99": p99,
        }

    def _times(self, measure: Measure) -> Json:
        count = self.effort.fresh if measure.kind is Kind.FRESH else self.effort.calls
        self._watched(measure, max(3, count // 10))

        def once() -> Json:
            found = self._watched(measure, count)
            times = found["client"].pop("times")
            if measure.kind is Kind.FRESH:
                return {**found, "median": median(times) / 1e6}
            p50, p99 = (figures.percentile(times, percent) / 1e3 for percent in (50, 99))
            return {**found, "p50": p50, "p99": p99}

        return self._steady(once)

    def _probe(self, measure: Measure) -> Json:
        """Time small things on an idle connection, and beside a channel in bulk."""
        found = self._watched(measure, self.effort.probes)
        probes, rate = found["client"].pop("probes"), found["client"].pop("rate")
        for name, (idle, loaded) in probes.items():
            found |= figures.beside_bulk(name, idle, loaded)
        return {**found, "megabytes": rate / 1e6}

    def _hold(self, measure: Measure) -> Json:
        started = time.monotonic()
        found = self._watched(measure, self.effort.channels)
        peaks = {side: found[side]["usage"]["peak"] for side in ("client", "server")}
        return {"count": found["count"], "seconds": time.monotonic() - started, **peaks}

    def _watched(self, measure: Measure, count: int) -> Json:
        """Run a command on both sides, and measure the load of the machine meanwhile."""
        order = {
            "order": measure.kind.value,
            "manner": measure.manner.value,
            "size": measure.size,
            "count": count,
            "flight": measure.flight,
        }
        watch = Watch.start()
        broker = other_process_seconds(self._broker)
        self.server.write(**order)
        self.server.read()
        self.client.write(**order)
        client = self.client.read()
        if measure.kind is not Kind.STREAM:
            self.server.write(order="end")
        server = self.server.read()
        self.client.write(order="end")
        client.update(self.client.read())
        used = client["usage"]["processor"] + server["usage"]["processor"]
        used += other_process_seconds(self._broker) - broker
        found: dict[str, Any] = {"count": count, "disturbance": watch.disturbance(used)}
        return {**found, "client": client, "server": server}

    def _steady(self, once: Callable[[], Json]) -> Json:
        """Return the least disturbed of a few attempts."""
        best: Json | None = None
        for number in range(1, self.effort.tries + 1):
            found = once()
            if best is None or (found["disturbance"] or 0) < best["disturbance"]:
                best = found
            best["tries"] = number
            if (best["disturbance"] or 0) <= self.effort.disturbed:
                break
        assert best is not None
        return best


def check_received(server: Json, measure: Measure, count: int) -> int:
    """Return the number of messages received; fail unless all that were sent arrived."""
    received: int = server.pop("count")
    total = server.pop("total")
    if (received, total) != (count, expected(measure, count)):
        raise Failed(f"{received} messages and {total} bytes arrived instead of {count}")
    return received


def expected(measure: Measure, count: int) -> int:
    """Return the bytes that a receiver must count; for typed messages, the sum of a field."""
    if measure.manner is Manner.TYPED:
        return count * (count - 1) // 2
    return count * measure.size
