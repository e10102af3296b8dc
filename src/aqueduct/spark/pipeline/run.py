"""Run the pipeline: start all processes and queries, stop them in order, and sum up."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from aqueduct.security import Trust
from aqueduct.spark.java import kill_jvm, silence_accumulators, stop_spark
from aqueduct.spark.pipeline.children import ChildProcess
from aqueduct.spark.pipeline.messages import (
    ChildProgress,
    Counts,
    DevicesPlan,
    GatewayPlan,
    IngestPlan,
    Listening,
    MarkersWritten,
    StartSending,
    Stop,
    WriteMarkers,
)
from aqueduct.spark.pipeline.settings import WATERMARK, WINDOW, PipelineError, PipelineSettings
from aqueduct.spark.pipeline.summary import Summary, totals_by_mode
from aqueduct.spark.source.offsets import Offsets, from_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from aqueduct.spark.pipeline.tables import Tables

P = ParamSpec("P")
T = TypeVar("T")

_POLL_INTERVAL = 0.2
"""Seconds between two polls of the queries; a batch takes longer."""
_CAUSE_DELAY = 0.5
"""Seconds to wait for the process that caused another one to exit."""
_SHORT_RUN = 120.0
"""Runs of at most this many seconds use only the fast compiler of the JVM."""
_FAST_COMPILER = "-XX:TieredStopAtLevel=1"
_STOP_TIMEOUT = 20.0
"""Seconds for a process to exit after `Stop`."""


@dataclass
class Status:
    """The state of a run, for display."""

    stage: str = "starting"
    running: float = 0.0
    """How many seconds the devices have been sending."""
    sent: Counts = field(default_factory=dict)
    arrived: Counts = field(default_factory=dict)
    late: Counts = field(default_factory=dict)
    rows: int = 0
    batches: int = 0
    latency_p50: float | None = None


class Pipeline:
    """One run of the pipeline; not reusable."""

    def __init__(self, settings: PipelineSettings, watch: Callable[[Status], None]) -> None:
        self._settings = settings
        self._watch = watch
        self._id = f"pipeline-{uuid.uuid4().hex[:12]}"
        self._ingest = ChildProcess("ingest server", "ingest_server")
        self._gateway = ChildProcess("gateway", "gateway")
        self._devices = ChildProcess("devices", "devices")
        self._spark: SparkSession | None = None
        self._tables: Tables | None = None
        self._status = Status()
        self._sending_since = 0.0
        self._aborted = False
        self._interrupted_early = False
        """Whether Ctrl-C came before anything was sent."""

    async def run(self, stop: asyncio.Event) -> Summary | None:
        """Run until the duration ends or ``stop`` is set; return None if nothing was sent."""
        start = time.monotonic()
        try:
            stopping = asyncio.create_task(stop.wait())
            starting = asyncio.create_task(self._guarded(self._start()))
            try:
                await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
                if not starting.done():
                    self._interrupted_early = True
                    return None
                await starting
                final = await self._guarded(self._send(stop))
                interrupted = stop.is_set()
                await self._guarded(self._drain())
            finally:
                starting.cancel()
                stopping.cancel()
            return await self._sum_up(final, interrupted, start)
        except asyncio.CancelledError:
            self._abort()
            raise
        finally:
            await self._end()

    async def _guarded(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine; raise `PipelineError` if a child process exits meanwhile."""
        working = asyncio.ensure_future(work)
        ended = [child.ended for child in (self._ingest, self._gateway, self._devices)]
        try:
            await asyncio.wait((working, *ended), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                # An exit makes other processes exit; the cause is the one closest to the disk.
                await asyncio.sleep(_CAUSE_DELAY)
            for each in ended:
                if each.done():
                    raise PipelineError(each.result())
            return await working
        finally:
            working.cancel()

    # Starting

    async def _start(self) -> None:
        self._show("starting Java and Spark, the ingest server and the devices")
        session, (options, start) = await asyncio.gather(
            in_thread(self._session), self._start_processes()
        )
        self._spark = session
        from aqueduct.spark.pipeline.tables import Tables

        self._show("starting the queries")
        self._tables = Tables(session, self._settings, options, start.offsets, self._id)
        await in_thread(self._tables.start)
        await self._until_reached(from_json(start.offsets))

    def _session(self) -> SparkSession:
        from aqueduct.spark.session import session

        settings = self._settings
        more: dict[str, str] = {}
        if settings.is_local:
            more["spark.sql.shuffle.partitions"] = "2"
            if 0 < settings.duration <= _SHORT_RUN:
                more["spark.driver.extraJavaOptions"] = _FAST_COMPILER
        try:
            made = session("aqueduct pipeline", settings.master, **{**more, **settings.spark})
        except Exception as error:
            # The JVM raises many kinds of errors, each followed by a stack trace.
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise PipelineError(
                f"Spark does not start on {settings.master}: {reason}; see {settings.log}"
            ) from error
        silence_accumulators(made)
        return made

    async def _start_processes(self) -> tuple[dict[str, str], MarkersWritten]:
        settings = self._settings
        servers, trust = settings.servers, settings.trust
        landing = settings.out.absolute() / "landing"
        if not servers:
            await in_thread(landing.mkdir, parents=True, exist_ok=True)
            await self._ingest.start(IngestPlan(str(landing), settings.listen, settings.partitions))
            own = await self._ingest.expect(Listening)
            servers, trust = (own.address,), Trust(pinned=own.fingerprint)
        authorities = None if trust.authorities is None else trust.authorities.decode()
        await self._gateway.start(
            GatewayPlan(
                targets=list(zip(servers, settings.topics, strict=True)),
                producer_id=self._id,
                partitions=settings.partitions,
                authorities=authorities,
                pinned=trust.pinned,
                token=settings.token,
            )
        )
        gateway = await self._gateway.expect(Listening)
        await self._devices.start(
            DevicesPlan(
                gateway=gateway.address,
                devices=settings.devices,
                rate=settings.rate,
                seed=settings.seed,
                loss=settings.loss,
            )
        )
        await self._devices.expect(Listening)
        start = await self._write_markers(time.time())
        if settings.reads_files:
            return {"path": str(landing)}, start
        options = {"servers": ",".join(servers)}
        if authorities is not None:
            options["trustCa"] = authorities
        if trust.pinned is not None:
            options["trustPin"] = trust.pinned
        if settings.token is not None:
            options["token"] = settings.token
        return options, start

    # Running

    async def _send(self, stop: asyncio.Event) -> ChildProgress:
        self._devices.send(StartSending())
        self._sending_since = time.monotonic()
        end = self._sending_since + (self._settings.duration or float("inf"))
        while not stop.is_set() and time.monotonic() < end:
            self._show("devices are sending")
            await self._poll()
        self._show("stopping the devices")
        self._devices.send(Stop())
        final = await self._devices.done
        self._status.running = time.monotonic() - self._sending_since
        return final

    async def _drain(self) -> None:
        assert self._tables is not None
        self._show("waiting until all records are in the tables")
        everything = await self._write_markers(None)
        await self._until_reached(from_json(everything.offsets))
        self._show("closing the last windows")
        closing = await self._write_markers(time.time() + WATERMARK + WINDOW + 1.0)
        await self._until_reached(from_json(closing.offsets))
        await in_thread(self._tables.finish)
        await in_thread(self._tables.stop)

    async def _write_markers(self, event: float | None) -> MarkersWritten:
        self._gateway.send(WriteMarkers(None if event is None else int(event * 1e6)))
        return await self._gateway.expect(MarkersWritten)

    async def _until_reached(self, offsets: Offsets) -> None:
        assert self._tables is not None
        while not await in_thread(self._tables.have_reached, offsets):
            self._show(self._status.stage)
            await asyncio.sleep(_POLL_INTERVAL)

    async def _poll(self) -> None:
        assert self._tables is not None
        await in_thread(self._tables.poll)
        await asyncio.sleep(_POLL_INTERVAL)

    def _show(self, stage: str) -> None:
        status, sent = self._status, self._devices.progress
        status.stage = stage
        if self._sending_since and not self._devices.done.done():
            status.running = time.monotonic() - self._sending_since
        status.sent, status.late = sent.sent, sent.late
        status.arrived = self._gateway.progress.arrived
        if self._tables is not None:
            readings = self._tables.progress["readings"]
            status.rows, status.batches = readings.rows, readings.batches
            status.latency_p50 = readings.latency_p50
        self._watch(status)

    # Ending

    async def _sum_up(self, final: ChildProgress, interrupted: bool, start: float) -> Summary:
        from aqueduct.spark.pipeline.figures import compute
        from aqueduct.spark.pipeline.report import page

        assert self._spark is not None
        assert self._tables is not None
        self._show("writing the report")
        settings, tables = self._settings, self._tables
        readings = tables.progress["readings"]
        paths = tables.path("readings"), tables.path("windows")
        figures = await in_thread(compute, self._spark, *paths, readings.commits())
        report = settings.out / "report.html"
        summary = Summary(
            master=settings.master,
            topics=settings.topics,
            source="files" if settings.reads_files else "servers",
            devices=settings.devices,
            seconds=self._status.running,
            whole_seconds=time.monotonic() - start,
            interrupted=interrupted,
            batches=readings.batches,
            late=final.late,
            totals=totals_by_mode(final.sent, final.lost, final.arrived, figures),
            figures=figures,
            out=str(settings.out),
            report=str(report),
        )
        report.write_text(page(summary), encoding="utf-8")
        return summary

    async def _end(self) -> None:
        """Stop all processes and Spark; kill the processes after an error."""
        in_order = bool(self._sending_since) and not self._aborted
        for child in (self._devices, self._gateway, self._ingest):
            if in_order and not child.ended.done():
                await child.close(Stop(), _STOP_TIMEOUT)
            else:
                await child.kill()
        if self._spark is not None and not self._aborted:
            if self._tables is not None:
                await in_thread(self._tables.stop)
            await in_thread(stop_spark, self._spark)
        if not self._sending_since:
            await in_thread(self._remove)

    def _abort(self) -> None:
        """Kill the JVM, which would otherwise finish its batch first."""
        self._aborted = True
        self._interrupted_early = True
        kill_jvm()

    def _remove(self) -> None:
        """Remove what was created in the output directory, which has no records."""
        for name in ("landing", "checkpoint", "readings", "windows"):
            shutil.rmtree(self._settings.out / name, ignore_errors=True)
        with suppress(OSError):
            # Keep the log of a failure.
            if self._interrupted_early or not self._settings.log.stat().st_size:
                self._settings.log.unlink()
            self._settings.out.rmdir()


async def in_thread(call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Run a blocking call in a daemon thread, and wait for its result.

    Unlike a thread of `asyncio.to_thread`, it does not keep the program from exiting.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def resolve(result: T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, error = None, None
        try:
            result = call(*arguments, **named)
        except BaseException as problem:  # noqa: BLE001 -- raised in the waiting task
            error = problem
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(resolve, result, error)

    threading.Thread(target=work, daemon=True, name=f"pipeline-{call.__name__}").start()
    return await answer
