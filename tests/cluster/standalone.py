"""A Spark cluster on this host, only from pip packages: a master and two workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import pyspark

from aqueduct.spark.java import find_java
from tests import java
from tests.spark.crashes.lab import ROOT, command, family, kill, mark

HOME = Path(pyspark.__file__).parent
"""The directory for SPARK_HOME."""
WORKERS = 2
MEMORY = "1g"
"""The memory of each worker; an executor gets half of it."""
TIMEOUT = 120.0

SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
}
"""What a session needs here besides its master: two executors, and no name of this host."""


class Cluster:
    """A master, and workers with a core each; ``with`` starts and stops them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mark = mark()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = ""
        """What to give `aqueduct.spark.session`, with `SETTINGS`."""

    def __enter__(self) -> Cluster:
        self._directory.mkdir(exist_ok=True)
        try:
            self._start("master", "master.Master", "--port", "0")
            log = self._directory / "master.log"
            self.master = _wait_for(lambda: _find(r"Starting Spark master at (\S+)", log), log)
            for number in range(WORKERS):
                directory = self._directory / f"work-{number}"
                memory = ("--cores", "1", "--memory", MEMORY, "--work-dir", str(directory))
                self._start(f"worker-{number}", "worker.Worker", *memory, self.master)
            registered = "(" + r"Registering worker[\s\S]*" * WORKERS + ")"
            _wait_for(lambda: _find(registered, log), log)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._stop()

    def _start(self, name: str, what: str, *arguments: str) -> None:
        """Start a process of the cluster."""
        begin = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}"]
        with (self._directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*begin, "--host", "127.0.0.1", "--webui-port", "0", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(),
            )
        self._processes.append(process)

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            **self._mark,
            "JAVA_HOME": str(find_java()),
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            # As if the package was installed where the workers are.
            "PYTHONPATH": os.pathsep.join([str(java.WORKERS), *sys.path, str(ROOT)]),
        }

    def _stop(self) -> None:
        for each in family(self._mark):
            kill(each)
        for process in self._processes:
            process.wait()
        self._processes.clear()

    def executors(self) -> list[int]:
        """Return the executor processes."""
        return [
            each for each in family(self._mark) if "CoarseGrainedExecutorBackend" in command(each)
        ]

    def kill_executor(self, which: int | None = None) -> int:
        """Kill an executor, any or a certain one; the cluster starts another."""
        chosen = self.executors()[0] if which is None else which
        kill(chosen)
        return chosen

    def logs(self) -> str:
        """Return the end of each log."""
        found = sorted(self._directory.rglob("*.log")) + sorted(self._directory.rglob("stderr"))
        return "\n".join(
            f"== {path.relative_to(self._directory)}\n{path.read_text(errors='replace')[-2_000:]}"
            for path in found
        )


def _find(pattern: str, log: Path) -> str | None:
    found = re.search(pattern, log.read_text(errors="replace"))
    return found[1] if found else None


def _wait_for(look: Callable[[], str | None], log: Path) -> str:
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        if (found := look()) is not None:
            return found
        time.sleep(0.05)
    raise AssertionError(f"the cluster does not start: {log.read_text(errors='replace')[-2_000:]}")
