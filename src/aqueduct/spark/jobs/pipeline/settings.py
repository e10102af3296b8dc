"""What the pipeline is asked to do, checked before anything starts."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aqueduct.security import Trust
from aqueduct.spark.jobs.pipeline.faults import PipelineError

WINDOW = 5
"""Seconds of a window."""
WATERMARK = 10
"""Seconds that a window waits for late records."""
_MASTER = re.compile(
    r"local(\[(\*|[0-9]+)(,[0-9]+)?\])?|local-cluster\[[0-9]+,[0-9]+,[0-9]+\]"
    r"|(spark|k8s)://\S+|yarn"
)
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:,/]+):([0-9]{1,5})")
_TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,89}")
_SPARK = re.compile(r"spark\.[A-Za-z0-9._-]+")
MAX_DEVICES = 1_000
_PATIENCE = 5.0
"""Seconds for a master to be reached."""


@dataclass(frozen=True)
class Settings:
    """A run of the pipeline."""

    out: Path
    master: str = "local[*]"
    servers: tuple[str, ...] = ()
    listen: str = "127.0.0.1:0"
    topic: str = "telemetry"
    partitions: int = 2
    devices: int = 12
    rate: float = 2_000.0
    duration: float = 30.0
    """Seconds for which devices send; 0 for as long as nobody presses Ctrl-C."""
    loss: float = 0.01
    seed: int = 1
    trigger: float = 0.5
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of Spark, which go before ours."""
    trust: Trust = field(default_factory=Trust, repr=False)
    token: str | None = field(default=None, repr=False)

    def check(self) -> None:
        """Raise `PipelineError` for the first that cannot be."""
        if not _MASTER.fullmatch(self.master):
            raise PipelineError(
                f"--master {self.master!r} is none of Spark's; local[2], local[*], "
                "spark://host:7077 and yarn are"
            )
        for server in (*self.servers, self.listen):
            found = _ADDRESS.fullmatch(server)
            if found is None or int(found[2]) > 65_535:
                raise PipelineError(f"{server!r} is not of the form host:port")
        if len(set(self.servers)) < len(self.servers):
            raise PipelineError("--servers names a server twice")
        if not _TOPIC.fullmatch(self.topic):
            raise PipelineError(
                f"--topic {self.topic!r}: a name has letters, digits, '.', '_' and '-', "
                "begins with a letter or digit, and has at most 90"
            )
        if not 1 <= self.devices <= MAX_DEVICES:
            raise PipelineError(f"--devices {self.devices}: from 1 to {MAX_DEVICES:,}")
        if not 0 <= self.loss <= 0.3:
            raise PipelineError(f"--loss {self.loss:g}: a share of packets, from 0 to 0.3")
        if not self.devices <= self.rate < float("inf"):
            raise PipelineError(
                f"--rate {self.rate:g} with {self.devices} devices: each sends at least one "
                "record a second"
            )
        if not (self.trigger >= 0.1 and self.duration >= 0):
            raise PipelineError("--trigger is at least 0.1 seconds, --duration at least 0")
        for name in self.spark:
            if not _SPARK.fullmatch(name):
                raise PipelineError(
                    f"--conf {name!r} is no setting of Spark: they begin with spark."
                )
            if name == "spark.master":
                raise PipelineError("--conf spark.master: say that with --master")
        if self.out.exists() and not self._is_free():
            raise PipelineError(
                f"{self.out} is not empty, and tables of two runs do not mix; name another "
                "directory with --out, or remove it"
            )

    def check_master(self) -> None:
        """Raise if nothing listens where the master should be: Spark would try for a minute."""
        if not self.master.startswith("spark://"):
            return
        faults = []
        for each in self.master.removeprefix("spark://").split(","):
            host, _, port = each.rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
            except (OSError, ValueError) as error:
                faults.append(f"{each}: {error}")
            else:
                return
        raise PipelineError(
            f"--master {self.master} does not answer ({'; '.join(faults)}); see that a master runs "
            "there, and that this host can reach it"
        )

    def _is_free(self) -> bool:
        """Whether nothing is there but what a start that failed has left."""
        return self.out.is_dir() and all(each == self.log for each in self.out.iterdir())

    @property
    def log(self) -> Path:
        """Where Spark's own words are."""
        return self.out / "spark.log"

    @property
    def is_local(self) -> bool:
        """Whether Spark runs in processes of this host, which see its files."""
        return self.master.startswith("local")

    @property
    def reads_files(self) -> bool:
        """Whether Spark reads the files of the server, and does not ask it."""
        return self.is_local and not self.servers

    @property
    def topics(self) -> tuple[str, ...]:
        """One for each server: a topic is on one server only."""
        if len(self.servers) < 2:
            return (self.topic,)
        return tuple(f"{self.topic}-{number}" for number in range(1, len(self.servers) + 1))
