"""A run of the pipeline: starts everything, watches it, has it end in order, and adds it up."""

from __future__ import annotations

import asyncio
import shutil
import time
import uuid
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aqueduct.security import Trust
from aqueduct.spark.jobs.pipeline.children import Child
from aqueduct.spark.jobs.pipeline.faults import PipelineError
from aqueduct.spark.jobs.pipeline.java import hush, kill_java, stop_spark
from aqueduct.spark.jobs.pipeline.messages import (
    Begin,
    Counts,
    DevicesPlan,
    GatewayPlan,
    IngestPlan,
    Listening,
    Mark,
    Marked,
    Stop,
    Told,
)
from aqueduct.spark.jobs.pipeline.settings import WATERMARK, WINDOW, Settings
from aqueduct.spark.jobs.pipeline.summary import Summary, accounts
from aqueduct.spark.jobs.pipeline.threads import in_thread
from aqueduct.spark.source.offsets import Offsets, from_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from aqueduct.spark.jobs.pipeline.tables import Tables

_LOOK = 0.2
"""Seconds between two looks at the queries; a batch takes longer."""
_SETTLE = 0.5
_SHORT = 120.0
"""Seconds of a run in which Java would not get back the time that it takes to compile its best."""
_QUICK = "-XX:TieredStopAtLevel=1"
_PATIENCE = 20.0
"""Seconds for a process to end that was told to."""


@dataclass
class Status:
    """How it stands, for those who watch."""

    stage: str = "starting"
    running: float = 0.0
    """Seconds for which devices send."""
    sent: Counts = field(default_factory=dict)
    arrived: Counts = field(default_factory=dict)
    late: Counts = field(default_factory=dict)
    rows: int = 0
    batches: int = 0
    latency_p50: float | None = None


