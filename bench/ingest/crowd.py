"""Measures one server and its producers, each in its own process."""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import IO

from bench.builds import ROOT
from bench.network.figures import percentile
from bench.network.goals import OURS
from bench.network.machine import Watch
from bench.network.measures import Kind, Measure
from bench.network.pair import Effort
from bench.network.peer import Json, Setting
from bench.network.processes import Failed, Process

WORKER = "bench.ingest.worker"
RECOVERIES = 3
PACE_TIMES = 4
"""Multiple of the length of a stream: long enough for logs to become segments."""


@contextlib.contextmanager
def meet(
    peer: str, setting: Setting, log: Path, sources: Path, effort: Effort
) -> Iterator["Crowd"]:
    """Start a crowd and stop it; its data are beside the sources, on a real disk."""
    data = ROOT / "build"
    data.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="ingest-", dir=data) as directory,
        log.open("wb") as errors,
        contextlib.ExitStack() as stack,
    ):
        setting = replace(setting, options={**setting.options, "directory": directory})
        yield Crowd(peer, setting, effort, errors, sources, stack)


class Crowd:
    """A server, and the producers that a measurement needs."""

    def __init__(
        self,
        peer: str,
        setting: Setting,
        effort: Effort,
        log: IO[bytes],
        sources: Path,
        stack: contextlib.ExitStack,
    ) -> None:
        self.effort = effort
        self._peer = peer
        self._setting = setting
        self._log = log
        self._sources = sources
        self._stack = stack
        self._server: Process | None = None
        self._producers: list[Process] = []
        self._info: Json = {}
        self._peaks: list[float] = []

    def measure(self, measure: Measure) -> Json:
        """Warm up and return the figures of one measurement."""
        if measure.kind is Kind.RECOVER:
            return self._recover(measure)
        server = self._the_server()
        if measure.kind is Kind.PEAK:
            return {"server": ask(server)["peak"], "producer": max(self._peaks, default=0.0)}
        order: Json = {"order": measure.kind.value, "size": measure.size}
        senders = self._senders(measure.producers)
        seconds = self.effort.seconds
        if measure.kind is Kind.PACE:
            order["rate"] = self._pace(measure, senders)
            seconds *= PACE_TIMES
        self._have(senders, {**order, "seconds": self.effort.warm})
        watch = Watch.start()
        before = ask(server)
        answers = self._have(senders, {**order, "seconds": seconds})
        after = ask(server)
        check_stored(answers, after["count"] - before["count"])
        used = after["processor"] - before["processor"]
        used += sum(answer["usage"]["processor"] for answer in answers)
        found = in_time(answers) if measure.kind is Kind.PACE else in_all(answers, measure.size)
        return {
            **found,
            "disturbance": watch.disturbance(used),
            "remark": self._info.get("remark", ""),
            "processor": {
                "server": after["processor"] - before["processor"],
                "producers": sum(answer["usage"]["processor"] for answer in answers),
            },
        }

    def _pace(self, measure: Measure, senders: Sequence[Process]) -> float:
        """Return the rate: as configured, or half of the peer's maximum if that is less."""
        if self._peer == OURS:
            return measure.rate
        order = {"order": "store", "size": measure.size, "seconds": self.effort.warm}
        reached: float = in_all(self._have(senders, order), measure.size)["rate"]
        return min(measure.rate, reached / 2)

    def _the_server(self) -> Process:
        if self._server is None:
            self._server = self._start("server")
            self._info = self._server.read()["info"]
        return self._server

    def _senders(self, count: int) -> list[Process]:
        fresh = [self._start("producer") for _ in range(count - len(self._producers))]
        for process in fresh:
            process.write(info=self._info)
        for process in fresh:
            process.read()
        self._producers += fresh
        return self._producers[:count]

    def _start(self, role: str) -> Process:
        process = Process(role, self._peer, self._setting, self._log, self._sources, WORKER)
        self._stack.callback(process.end)
        return process

    def _have(self, producers: Sequence[Process], order: Json) -> list[Json]:
        """Start all producers, then collect their results."""
        if "rate" in order:
            order = {**order, "rate": order["rate"] / len(producers)}
        for process in producers:
            process.write(**order)
        answers = [process.read() for process in producers]
        self._peaks += [answer["usage"]["peak"] for answer in answers]
        return answers

    def _recover(self, measure: Measure) -> Json:
        made = self._alone("fill", bytes=self.effort.log, size=measure.size)
        found = [self._alone("recover") for _ in range(RECOVERIES)]
        for each in found:
            if each["count"] != made["count"]:
                raise Failed(f"{each['count']} records were recovered instead of {made['count']}")
        return {
            "seconds": median(each["seconds"] for each in found),
            "peak": max(each["peak"] for each in found),
            "count": made["count"],
            "size": found[0]["size"],
        }

    def _alone(self, role: str, **order: object) -> Json:
        with contextlib.ExitStack() as stack:
            # Not part of the server's data.
            directory = str(Path(self._setting.options["directory"]) / "recovered")
            setting = replace(self._setting, options={"directory": directory})
            process = Process(role, self._peer, setting, self._log, self._sources, WORKER)
            stack.callback(process.end)
            process.read()
            process.write(order=role, **order)
            return process.read()


def ask(server: Process) -> Json:
    """Return the stored records, and the resources used so far."""
    server.write(order="count")
    return server.read()


def check_stored(answers: Sequence[Json], stored: int) -> None:
    """Return the number of records; fail unless all that were sent are stored."""
    sent = sum(answer["count"] for answer in answers)
    if sent != stored:
        raise Failed(f"{stored} records were stored instead of {sent}")


def in_all(answers: Sequence[Json], size: int) -> Json:
    """Return the time from the first producer's start until the last one's records were stored."""
    began = min(answer["began"] for answer in answers)
    seconds = (max(answer["ended"] for answer in answers) - began) / 1e9
    count = sum(answer["count"] for answer in answers)
    rate = count / seconds
    return {"count": count, "seconds": seconds, "rate": rate, "megabytes": rate * size / 1e6}


def in_time(answers: Sequence[Json]) -> Json:
    times = [time for answer in answers for time in answer["times"]]
    return {
        "count": sum(answer["count"] for answer in answers),
        "rate": sum(answer["count"] / answer["seconds"] for answer in answers),
        "p50": percentile(times, 50) * 1e3,
        "p99": percentile(times, 99) * 1e3,
        "worst": max(times) * 1e3,
    }
