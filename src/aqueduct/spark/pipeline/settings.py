"""The settings of a run, validated before anything starts."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aqueduct.errors import AqueductError
from aqueduct.security import Trust

WINDOW = 5
"""The length of a window in seconds."""
WATERMARK = 10
"""Seconds that a window waits for late records."""
_MASTER = re.compile(
    r"local(\[(\*|[0-9]+)(,[0-9]+)?\])?|local-cluster\[[0-9]+,[0-9]+,[0-9]+\]"
    r"|(spark|k8s)://\S+|yarn"
)
_ADDRESS = re.compile(
    r"(?:aqueduct(?:\+quic|\+tcp)?://)?(\[[0-9A-Fa-f:.%]+\]|[^\s:,/]+):([0-9]{1,5})"
)
_TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,89}")
_SPARK = re.compile(r"spark\.[A-Za-z0-9._-]+")
MAX_DEVICES = 1_000
_CONNECT_TIMEOUT = 5.0
"""Seconds to connect to the master."""


class PipelineError(AqueductError, ValueError):
    """The pipeline cannot start or cannot continue."""


@dataclass(frozen=True)
class PipelineSettings:
    """The settings of a run."""

    out: Path
    master: str = "local[*]"
    servers: tuple[str, ...] = ()
    listen: str = "127.0.0.1:0"
    topic: str = "telemetry"
    partitions: int = 2
    devices: int = 12
    rate: float = 2_000.0
    duration: float = 30.0
    """How many seconds the devices send; 0 until Ctrl-C."""
    loss: float = 0.01
    seed: int = 1
    trigger: float = 0.5
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Configuration properties of Spark; they override the defaults."""
    trust: Trust = field(default_factory=Trust, repr=False)
    token: str | None = field(default=None, repr=False)

    def check(self) -> None:
        """Raise `PipelineError` for the first invalid setting."""
        if not _MASTER.fullmatch(self.master):
            raise PipelineError(
                f"--master {self.master!r} is not a master URL of Spark, such as local[2], "
                "local[*], spark://host:7077 or yarn"
            )
        for server in (*self.servers, self.listen):
            found = _ADDRESS.fullmatch(server)
            if found is None or int(found[2]) > 65_535:
                raise PipelineError(f"{server!r} is not of the form host:port")
        if len(set(self.servers)) < len(self.servers):
            raise PipelineError("--servers names a server twice")
        if not _TOPIC.fullmatch(self.topic):
            raise PipelineError(
                f"--topic {self.topic!r}: use at most 90 letters, digits, '.', '_' and '-', "
                "starting with a letter or digit"
            )
        if not 1 <= self.devices <= MAX_DEVICES:
            raise PipelineError(f"--devices {self.devices}: must be from 1 to {MAX_DEVICES:,}")
        if not 0 <= self.loss <= 0.3:
            raise PipelineError(
                f"--loss {self.loss:g}: must be a fraction of packets from 0 to 0.3"
            )
        if not self.devices <= self.rate < float("inf"):
            raise PipelineError(
                f"--rate {self.rate:g} with {self.devices} devices: each must send at least one "
                "record per second"
            )
        if not (self.trigger >= 0.1 and self.duration >= 0):
            raise PipelineError("--trigger must be at least 0.1 seconds, --duration at least 0")
        for name in self.spark:
            if not _SPARK.fullmatch(name):
                raise PipelineError(
                    f"--conf {name!r} is not a Spark property, which starts with spark."
                )
            if name == "spark.master":
                raise PipelineError("--conf spark.master: use --master")
        if self.out.exists() and not self._is_free():
            raise PipelineError(
                f"{self.out} is not empty, and each run needs its own directory; choose another "
                "with --out, or remove it"
            )

    def check_master(self) -> None:
        """Raise `PipelineError` if the master does not answer; Spark would retry for a minute."""
        if not self.master.startswith("spark://"):
            return
        faults = []
        for each in self.master.removeprefix("spark://").split(","):
            host, _, port = each.rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT).close()
            except (OSError, ValueError) as error:
                faults.append(f"{each}: {error}")
            else:
                return
        raise PipelineError(
            f"--master {self.master} does not answer ({'; '.join(faults)}); check that a master "
            "runs there, and that this host can reach it"
        )

    def _is_free(self) -> bool:
        """Return whether the directory is empty, except for the log of a failed start."""
        return self.out.is_dir() and all(each == self.log for each in self.out.iterdir())

    @property
    def log(self) -> Path:
        """The file with the log of Spark."""
        return self.out / "spark.log"

    @property
    def is_local(self) -> bool:
        """Whether Spark runs on this host only."""
        return self.master.startswith("local")

    @property
    def reads_files(self) -> bool:
        """Whether Spark reads the files of the ingest server instead of connecting to it."""
        return self.is_local and not self.servers

    @property
    def topics(self) -> tuple[str, ...]:
        """One topic per server, because a topic is on one server only."""
        if len(self.servers) < 2:
            return (self.topic,)
        return tuple(f"{self.topic}-{number}" for number in range(1, len(self.servers) + 1))