class Pipeline:
    """One run; use it once."""

    def __init__(self, settings: Settings, watch: Callable[[Status], None]) -> None:
        self._settings = settings
        self._watch = watch
        self._id = f"pipeline-{uuid.uuid4().hex[:12]}"
        self._ingest = Child("ingest server", "store")
        self._gateway = Child("gateway", "gateway")
        self._devices = Child("devices", "devices")
        self._spark: SparkSession | None = None
        self._tables: Tables | None = None
        self._status = Status()
        self._begun = 0.0
        self._aborted = False
        self._wanted = True
        """Whether nobody has pressed Ctrl-C before anything was sent."""

    async def run(self, stop: asyncio.Event) -> Summary | None:
        """Run until the time is over or the event is set; None if nothing was sent before that."""
        start = time.monotonic()
        try:
            stopping = asyncio.create_task(stop.wait())
            starting = asyncio.create_task(self._guarded(self._start()))
            try:
                await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
                if not starting.done():
                    self._wanted = False
                    return None
                await starting
                told = await self._guarded(self._send(stop))
                interrupted = stop.is_set()
                await self._guarded(self._drain())
            finally:
                starting.cancel()
                stopping.cancel()
            return await self._add_up(told, interrupted, start)
        except asyncio.CancelledError:
            self._abort()
            raise
        finally:
            await self._end()

    async def _guarded(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Work that ends with an error when one of the processes does."""
        working = asyncio.ensure_future(work)
        ended = [child.ended for child in (self._ingest, self._gateway, self._devices)]
        try:
            await asyncio.wait((working, *ended), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                # One that ends takes others with it; the cause is the one closest to the disk.
                await asyncio.sleep(_SETTLE)
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
        from aqueduct.spark.jobs.pipeline.tables import Tables

        self._show("starting the queries")
        self._tables = Tables(session, self._settings, options, start.offsets, self._id)
        await in_thread(self._tables.begin)
        await self._until_reached(from_json(start.offsets))

    def _session(self) -> SparkSession:
        from aqueduct.spark.session import session

        settings = self._settings
        more: dict[str, str] = {}
        if settings.is_local:
            more["spark.sql.shuffle.partitions"] = "2"
            if 0 < settings.duration <= _SHORT:
                more["spark.driver.extraJavaOptions"] = _QUICK
        try:
            made = session("aqueduct pipeline", settings.master, **{**more, **settings.spark})
        except Exception as error:
            # Java's reasons come as all kinds of errors, with a trace of its stack behind them.
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise PipelineError(
                f"Spark does not start on {settings.master}: {reason}; {settings.log} has more"
            ) from error
        hush(made)
        return made

    async def _start_processes(self) -> tuple[dict[str, str], Marked]:
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
        start = await self._mark(time.time())
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

    async def _send(self, stop: asyncio.Event) -> Told:
        self._devices.order(Begin())
        self._begun = time.monotonic()
        end = self._begun + (self._settings.duration or float("inf"))
        while not stop.is_set() and time.monotonic() < end:
            self._show("devices are sending")
            await self._look()
        self._show("the devices finish")
        self._devices.order(Stop())
        told = await self._devices.done
        self._status.running = time.monotonic() - self._begun
        return told

    async def _drain(self) -> None:
        assert self._tables is not None
        self._show("waiting until everything is in the tables")
        everything = await self._mark(None)
        await self._until_reached(from_json(everything.offsets))
        self._show("closing the last windows")
        closing = await self._mark(time.time() + WATERMARK + WINDOW + 1.0)
        await self._until_reached(from_json(closing.offsets))
        await in_thread(self._tables.finish)
        await in_thread(self._tables.stop)

    async def _mark(self, event: float | None) -> Marked:
        self._gateway.order(Mark(None if event is None else int(event * 1e6)))
        return await self._gateway.expect(Marked)

    async def _until_reached(self, offsets: Offsets) -> None:
        assert self._tables is not None
        while not await in_thread(self._tables.have_reached, offsets):
            self._show(self._status.stage)
            await asyncio.sleep(_LOOK)

    async def _look(self) -> None:
        assert self._tables is not None
        await in_thread(self._tables.look)
        await asyncio.sleep(_LOOK)

    def _show(self, stage: str) -> None:
        status, told = self._status, self._devices.told
        status.stage = stage
        if self._begun and not self._devices.done.done():
            status.running = time.monotonic() - self._begun
        status.sent, status.late = told.sent, told.late
        status.arrived = self._gateway.told.arrived
        if self._tables is not None:
            history = self._tables.histories["readings"]
            status.rows, status.batches = history.rows, history.batches
            status.latency_p50 = history.latency_p50
        self._watch(status)

    # Ending

    async def _add_up(self, told: Told, interrupted: bool, start: float) -> Summary:
        from aqueduct.spark.jobs.pipeline.figures import compute
        from aqueduct.spark.jobs.pipeline.report import page

        assert self._spark is not None
        assert self._tables is not None
        self._show("adding up, and writing the report")
        settings, tables = self._settings, self._tables
        history = tables.histories["readings"]
        paths = tables.path("readings"), tables.path("windows")
        figures = await in_thread(compute, self._spark, *paths, history.commits())
        report = settings.out / "report.html"
        summary = Summary(
            master=settings.master,
            topics=settings.topics,
            source="files" if settings.reads_files else "servers",
            devices=settings.devices,
            seconds=self._status.running,
            whole_seconds=time.monotonic() - start,
            interrupted=interrupted,
            batches=history.batches,
            late=told.late,
            accounts=accounts(told.sent, told.lost, told.arrived, figures),
            figures=figures,
            out=str(settings.out),
            report=str(report),
        )
        report.write_text(page(summary), encoding="utf-8")
        return summary

    async def _end(self) -> None:
        """Stop everything that was started; in order if all went well, else as it is."""
        in_order = bool(self._begun) and not self._aborted
        for child in (self._devices, self._gateway, self._ingest):
            if in_order and not child.ended.done():
                await child.close(Stop(), _PATIENCE)
            else:
                await child.kill()
        if self._spark is not None and not self._aborted:
            if self._tables is not None:
                await in_thread(self._tables.stop)
            await in_thread(stop_spark, self._spark)
        if not self._begun:
            await in_thread(self._remove)

    def _abort(self) -> None:
        """End at once, and wait for nothing: Java would finish its batch first."""
        self._aborted = True
        self._wanted = False
        kill_java()

    def _remove(self) -> None:
        """Leave the directory as it was found: no record is in it."""
        for name in ("landing", "checkpoint", "readings", "windows"):
            shutil.rmtree(self._settings.out / name, ignore_errors=True)
        with suppress(OSError):
            # Of a failure it is all there is to look at.
            if not self._wanted or not self._settings.log.stat().st_size:
                self._settings.log.unlink()
            self._settings.out.rmdir()
