"""Measures one Spark session, with an ingest server and a producer if needed."""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bench.builds import ROOT
from bench.network.goals import OURS
from bench.network.machine import Watch, session_seconds
from bench.network.measures import Kind, Measure
from bench.network.pair import Effort
from bench.network.peer import Json, Setting
from bench.network.processes import Failed, Process

_CROWD = "bench.ingest.worker"
_LEAD = 4.0
"""Seconds for a query to start before rows arrive."""


@contextlib.contextmanager
def meet(peer: str, setting: Setting, log: Path, sources: Path, effort: Effort) -> Iterator["Lab"]:
    """Start a session with data on a real disk, and stop it."""
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="spark-", dir=build) as directory,
        log.open("wb") as errors,
        contextlib.ExitStack() as stack,
    ):
        setting = replace(setting, options={**setting.options, "directory": directory})

        def start(role: str, worker: str, where: Setting) -> Process:
            process = Process(role, peer, where, errors, sources, worker)
            stack.callback(process.end)
            return process

        driver = start("driver", "bench.spark.driver", setting)
        driver.write(order="fill", rows=effort.rows, files=effort.files, size=100)
        driver.read()
        info: Json = {}
        others = []
        if peer == OURS:
            landing = replace(setting, options={"directory": f"{directory}/landing"})
            server = start("server", _CROWD, landing)
            info = server.read()["info"]
            producer = start("producer", _CROWD, landing)
            producer.write(info=info)
            producer.read()
            others = [server, producer]
        driver.write(order="begin", info=info)
        driver.read()
        yield Lab(driver, others, effort)


class Lab:
    """A driver, and for our source a server and a producer."""

    def __init__(self, driver: Process, others: list[Process], effort: Effort) -> None:
        self._driver = driver
        self._others = others
        self._effort = effort

    def measure(self, measure: Measure) -> Json:
        """Warm up and return the figures of one measurement."""
        watch = Watch.start()
        before = self._processor()
        found = self._delay(measure) if measure.kind is Kind.DELAY else self._rate(measure)
        return {**found, "disturbance": watch.disturbance(self._processor() - before)}

    def _rate(self, measure: Measure) -> Json:
        rows = self._effort.rows // 2 if measure.kind is Kind.SINK else self._effort.rows
        return self._ask(measure.kind.value, rows=rows, size=measure.size)

    def _delay(self, measure: Measure) -> Json:
        seconds = self._effort.seconds
        load = {"rate": measure.rate, "size": measure.size, "seconds": _LEAD + seconds}
        begun = self._ask("watch", **load)
        if self._others:
            self._others[1].write(order="pace", **load)
            self._others[1].read()
        found = self._ask("delay", directory=begun["directory"], lead=_LEAD)
        if not found["count"]:
            raise Failed("no row arrived")
        return {**found, "rate": measure.rate}

    def _ask(self, order: str, **more: object) -> Json:
        self._driver.write(order=order, **more)
        return self._driver.read()

    def _processor(self) -> float:
        return sum(session_seconds(each.pid) for each in (self._driver, *self._others))
