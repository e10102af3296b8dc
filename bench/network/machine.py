"""The load of the machine during a measurement: other processes, stolen time, memory."""

import contextlib
import os
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path

CORES = os.cpu_count() or 1
QUIET = 0.1
"""The busy fraction of all cores below which the machine counts as quiet."""
GRAIN = 0.02
"""Seconds by which the counters of two processes may differ."""


def process_seconds() -> float:
    """Return the processor time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_megabytes(process: int | None = None) -> float:
    """Return the peak resident memory of this or another process, in 10^6 bytes."""
    try:
        for line in Path(f"/proc/{process or 'self'}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        pass
    if process is not None:
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def other_process_seconds(process: int | None) -> float:
    """Return the processor time of another process, such as a broker; 0 if unknown."""
    if process is None:
        return 0.0
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def session_seconds(leader: int) -> float:
    """Return the processor time of a process and of its descendants, including those that ended."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader:
                ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def busy_seconds() -> float | None:
    """Return the processor time that the machine has spent or lost since boot."""
    try:
        line = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return None
    user, nice, system, _, _, irq, softirq, stolen = map(int, line.split()[1:9])
    return (user + nice + system + irq + softirq + stolen) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Watch:
    """Measures the load of the machine from its creation on."""

    busy: float | None
    since: float

    @classmethod
    def start(cls) -> "Watch":
        return cls(busy_seconds(), time.monotonic())

    def disturbance(self, used: float) -> float | None:
        """Return the fraction of the machine that others used; ``used`` is the measured time."""
        now = busy_seconds()
        if now is None or self.busy is None:
            return None
        seconds = time.monotonic() - self.since
        others = max(0.0, now - self.busy - used - GRAIN)
        return others / (CORES * max(seconds, GRAIN))


def wait_until_quiet(timeout: float, step: float = 1.0) -> bool:
    """Wait until the machine is quiet; return False after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        watch = Watch.start()
        time.sleep(step)
        busy = watch.disturbance(0.0)
        if busy is None or busy <= QUIET:
            return True
        if time.monotonic() >= deadline:
            return False
