"""Messages between devices and the gateway, and between the pipeline and its child processes."""

from __future__ import annotations

import msgspec

from aqueduct.api.handles import Receiver, Sender

Counts = dict[str, int]
"""By mode."""


class RegisterDevice(msgspec.Struct):
    """A device, with the channels that carry its records."""

    device: str
    ordered: Receiver[bytes]
    unordered: Receiver[bytes]
    unreliable: Receiver[bytes]
    total: Sender[Counts]
    """The gateway answers when all three channels have ended and their records are stored."""


class IngestPlan(msgspec.Struct):
    """The task of the ingest server process."""

    directory: str
    listen: str
    partitions: int


class GatewayPlan(msgspec.Struct):
    """The task of the gateway process."""

    targets: list[tuple[str, str]]
    """Server and topic; devices are distributed over them."""
    producer_id: str
    partitions: int
    authorities: str | None
    pinned: str | None
    token: str | None
    give_up_after: float = 10.0
    """Seconds to retry an unreachable server."""


class DevicesPlan(msgspec.Struct):
    """The task of the process of the devices."""

    gateway: str
    devices: int
    rate: float
    seed: int
    loss: float


class Listening(msgspec.Struct, tag=True):
    """Report that a process is ready."""

    address: str
    fingerprint: str = ""


class WriteMarkers(msgspec.Struct, tag=True):
    """Command the gateway to append a marker record to each partition."""

    event: int | None
    """The event time of the markers in microseconds since 1970, if any."""


class MarkersWritten(msgspec.Struct, tag=True):
    """Report the offsets of the markers, by topic and partition."""

    offsets: dict[str, dict[str, int]]


class StartSending(msgspec.Struct, tag=True):
    """Command the devices to send."""


class Stop(msgspec.Struct, tag=True):
    """Command a process to finish pending work, report and exit."""


class ChildProgress(msgspec.Struct, tag=True):
    """Report the counts of a process; with ``done``, the final ones."""

    sent: Counts = {}
    arrived: Counts = {}
    lost: Counts = {}
    """As the senders of the unreliable channels count them."""
    late: Counts = {}
    """Records that were sent late, by kind of lateness."""
    done: bool = False


class ChildFailed(msgspec.Struct, tag=True):
    """Report why a process cannot continue."""

    reason: str


Command = WriteMarkers | StartSending | Stop
ChildReport = Listening | MarkersWritten | ChildProgress | ChildFailed
